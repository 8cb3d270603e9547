# SPDX-License-Identifier: Apache-2.0
"""The threads of one disk, for an event loop: who waits for a disk waits for this one, and holds up no other.

Rules: a call to the system that touches a disk (`open`, `mkdir`, `statvfs` too) has no deadline: a disk that hangs
gives the thread back when it likes. So each disk has a few threads of its own, and says for how long the oldest call
has been under way: one of more than `HANGS_SECONDS` hangs. Calls that wait in line wait on, or are given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")

HANGS_SECONDS: Final = 10.0
"""A disk that works answers within this time, however many wait for it."""


class DiskThreads:
    """A pool of so many threads, which have this name."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._began: dict[object, float] = {}
        """The calls that are under way."""
        self._asked: set[Future[Any]] = set()
        """Those, and the ones that wait in line."""

    def run(self, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Call this in a thread; cancelled where it is given up before it has begun."""
        asked = self._pool.submit(self._timed, call, arguments)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        return asyncio.wrap_future(asked)

    def give_up(self) -> None:
        """Give up all calls that have not begun."""
        for asked in list(self._asked):
            asked.cancel()

    def waited(self, now: float) -> float:
        """The seconds for which the oldest call has been under way; 0 where there is none."""
        return now - min(list(self._began.values()), default=now)

    @property
    def hangs(self) -> bool:
        """True while a call takes longer than a disk that works does."""
        return bool(self._began) and self.waited(time.monotonic()) > HANGS_SECONDS

    def close(self) -> None:
        """Let calls that were begun end, but of a disk that hangs; idempotent."""
        self._pool.shutdown(wait=not self.hangs, cancel_futures=self.hangs)

    def _timed(self, call: Callable[..., T], arguments: tuple[object, ...]) -> T:
        mark = object()
        self._began[mark] = time.monotonic()
        try:
            return call(*arguments)
        finally:
            del self._began[mark]
