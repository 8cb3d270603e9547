# SPDX-License-Identifier: Apache-2.0
"""Sessions as people have them: a script, `spark-submit`, the `pyspark` shell, a notebook.

Each does the same (`a_day.py`): two sessions, a user's error, Ctrl-C in the middle of a job, the next action; the
script also stops and begins again. A Ctrl-C is the terminal's or the kernel's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
import pexpect
import pytest
from nbclient import NotebookClient

import java_starts
from penstock.link.kept_logs import logs_folder
from penstock.testing import DEADLINE, wait_until
from underway import listed

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).parents[1] / "support" / "a_day.py"
BIN = Path(sys.executable).parent
SHOWN = """
def late(batches):
    print('late it is', os.getpid())
    time.sleep(1.2)
    yield from batches

stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).keyBy('id', numPartitions=2).mapInArrow(late, 'id long')
stream.run()
"""
WAITED = """
numbers = penstock.readStream(spark).format('rate').load()
query = numbers.writeStream.format('noop').queryName('numbers').start()
query.awaitTermination(3)
"""


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The environment of the programs, and the folder in which their tasks leave marks."""
    monkeypatch.setenv("PENSTOCK_A_DAY", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextlib.contextmanager
def program(command: str, arguments: Sequence[str]) -> Iterator[pexpect.spawn]:
    """A program on a terminal of its own; it must end by itself, and well. Its screen is kept in a file."""
    with Path("terminal.txt").open("w", encoding="utf-8") as shown:
        child = pexpect.spawn(command, list(arguments), timeout=DEADLINE, encoding="utf-8", dimensions=(40, 200))
        child.logfile_read = shown
        try:
            yield child
            child.expect(pexpect.EOF)
        except pexpect.EOF as early:
            child.close()
            ended = f"it ended with exit code {child.exitstatus} by signal {child.signalstatus}"
            raise AssertionError(f"{ended}; {early}\n{Path('terminal.txt').read_text(encoding='utf-8')}") from None
        finally:
            child.close(force=True)
    assert child.exitstatus == 0


def wait_for_tasks(folder: Path) -> None:
    """Both have begun: one that has not when the interrupt comes says no end either."""
    wait_until(lambda: len(listed(folder, "begun-*")) == 2, "both tasks have begun")


def where_it_stands(folder: Path) -> str:
    """The stacks of all threads of the program, and the last that its terminal shows."""
    os.kill(int((folder / "pid").read_text()), signal.SIGUSR1)
    stacks = folder / "stacks.txt"
    wait_until(lambda: "most recent call first" in stacks.read_text(), "the stacks are written")
    return f"{stacks.read_text()}\n{Path('terminal.txt').read_text(encoding='utf-8')[-2000:]}"


def interrupt_on_terminal(child: pexpect.spawn, folder: Path) -> None:
    """Press Ctrl-C when the tasks run; they end in time, and the next action has its rows."""
    wait_for_tasks(folder)
    child.sendintr()
    if child.expect([r"STOPPED (\d+) (-?[\d.]+)", pexpect.TIMEOUT]):  # below zero: tasks may end before we do
        raise AssertionError(f"the Ctrl-C did not stop it: {where_it_stands(folder)}")
    assert int(child.match[1]) == 2
    child.expect(r"NEXT 1000 ([\d.]+)")


@pytest.mark.thorough
def test_script(surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sessions count, the error is the user's, Ctrl-C stops the tasks, the end leaves a good exit code.

    Nobody says which Python runs the workers, and the one on the path has no Penstock: they run the driver's.
    """
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv(java_starts.VARIABLE, java_starts.options(defaults=False))  # other tests have ours
    monkeypatch.setenv("PATH", os.environ["PATH"].removeprefix(f"{BIN}{os.pathsep}"))
    with program(sys.executable, [str(PROGRAM)]) as child:
        child.expect("SESSIONS 1000 1000 1000")
        child.expect("ERROR ValueError: a user's error")
        interrupt_on_terminal(child, surroundings)
        child.expect("AGAIN 1000")


@pytest.mark.thorough
def test_spark_submit(surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same under `spark-submit`, whose JVM is there first; a Ctrl-C ends that one, as always with Spark."""
    monkeypatch.setenv("PENSTOCK_A_DAY_UNINTERRUPTED", "1")
    with program(str(BIN / "spark-submit"), ["--master", "local[4]", str(PROGRAM)]) as child:
        child.expect("SESSIONS 1000 1000 1000")
        child.expect("ERROR ValueError: a user's error")
        child.expect("AGAIN 1000")


@pytest.mark.thorough
def test_shell(surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `pyspark` shell with its own `spark`: an action, an interrupted one, the next."""
    monkeypatch.setenv("PENSTOCK_A_DAY_PARTS", "1")
    with program(str(BIN / "pyspark"), ["--master", "local[4]", "--conf", "spark.ui.enabled=false"]) as shell:
        shell.expect(">>> ")
        shell.sendline(f"exec(open({str(PROGRAM)!r}).read())")
        shell.sendline("sessions(spark)")
        shell.expect("SESSIONS 1000 1000 1000")
        shell.sendline("interrupted(spark)")
        interrupt_on_terminal(shell, surroundings)
        shell.sendline("print('STILL', count(spark))")
        shell.expect("STILL 1000")
        shell.sendline("exit()")


@pytest.mark.thorough
def test_notebook(surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook: progress under the cell, a result as a table, the interrupt of the kernel, the next cell."""
    monkeypatch.setenv("PENSTOCK_A_DAY_PARTS", "1")
    cells = [
        f"exec(open({str(PROGRAM)!r}).read())\nspark = session()\nsessions(spark)",
        SHOWN,
        "interrupted(spark)",
        "print('STILL', count(spark))",
        "stream.toDF().count()",
        "stream",
        WAITED,
        "query",
        "query.stop()\nquery",
        "spark.stop()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=DEADLINE, resources={"metadata": {"path": str(surroundings)}})

    def interrupt() -> None:
        wait_for_tasks(surroundings)
        client.km.provisioner.process.send_signal(2)

    presser = threading.Thread(target=interrupt, daemon=True)
    presser.start()
    asyncio.run(client.async_execute())  # its own way to run it keeps an event loop for the rest of the process
    presser.join()
    printed = ["".join(o.get("text", "") for o in c.outputs if o.output_type == "stream") for c in notebook.cells]
    assert "SESSIONS 1000 1000 1000" in printed[0]
    assert "STOPPED 2 " in printed[2]
    assert "NEXT 1000" in printed[2]
    assert "STILL 1000" in printed[3]
    for ran in (notebook.cells[1], notebook.cells[4]):
        assert_last_frame(ran, "hash(id) + mapInArrow(late): finished after ", "most of it in mapInArrow(late)")
    assert_last_frame(notebook.cells[6], "query numbers: goes on after ", "rows read")
    pages = [cell.outputs[-1]["data"]["text/html"] for cell in notebook.cells[5:9] if cell.source != WAITED]
    assert all("<svg " in page for page in pages)
    assert "query numbers</b>: ended after" in pages[2]
    assert_output_is_kept()


def assert_output_is_kept() -> None:
    """The output of functions, their errors, and the environment's log lie in one folder when all has ended."""
    (folder,) = {path.parent for path in listed(logs_folder(), "*/*.out") if "late it is" in path.read_text()}
    texts = [path.read_text() for path in listed(folder, "*.out")]
    assert sum("late it is" in text for text in texts) == 4  # two tasks in each of two jobs
    assert any("ValueError: a user's error" in text and "mapInArrow(wrong)" in text for text in texts)
    (log,) = listed(folder, "environment-*.log")
    assert "INFO" in log.read_text()


def assert_last_frame(cell: nbformat.NotebookNode, line: str, words: str) -> None:
    """The cell has kept one block of progress: the end, in which nothing runs any more."""
    (block,) = [output["data"] for output in cell.outputs if output.output_type == "display_data"]
    assert line in block["text/plain"], block
    assert words in html.unescape(block["text/html"]), block
    assert html.unescape(block["text/html"]).count("<details>") == 1
