# SPDX-License-Identifier: Apache-2.0
"""The memory of one application at the host service: buffers in which bytes wait between disk and network. Pure.

Rules: each application has its own, up to a limit, in buffers of `CHUNK_BYTES`. A connection that holds none gets one
in any case: else those of its application that nobody reads just now could hold all, while the task that they wait
for waits for this one. Others wait in line. Buffers beyond the limit are given up when they come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.external.requests import CHUNK_BYTES


class ChunkMemory:
    """Up to `most` buffers, and one for each connection that has no other."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._made = 0
        self._free: list[memoryview] = []
        self._line: deque[Callable[[], None]] = deque()

    @property
    def bytes(self) -> int:
        """The bytes that it takes."""
        return self._made * CHUNK_BYTES

    def take(self, *, is_only: bool) -> memoryview | None:
        """A buffer; None where all are taken, and it would not be the only one of its connection."""
        if self._free:
            return self._free.pop()
        if self._made >= self._most and not is_only:
            return None
        self._made += 1
        return memoryview(bytearray(CHUNK_BYTES))

    def wait(self, wake: Callable[[], None]) -> None:
        """Call this, once, when a buffer is free."""
        if wake not in self._line:
            self._line.append(wake)

    def give_back(self, buffer: memoryview) -> None:
        """A buffer is free again: whoever waits longest may look for it."""
        if self._made > self._most:
            self._made -= 1
        else:
            self._free.append(buffer)
        if self._line and self._free:
            self._line.popleft()()

    def leave(self, wake: Callable[[], None]) -> None:
        """Somebody waits no more; idempotent."""
        if wake in self._line:
            self._line.remove(wake)
            if self._line and self._free:
                self._line.popleft()()
