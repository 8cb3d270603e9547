# SPDX-License-Identifier: Apache-2.0
"""A run that ends early tears down, says how it went and what it took, and takes its own output for no leak."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import DEADLINE

TESTS = Path(__file__).resolve().parents[1]

TOLD_TO_END = """
import os, re, signal, threading, time, pytest

@pytest.fixture(scope="session", autouse=True)
def session():
    yield
    raise RuntimeError("Java has gone")

def test_first():
    pass

def test_second():
    end = time.monotonic() + 240
    while not re.search(r"^(test_it.py )?[.]", open("log").read(), re.MULTILINE) and time.monotonic() < end:
        threading.Event().wait(0.01)  # the process that counts may not have heard of the first test yet
    for _ in range(2):
        os.kill({who}, signal.SIGTERM)
    threading.Event().wait(240)
"""

STOPPED = """
def test_first():
    raise ValueError

def test_second():
    pass
"""


def run(folder: Path, program: str, *options: str) -> tuple[int, str]:
    """Run these tests under the suite's own conftest, output to a file: exit code and output."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    spark\n    processes\n    sample\n")
    (folder / "test_it.py").write_text(program)
    shutil.copy(TESTS / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_it.py"]
    paths = os.pathsep.join(filter(None, sys.path))
    with (folder / "log").open("w") as log:
        ran = subprocess.run(
            command, stdout=log, stderr=log, cwd=folder, timeout=DEADLINE, env={**os.environ, "PYTHONPATH": paths}
        )
    return ran.returncode, (folder / "log").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(("who", "options"), [("os.getpid()", ()), ("os.getppid()", ("-n", "1"))])
def test_a_run_that_is_told_to_end_sums_up(tmp_path: Path, who: str, options: tuple[str, ...]) -> None:
    """SIGTERM, and again: the last line counts what has passed, whatever the teardown of the session raises."""
    code, output = run(tmp_path, TOLD_TO_END.format(who=who), *options)
    assert code == pytest.ExitCode.INTERRUPTED, output
    assert re.search(r"\b1 passed.* in [0-9.]+s", output.splitlines()[-1]), output
    assert re.search(r"^pure +[12] ", output, re.MULTILINE), output
    assert "INTERNALERROR" not in output
    if not options:  # of several processes, one that was told has nobody left to tell
        assert "RuntimeError: Java has gone" in output


def test_redirected_output_of_a_stopped_run_is_no_leak(tmp_path: Path) -> None:
    """A run that ends at its first failure finds its standard descriptors moved back, and nothing left behind."""
    code, output = run(tmp_path, STOPPED, "-x")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert re.search(r"\b1 failed in [0-9.]+s", output.splitlines()[-1]), output
    assert "left behind" not in output
