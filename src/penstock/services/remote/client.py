# SPDX-License-Identifier: Apache-2.0
"""The remote service as a task, or a driver, has it: the thread, the line to the manager, and what runs there."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.connection.loop_thread import LoopThread
from penstock.errors import PenstockError
from penstock.remote.messages import StartPartition
from penstock.services.remote.fetcher import Fetched, Fetcher
from penstock.services.remote.lines import ManagerLine, RemoteAccess
from penstock.services.remote.pusher import Pusher
from penstock.shuffle import TaskHost
from penstock.shuffle.requests import Request

A = TypeVar("A")
_GIVE_UP_SECONDS = 2.0


class RemoteClient:
    """One environment's, or one master's."""

    def __init__(self, access: RemoteAccess, name: str) -> None:
        self.access = access
        self._thread = LoopThread(name, self._hang_up)
        self._line: ManagerLine | None = None
        self._pushers: set[Pusher] = set()
        self._fetchers: set[Fetcher] = set()

    async def ask(self, request: Request[A], patience: float | None = None) -> A:
        """Ask the manager. In the loop thread."""
        return await self.line.ask(request, patience)

    @property
    def line(self) -> ManagerLine:
        """The line to the manager. In the loop thread."""
        if self._line is None:
            self._line = ManagerLine(self.access)
        return self._line

    async def pusher(self, begun: StartPartition, wake: Callable[[], None]) -> Pusher:
        """A pusher that has begun. In the loop thread."""
        pusher = Pusher(self.line, begun, wake)
        self._pushers.add(pusher)
        await pusher.begin()
        return pusher

    async def fetcher(self, fetched: deque[Fetched], wake: Callable[[], None]) -> Fetcher:
        """A fetcher that gives into this queue. In the loop thread."""
        fetcher = Fetcher(self.line, fetched, wake)
        self._fetchers.add(fetcher)
        return fetcher

    def begin(self, coroutine: Coroutine[Any, Any, A]) -> concurrent.futures.Future[A]:
        """Run this in the loop thread."""
        return self._thread.begin(coroutine)

    def call(self, coroutine: Coroutine[Any, Any, A], host: TaskHost | None = None) -> A:
        """Run this in the loop thread, and wait; a task that is told to stop waits no longer."""
        return self._thread.call(coroutine, (lambda: None) if host is None else host.check_cancelled)

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call this in the loop thread."""
        self._thread.soon(function, *arguments)

    def give_up(self, pusher: Pusher, cause: str) -> None:
        """Tell the manager that a partition will not come; waits a little, and it need not go well."""
        with contextlib.suppress(PenstockError, concurrent.futures.TimeoutError):
            self.begin(pusher.give_up(cause)).result(_GIVE_UP_SECONDS)

    def close(self) -> None:
        """Hang up, and end the thread; idempotent."""
        self._thread.close()

    def _hang_up(self) -> None:
        for pusher in self._pushers:
            pusher.close()
        for fetcher in self._fetchers:
            fetcher.close()
        if self._line is not None:
            self._line.close()
