# SPDX-License-Identifier: Apache-2.0
"""The memory of one application at the host service: buffers in which bytes wait between disk and network.

Rules: each application has its own, up to a limit, in buffers of `CHUNK_BYTES`. One that
finds none waits in line. They are given up when the application has no connection any more.
"""

from __future__ import annotations

import asyncio
from collections import deque

from penstock.external.requests import CHUNK_BYTES


class ChunkMemory:
    """Up to `most` buffers."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._made = 0
        self._free: list[memoryview] = []
        self._line: deque[asyncio.Future[memoryview]] = deque()

    @property
    def bytes(self) -> int:
        """The bytes that it takes."""
        return self._made * CHUNK_BYTES

    async def take(self) -> memoryview:
        """A buffer, as soon as there is one."""
        if self._free:
            return self._free.pop()
        if self._made < self._most:
            self._made += 1
            return memoryview(bytearray(CHUNK_BYTES))
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._line.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(future.result())
            raise

    def give_back(self, buffer: memoryview) -> None:
        """A buffer is free again: whoever waits longest has it."""
        while self._line:
            future = self._line.popleft()
            if not future.done():
                future.set_result(buffer)
                return
        self._free.append(buffer)

    def clear(self) -> None:
        """Give up what is free."""
        self._made -= len(self._free)
        self._free.clear()
