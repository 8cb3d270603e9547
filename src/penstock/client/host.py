# SPDX-License-Identifier: Apache-2.0
"""The host of one writer or reader of a client, where the engine has that of a task: its one wait, and nothing else.

There is no environment process, so no data plane and nobody to ask. Any thread may wake or cancel; only one at a time
waits, and that is the one that reads or writes.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.errors import ControlError, TaskCancelledError
from penstock.shuffle.host import HostDataPlane
from penstock.shuffle.requests import Request


class ClientHost:
    """A `TaskHost` and its `TaskWait`."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self.arrivals = 0
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._bell, select.POLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        self._alarm = math.inf
        self._cause = ""

    def cancel(self, cause: str) -> None:
        """Have whoever reads or writes stop with TaskCancelledError. Any thread."""
        self._cause = cause
        self._wake()

    def close(self) -> None:
        """Give the descriptor back; idempotent. A later wake reaches nobody."""
        with self._lock:
            bell, self._bell = self._bell, -1
            if bell >= 0:
                os.close(bell)

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError if it was told to stop."""
        if self._cause:
            raise TaskCancelledError(self._cause)

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Return when `arrivals` is not `seen`, or after so many seconds."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while self.arrivals == seen and not self._cause:
            now = time.monotonic()
            if self._alarm <= now:
                self._alarm = math.inf
                self.arrivals += 1
                break
            self._look(min(end, self._alarm) - now)
            if self.arrivals == seen and time.monotonic() >= end:
                break
        self.check_cancelled()

    def look(self) -> None:
        """Nothing comes by itself."""

    def waker(self) -> Callable[[], None]:
        """Give a function that ends the wait, or the next one."""
        return self._wake

    def wake_in(self, seconds: float) -> None:
        """End the wait after so many seconds. From the thread that waits."""
        self._alarm = min(self._alarm, time.monotonic() + seconds)

    def watch(self, descriptor: int, arrived: Callable[[], None], *, writes: bool = False) -> None:
        """Call this when something can be read here, or written, and end the wait with that."""
        self._watched[descriptor] = arrived
        self._poller.register(descriptor, select.POLLIN | select.POLLOUT * writes)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor; idempotent."""
        if self._watched.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def ask(self, request: Request[Any], timeout: float | None = None) -> NoReturn:
        """Raise ControlError."""
        raise ControlError(f"{request.METHOD}: a client has no environment process")

    def hand_in(self, request: Request[Any]) -> None:
        """There is nobody who would miss it."""

    def data_plane(self) -> HostDataPlane:
        """Raise ControlError."""
        raise ControlError("a client has no environment process, and so no data plane of one")

    def _wake(self) -> None:
        with self._lock:
            self.arrivals += 1
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def _look(self, seconds: float) -> None:
        """Wait for a descriptor, or so long."""
        limit = None if seconds == math.inf else max(0.0, seconds) * 1000
        for descriptor, _ in self._poller.poll(limit):
            if descriptor == self._bell:
                os.eventfd_read(descriptor)
            else:
                self._watched[descriptor]()
                with self._lock:
                    self.arrivals += 1
