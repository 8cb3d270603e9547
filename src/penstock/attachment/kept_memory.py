# SPDX-License-Identifier: Apache-2.0
"""Keeps an environment's memory mapped between the tasks of one process.

Spark's Python workers run task after task. To map the segments anew and make their pages present costs each of them
18 µs a segment that it touches, again and again; measured on 640 MB between 8 tasks that is 3 % of all their CPU.

Rules: a process keeps one memory at most, of the environment it was attached to last, and only after `keep` was
called: who calls it ends with the application. Memory that is given to one attachment is not given to a second at the
same time; that maps for itself. A task whose services ask for no memory maps none. Memory of an environment that is
gone is not kept. Limit: when an environment dies while a worker has nothing to do, its memory goes with the worker's
next task, or its end.
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

    def offer(self, welcome: Welcome, memory_fd: int) -> OfferedMemory:
        """The offer to a task that was just welcomed; takes over the descriptor. Another environment's goes."""
        with self._lock:
            memory = None
            if self._environment != welcome.environment:
                memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
        return OfferedMemory(self, welcome, memory_fd)

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


class OfferedMemory:
    """The memory that a welcome offers to one attachment: mapped when it is asked for, and not before."""

    def __init__(self, kept: KeptMemory, welcome: Welcome, memory_fd: int) -> None:
        self._kept = kept
        self._welcome = welcome
        self._fd = memory_fd
        self._memory: SegmentMemory | None = None

    def map(self) -> SegmentMemory:
        """The memory, once. Errors of `SegmentMemory.attach`."""
        if self._memory is None:
            fd, self._fd = self._fd, -1
            self._memory = self._kept.take(self._welcome, fd)
        return self._memory

    def close(self, *, is_lost: bool) -> None:
        """The attachment is over, perhaps because its environment is; idempotent."""
        memory, self._memory = self._memory, None
        if memory is None:
            self._close_descriptor()
        elif is_lost:
            memory.close()
        else:
            self._kept.give_back(self._welcome.environment, memory)

    def forget(self) -> None:
        """Close this process's copy of the descriptor: for a forked child."""
        if self._memory is None:
            self._close_descriptor()
        else:
            with contextlib.suppress(OSError, ValueError):
                os.close(self._memory.fd)

    def _close_descriptor(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


kept_memory = KeptMemory()
"""This process's."""
