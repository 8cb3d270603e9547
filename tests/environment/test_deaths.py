# SPDX-License-Identifier: Apache-2.0
"""A task whose process died: the sentence says how, at which function, with how much memory, and what to do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.environment.tasks.attached import AttachedTask
from penstock.environment.tasks.deaths import Death, Deaths, death_words
from penstock.machine.memory import MemoryKills, memory_kills
from penstock.machine.process_end import NotTold, exit_code_of
from penstock.machine.work_sign import BYTES, WorkOfAnother, WorkSign

GIB = 1 << 30
KILLED, CRASHED = -signal.SIGKILL, -signal.SIGSEGV
WORDS = {
    "for memory, in a container": (
        Death(7, KILLED, "mapInArrow(eats)", 3 * GIB, 0.3, 4 * GIB, True, MemoryKills(1, 1)),
        "for memory in mapInArrow(eats): its container has no more; 0.3 s before it had 3.0 GiB of the 4.0 GiB",
        "spark.executor.memoryOverhead",
    ),
    "for memory, on a machine": (
        Death(7, KILLED, "(reading)", 0, 0.0, 4 * GIB, False, MemoryKills(0, 1)),
        "for memory while it read its input: this machine has no more.",
        "spark.executor.pyspark.memory it gets a MemoryError and its traceback",
    ),
    "killed, with much memory": (
        Death(7, KILLED, "(writing)", 3 * GIB, 0.1, 4 * GIB, True),
        "its process (pid 7) was killed while it wrote its rows (SIGKILL)",
        "Memory is the likely reason.",
    ),
    "killed by somebody": (
        Death(7, -signal.SIGTERM, "", 1 << 20, 0.1, 4 * GIB),
        "its process (pid 7) was killed (SIGTERM); 0.1 s before it had 1 MiB of the 4.0 GiB that this machine has.",
        "Somebody has ended it",
    ),
    "crashed": (
        Death(7, CRASHED, "mapInPandas(f)"),
        "its process (pid 7) crashed in mapInPandas(f) (SIGSEGV): a fault of native code",
        "spark.python.worker.faulthandler.enabled=true",
    ),
    "ended by itself": (
        Death(7, 3, "mapInPandas(f)"),
        "its process (pid 7) ended itself in mapInPandas(f) with exit code 3",
        "Raise an error instead",
    ),
    "nobody knows how": (
        Death(7, None, "mapInPandas(f)"),
        "its process (pid 7) was killed or crashed in mapInPandas(f).",
        "Somebody has ended it",
    ),
    "by a signal without a name": (Death(7, -63), "(signal 63)", "Somebody has ended it"),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_sentence_says_what_happened_and_what_to_do(name: str) -> None:
    """Each end of a process, with what is known of it."""
    death, what, remedy = WORDS[name]
    assert what in death_words(death)
    assert remedy in death_words(death)


def test_kills_for_memory_are_counted_where_the_kernel_has_them(tmp_path: Path) -> None:
    """In a control group of either version, and on the machine; files that are not there count nothing."""
    for name, text in (("memory.events", "low 0\noom 3\noom_kill 2\n"), ("memory.oom_control", "oom_kill 5\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 9\n")
    groups = [tmp_path, tmp_path / "none"]
    assert memory_kills(groups, tmp_path / "vmstat") == MemoryKills(7, 9)
    assert memory_kills(groups, tmp_path / "none") == MemoryKills(7, 0)


def test_what_it_had_when_it_was_seen_last_counts() -> None:
    """A process that has just died has no memory any more."""
    nothing: Any = None
    with sleeper() as process:
        task = AttachedTask(nothing, nothing, process.pid)
        deaths = Deaths(lambda: 0.0)
        deaths.see(process.pid)
        process.kill()
        process.wait()
        deaths.look([task])
    assert "0.0 s before it had" in deaths.words(task, KILLED)


def test_a_kill_before_the_first_task_is_no_task_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has killed another process for memory while there was no task; then a user kills the first one."""
    nothing: Any = None
    kills = [MemoryKills(0, 0)]
    monkeypatch.setattr("penstock.environment.tasks.deaths.memory_kills", lambda: kills[-1])
    task = AttachedTask(nothing, nothing, os.getpid())
    deaths = Deaths(lambda: 0.0)
    for count, reached in ((1, "Somebody has ended it"), (1, "Somebody has ended it"), (2, "has no more")):
        kills.append(MemoryKills(0, count))
        if count == 1:
            deaths.look([])
            deaths.see(task.pid)
        assert reached in deaths.words(task, KILLED)


def test_the_word_of_a_killed_process_is_read() -> None:
    """The last one, cut where it is too long; telling before it is open does nothing, and so does closing twice."""
    sign = WorkSign()
    sign.tell("nobody hears")
    sign.open()
    sign.open()
    reader = WorkOfAnother(os.getpid(), sign.descriptor)
    assert reader.read() == ""
    for told, read in (("mapInArrow(f)", "mapInArrow(f)"), ("é" * BYTES, "é" * ((BYTES - 3) // 2) + "..."), ("", "")):
        sign.tell(told)
        assert reader.read() == read
    sign.close()
    sign.close()
    reader.close()
    reader.close()


def test_the_kernel_says_how_a_process_ended() -> None:
    """The signal, when the parent has heard of it; kernels before 6.15 say nothing, and that is said."""
    with sleeper() as process:
        descriptor = os.pidfd_open(process.pid)
        try:
            with pytest.raises(NotTold):
                exit_code_of(descriptor)
            process.kill()
            process.wait()
            assert told(descriptor) in (KILLED, "nothing, now or later")
        finally:
            os.close(descriptor)


def told(descriptor: int) -> int | str:
    """The kernel's answer."""
    try:
        return exit_code_of(descriptor)
    except NotTold as silent:
        return "nothing yet" if silent.later else "nothing, now or later"


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be killed."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()
