# SPDX-License-Identifier: Apache-2.0
"""The clock of steps: what others take of a core is no cost of a step."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.stream.step_clock import StepClock

SECONDS = 0.3
needs_kernel = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="this kernel does not say how long threads wait"
)


@contextmanager
def one_core_with_another() -> Iterator[None]:
    """This thread shares one core with a process that is always busy."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    code = "import sys; print(1, flush=True)\nwhile True: pass"
    try:
        with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None
                other.stdout.readline()
                yield
            finally:
                other.kill()
    finally:
        os.sched_setaffinity(0, cores)


def busy(clock: StepClock) -> tuple[float, float, float]:
    """Seconds of all time, of the clock, and of this thread on a core, while it is busy."""
    began, worked, ran = time.monotonic(), clock(), time.thread_time()
    while time.monotonic() < began + SECONDS:
        pass
    return time.monotonic() - began, clock() - worked, time.thread_time() - ran


@needs_kernel
def test_waiting_for_a_core_is_no_work() -> None:
    """A thread that shares its core counts what it ran, and not what the other one ran."""
    clock = StepClock()
    with one_core_with_another():
        passed, worked, ran = busy(clock)
    clock.close()
    assert worked < 0.9 * passed
    assert worked > 0.5 * ran


def test_waiting_for_anything_else_is_work() -> None:
    """A function that waits for an answer costs its rows that time."""
    clock = StepClock()
    began = clock()
    threading.Event().wait(0.2)
    assert clock() - began > 0.1
    clock.close()
    clock.close()


def test_all_time_counts_where_the_kernel_says_nothing(tmp_path: Path) -> None:
    """Without the kernel's file it is the clock of the machine."""
    clock = StepClock(str(tmp_path / "none"))
    before, now, after = time.monotonic(), clock(), time.monotonic()
    assert before <= now <= after
