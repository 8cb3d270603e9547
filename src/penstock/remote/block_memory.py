# SPDX-License-Identifier: Apache-2.0
"""The buffers of a worker in which blocks lie between a socket and a disk, used again and again.

Rules:

- A buffer has room for any block, and for any run of them that is read at once. A taker of less than half of one gets
  memory of its own.
- The buffer that came back last goes first: it is in the processor's cache. Nothing is zeroed or mapped for it.
- As many buffers stay as are kept; others go back to the system at once. They are maps of their own, so memory that
  goes back is free, whatever else was allocated meanwhile. They are private: those of shared memory are files of
  small pages, which cost as much to make and to remove as a copy.
- Any thread may take and give.
"""

from __future__ import annotations

import mmap
from typing import Final

from penstock.remote.blocks import LEAST_CREDIT

KEPT: Final = 16
"""Buffers that stay: two megabytes each, so a worker that has nothing to do has not many of them."""


class BlockMemory:
    """The buffers of one worker."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._free: list[memoryview] = []

    @property
    def bytes(self) -> int:
        """The bytes of the buffers that wait to be used again."""
        return len(self._free) * LEAST_CREDIT

    def take(self, length: int) -> memoryview:
        """Memory of so many bytes, with anything in it; give it back when nobody looks at it any more."""
        if not LEAST_CREDIT // 2 < length <= LEAST_CREDIT:
            return memoryview(bytearray(length))
        try:
            whole = self._free.pop()
        except IndexError:
            whole = memoryview(mmap.mmap(-1, LEAST_CREDIT, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return whole[:length]

    def give(self, memory: memoryview) -> None:
        """Nobody looks at this any more."""
        if isinstance(memory.obj, mmap.mmap) and len(self._free) < self._kept:
            self._free.append(memoryview(memory.obj))
