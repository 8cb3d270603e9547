# SPDX-License-Identifier: Apache-2.0
"""A task's host without an environment process: for the memory service, and for tests of services that need none."""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.errors import ControlError, EnvironmentLostError, TaskCancelledError
from penstock.shuffle.host import HostDataPlane
from penstock.shuffle.requests import Request

_LOOK_SECONDS = 0.01
"""Between two looks at descriptors, where there are any."""


class MemoryHost:
    """The `TaskHost` and `TaskWait` of a task, which is a thread of this process. There is no data plane."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self.arrivals = 0
        self._changed = threading.Condition()
        self._watched: dict[int, Callable[[], None]] = {}
        self._poller = select.poll()
        self._alarm = math.inf
        self._end: EnvironmentLostError | TaskCancelledError | None = None

    def cancel(self, cause: str) -> None:
        """Tell the task to stop. Any thread."""
        self._end = TaskCancelledError(cause)
        self.wake()

    def lose(self, cause: str) -> None:
        """Behave as if the environment were gone. Any thread."""
        self._end = EnvironmentLostError(f"environment {self.environment} is gone: {cause}")
        self.wake()

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError if the task was told to stop, EnvironmentLostError where the host is gone."""
        if self._end is not None:
            raise type(self._end)(str(self._end))

    def wake(self) -> None:
        """Something has come. Any thread."""
        with self._changed:
            self.arrivals += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Return when `arrivals` is not `seen`, or after so many seconds."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        with self._changed:
            while self.arrivals == seen and self._end is None:
                self._look()
                left = min(end, self._alarm) - time.monotonic()
                if self.arrivals != seen or (left <= 0 and self._alarm > end):
                    break
                if left <= 0:
                    self._alarm = math.inf
                    self.arrivals += 1
                else:
                    left = min(left, _LOOK_SECONDS) if self._watched else left
                    self._changed.wait(None if left == math.inf else left)
        self.check_cancelled()

    def look(self) -> None:
        """Nothing comes by itself."""

    def waker(self) -> Callable[[], None]:
        """Give a function that ends the task's wait, or the next one."""
        return self.wake

    def wake_in(self, seconds: float) -> None:
        """End the task's wait after so many seconds."""
        with self._changed:
            self._alarm = min(self._alarm, time.monotonic() + seconds)
            self._changed.notify_all()

    def watch(self, descriptor: int, arrived: Callable[[], None], *, writes: bool = False) -> None:
        """Call this when something can be read here, or written, and end the task's wait with that."""
        with self._changed:
            self._watched[descriptor] = arrived
            self._poller.register(descriptor, select.POLLIN | select.POLLOUT * writes)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor; idempotent."""
        with self._changed:
            if self._watched.pop(descriptor, None) is not None:
                self._poller.unregister(descriptor)

    def ask(self, request: Request[Any], timeout: float | None = None) -> NoReturn:
        """Raise ControlError."""
        raise ControlError(f"{request.METHOD}: there is no environment process here")

    def hand_in(self, request: Request[Any]) -> None:
        """Do nothing: no environment process waits for it."""

    def data_plane(self) -> HostDataPlane:
        """Raise ControlError."""
        raise ControlError("there is no environment process here, and so no data plane of one")

    def _look(self) -> None:
        for descriptor, _ in self._poller.poll(0) if self._watched else ():
            self._watched[descriptor]()
            self.arrivals += 1
