# SPDX-License-Identifier: Apache-2.0
"""The memory of one user at the host service: buffers in which bytes wait between disk and network. Pure.

Rules: each user has its own, up to a limit, in buffers of `CHUNK_BYTES`. Those who get none wait in line. Connections
that a task does not read just now may hold all, while that task waits for another one of its connections. So a
connection that holds none does not wait, and gives its bytes in small pieces (`clients`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.external.requests import CHUNK_BYTES


class ChunkMemory:
    """The memory of one user: up to `most` buffers."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._made = 0
        self._free: list[memoryview] = []
        self._line: deque[Callable[[], None]] = deque()

    @property
    def is_idle(self) -> bool:
        """True if no buffer is in use, not even by a read whose connection has ended."""
        return len(self._free) == self._made

    @property
    def bytes(self) -> int:
        """The bytes that it takes."""
        return self._made * CHUNK_BYTES

    def take(self) -> memoryview | None:
        """A buffer; None where all are taken."""
        if self._free:
            return self._free.pop()
        if self._made >= self._most:
            return None
        self._made += 1
        return memoryview(bytearray(CHUNK_BYTES))

    def wait(self, wake: Callable[[], None]) -> None:
        """Call this, once, when a buffer is free."""
        if wake not in self._line:
            self._line.append(wake)

    def give_back(self, buffer: memoryview) -> None:
        """A buffer is free again; wake the connection that has waited longest."""
        self._free.append(buffer)
        if self._line and self._free:
            self._line.popleft()()

    def leave(self, wake: Callable[[], None]) -> None:
        """A connection waits no more; idempotent."""
        if wake in self._line:
            self._line.remove(wake)
            if self._line and self._free:
                self._line.popleft()()
