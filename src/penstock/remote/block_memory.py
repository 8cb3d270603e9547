# SPDX-License-Identifier: Apache-2.0
"""The buffers of a worker in which blocks lie between a socket and a disk, used again and again.

Rules:

- A buffer has room for any block, and for any run of them that is read at once. A taker of less than half of one gets
  memory of its own.
- The buffer that came back last goes first: it is in the processor's cache. Nothing is zeroed or mapped for it.
- Buffers that were not used between two looks go back to the system; a look is due every `KEPT_SECONDS`. To map them
  anew for each burst took a tenth of the worker's time, most of it in page faults. So a worker that has nothing to do
  has none.
- They are maps of their own, so memory that goes back is free, whatever else was allocated meanwhile. They are
  private: those of shared memory are files of small pages, which cost as much to make and to remove as a copy.
- With all that is in use, buffers that wait are never more than the cap: a block that gets memory of its own has them
  go for it.
- One thread takes, gives and looks.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final

from penstock.remote.blocks import LEAST_CREDIT

KEPT_SECONDS: Final = 10.0


class BlockMemory:
    """The buffers of one worker, which has `cap` bytes for blocks and knows how many are taken or promised."""

    def __init__(self, cap: int, in_use: Callable[[], int]) -> None:
        self._cap = cap
        self._in_use = in_use
        self._free: list[memoryview] = []
        self._spare = 0
        """The number of buffers that were not used since the last look."""

    @property
    def bytes(self) -> int:
        """The bytes of the buffers that wait to be used again."""
        return len(self._free) * LEAST_CREDIT

    def take(self, length: int) -> memoryview:
        """Memory of so many bytes, with anything in it; give it back when it is not read any more."""
        if not LEAST_CREDIT // 2 < length <= LEAST_CREDIT:
            most = max(0, self._cap - self._in_use()) // LEAST_CREDIT
            del self._free[: max(0, len(self._free) - most)]
            return memoryview(bytearray(length))
        try:
            whole = self._free.pop()
            self._spare = min(self._spare, len(self._free))
        except IndexError:
            whole = memoryview(mmap.mmap(-1, LEAST_CREDIT, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return whole[:length]

    def give(self, memory: memoryview) -> None:
        """Take back memory that is not read any more."""
        if isinstance(memory.obj, mmap.mmap):
            self._free.append(memoryview(memory.obj))

    def look(self) -> None:
        """Give back to the system the buffers that were not used since the last look."""
        del self._free[: self._spare]  # in front lie those that have been free for longest
        self._spare = len(self._free)
