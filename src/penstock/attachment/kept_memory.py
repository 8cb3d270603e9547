# SPDX-License-Identifier: Apache-2.0
"""Keeps an environment's memory mapped between the tasks of one process.

Spark's Python workers run task after task. To map the segments anew and make their pages present costs each of them
18 µs a segment that it touches, again and again; measured on 640 MB between 8 tasks that is 3 % of all their CPU.

Rules: a process keeps one memory at most, of the environment it was attached to last, and only after `keep` was
called: who calls it ends with the application. What is given to one attachment is not given to a second at the same
time; that maps for itself. Memory of an environment that is gone is not kept. Limit: when an environment dies while
a worker has nothing to do, its memory goes with the worker's next task, or its end.
"""

from __future__ import annotations

import contextlib
import os
import threading

from penstock.buffer.segments import SegmentMemory
from penstock.link.welcome import Welcome


class KeptMemory:
    """The memory that waits for the next task of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_kept = False
        self._environment = ""
        self._memory: SegmentMemory | None = None

    def keep(self) -> None:
        """From now on what is given back is kept."""
        self._is_kept = True

    def take(self, welcome: Welcome, memory_fd: int) -> SegmentMemory:
        """The environment's memory, mapped; takes over its descriptor. Errors of `SegmentMemory.attach`."""
        with self._lock:
            memory, self._memory = self._memory, None
            if memory is not None and self._environment == welcome.environment:
                os.close(memory_fd)
                return memory
        if memory is not None:
            memory.close()
        return SegmentMemory.attach(memory_fd, welcome.segments, welcome.segment_size)

    def give_back(self, environment: str, memory: SegmentMemory) -> None:
        """A task needs it no more: what it still has of it can't be used."""
        unneeded: SegmentMemory | None = memory
        with self._lock:
            if self._is_kept:
                memory.release_views()
                unneeded, self._memory, self._environment = self._memory, memory, environment
        if unneeded is not None:
            unneeded.close()

    def forget(self) -> None:
        """Close this process's copy of the descriptor: for a forked child."""
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(OSError):
                os.close(memory.fd)


kept_memory = KeptMemory()
"""This process's."""
