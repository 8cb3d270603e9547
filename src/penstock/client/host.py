# SPDX-License-Identifier: Apache-2.0
"""The host of one writer or reader of a client, where the engine has that of a task: its one wait, and nothing else.

There is no environment process, so no data plane and none to ask. Any thread may wake or cancel; only one at a time
waits, and that is the one that reads or writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.attachment.watches import Watches
from penstock.errors import ControlError, TaskCancelledError
from penstock.shuffle.host import HostDataPlane
from penstock.shuffle.requests import Request


class ClientHost:
    """A `TaskHost` and its `TaskWait`."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self.arrivals = 0
        self._watches = Watches()
        self._wake = self._watches.waker()
        self._cause = ""

    def cancel(self, cause: str) -> None:
        """Have the reader or writer stop with TaskCancelledError. Any thread."""
        self._cause = cause
        self._wake()

    def close(self) -> None:
        """Give the descriptor back; idempotent. A later wake has no effect."""
        self._watches.close()

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError if it was told to stop."""
        if self._cause:
            raise TaskCancelledError(self._cause)

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Return when `arrivals` is not `seen`, or after so many seconds."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while self.arrivals == seen and not self._cause:
            self._watches.poll(self._watches.until_alarm(max(0.0, end - time.monotonic())))
            self.arrivals += self._watches.take()
            if time.monotonic() >= end:
                break
        self.check_cancelled()

    def look(self) -> None:
        """Nothing comes by itself."""

    def waker(self) -> Callable[[], None]:
        """Give a function that ends the wait, or the next one."""
        return self._wake

    def wake_in(self, seconds: float) -> None:
        """End the wait after so many seconds. From the thread that waits."""
        self._watches.wake_in(seconds)

    def watch(self, descriptor: int, arrived: Callable[[], None], *, writes: bool = False) -> None:
        """Call this when something can be read here, or written, and end the wait with that."""
        self._watches.watch(descriptor, arrived, writes=writes)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor; idempotent."""
        self._watches.unwatch(descriptor)

    def ask(self, request: Request[Any], timeout: float | None = None) -> NoReturn:
        """Raise ControlError."""
        raise ControlError(f"{request.METHOD}: a client has no environment process")

    def hand_in(self, request: Request[Any]) -> None:
        """No process would miss it."""

    def data_plane(self) -> HostDataPlane:
        """Raise ControlError."""
        raise ControlError("a client has no environment process, and so no data plane of one")
