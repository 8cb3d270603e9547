# SPDX-License-Identifier: Apache-2.0
"""All hybrid partitions of one environment: the threads that store for them, and the memory they leave to others.

A partition keeps what it has in memory as long as nobody needs that. When the pool runs low, those that hold more
than their share give it up, at the end of the turn; finished ones have no share. As long as a writer waits for a
segment, there is a turn after each step that may free one. What is lent to readers comes back when they like, so all
partitions together lend at most half of the memory.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.environment.folders import Folders
from penstock.environment.hybrid import HybridResult

if TYPE_CHECKING:
    from penstock.environment.host import Host
    from penstock.environment.hybrid_port import HybridPort, WriterRequest

THREADS = 2
"""Orders carried out at a time: one waits for the disk while another is checked."""
LOW = 16
"""The pool is low when less than this part of it is free."""

SETTLE_SECONDS = 1.0
"""A finished partition that has memory is stored after this time: those of a short job are read and gone by then."""
AHEAD_SHARE = 8
"""What is granted to writers ahead of need, all together, is at most this part of the memory."""

Done = Callable[[object, BaseException | None], None]


class HybridPartitions:
    """The hybrid partitions of one environment."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.folders: Folders = host.results.folders
        self.lent = 0
        self.ahead = 0
        self.spilled_bytes = 0
        self._low = max(1, host.pool.total // LOW)
        self._results: dict[HybridResult, None] = {}
        self._waiting: dict[HybridPort, None] = {}
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-spill")
        self._is_closed = False

    @property
    def may_lend(self) -> bool:
        """Whether one more slice may go to a reader."""
        return self.lent < max(1, self.host.pool.total // 2)

    @property
    def may_grant_ahead(self) -> int:
        """Segments that may be granted ahead beyond those that are so already."""
        return max(0, self.host.pool.total // AHEAD_SHARE - self.ahead)

    @property
    def held(self) -> int:
        """Segments with data of hybrid partitions, readers' apart."""
        return sum(result.core.held for result in self._results)

    def register(self, request: WriterRequest) -> HybridResult:
        """A new partition, known to readers; raises ProtocolError or StaleError where it can't be."""
        result = HybridResult(self, request)
        self.host.registry.register(result)
        self._results[result] = None
        return result

    def forget(self, result: HybridResult) -> None:
        """A partition has ended, or holds no memory any more; idempotent."""
        self._results.pop(result, None)

    def settle_later(self, result: HybridResult) -> None:
        """A partition is finished: see later whether it is to be stored."""
        self._loop.call_later(SETTLE_SECONDS, result.core.settle)

    def wait(self, port: HybridPort) -> None:
        """A writer waits for a segment."""
        self._waiting[port] = None
        self.host.schedule_turn()

    def is_waiting(self, port: HybridPort) -> bool:
        """Whether a writer waits for a segment."""
        return port in self._waiting

    def wait_no_more(self, port: HybridPort) -> None:
        """A writer waits no longer; idempotent."""
        self._waiting.pop(port, None)

    def returned(self) -> None:
        """A reader has given back a slice."""
        self.lent -= 1
        self.stepped()

    def stepped(self) -> None:
        """Something has changed that may free memory."""
        if self._waiting:
            self.host.schedule_turn()

    def relieve(self) -> None:
        """For writers that wait, and where memory is low, take back what partitions hold beyond their share."""
        for port in list(self._waiting):
            port.relieve()
        needed = self._low - self.host.pool.free
        if needed <= 0:
            return
        for result in list(self._results):
            excess = result.excess
            if excess > 0:
                result.core.relieve(min(excess, needed))

    def run(self, work: Callable[[], object], done: Done) -> None:
        """Do something that waits, in a thread; then `done` gets its result or its error, on the loop."""
        if self._is_closed:
            return
        running = self._loop.run_in_executor(self._threads, work)
        running.add_done_callback(functools.partial(_finish, done))

    async def close(self) -> None:
        """Wait for what is under way, start nothing more; idempotent. Files that are left go with the application."""
        self._is_closed = True
        await self._loop.run_in_executor(None, self._threads.shutdown)


def _finish(done: Done, running: asyncio.Future[object]) -> None:
    if running.cancelled():
        return
    error = running.exception()
    done(None if error is not None else running.result(), error)
