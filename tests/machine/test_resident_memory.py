# SPDX-License-Identifier: Apache-2.0
"""The memory that a process has, as its tasks tell it."""

from __future__ import annotations

import mmap
from pathlib import Path

from penstock.machine.memory import PeakMemory, resident_memory

LARGE, SMALL = 96 << 20, 48 << 20
SLACK = 16 << 20
"""Other parts of the process may take or give back so much meanwhile."""


def touched(size: int) -> mmap.mmap:
    """Memory that is the process's own from now on; what an allocator gives may be resident already."""
    found = mmap.mmap(-1, size)
    found[:: mmap.PAGESIZE] = b"x" * (size // mmap.PAGESIZE)
    return found


def test_a_tasks_peak_is_its_own_and_not_that_of_a_task_before() -> None:
    """A worker runs many: of a record of its process the task that made it tells, and the next one does not."""
    Path("/proc/self/clear_refs").write_text("5")  # the record of the tests before
    before, _ = resident_memory()
    first = PeakMemory()
    touched(LARGE).close()
    now, peak = first.look()
    assert peak - before > LARGE - SLACK
    assert now - before < SLACK
    second = PeakMemory()
    held = touched(SMALL)
    assert second.look()[0] - before > SMALL - SLACK
    held.close()
    assert SMALL - SLACK < second.look()[1] - before < LARGE - SLACK
