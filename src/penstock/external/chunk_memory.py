# SPDX-License-Identifier: Apache-2.0
"""The memory of one user at the host service: buffers in which bytes wait between disk and network. Pure.

Rules: each user has its own, up to a limit, in buffers of `CHUNK_BYTES`. Those who get none wait in line. Connections
of the user that nobody reads just now may hold all, while the task that they wait for waits for another one: so one
that holds none does not wait, and gives its bytes in small pieces (`clients`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.external.requests import CHUNK_BYTES


class ChunkMemory:
    """Up to `most` buffers."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._made = 0
        self._free: list[memoryview] = []
        self._line: deque[Callable[[], None]] = deque()

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
        """A buffer is free again: whoever waits longest may look for it."""
        self._free.append(buffer)
        if self._line and self._free:
            self._line.popleft()()

    def leave(self, wake: Callable[[], None]) -> None:
        """Somebody waits no more; idempotent."""
        if wake in self._line:
            self._line.remove(wake)
            if self._line and self._free:
                self._line.popleft()()
