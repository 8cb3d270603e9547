# SPDX-License-Identifier: Apache-2.0
"""A task's host without an environment process: for the memory service, and for tests of services that need none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.shuffle.errors import ControlError, TaskCancelledError
from penstock.shuffle.host import HostDataPlane
from penstock.shuffle.requests import Request
from penstock.testing.memory_registry import remaining


class MemoryHost:
    """A `TaskHost` of one task, which is a thread of this process. Nobody answers, and there is no data plane."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self._changed = threading.Condition()
        self._cancelled: str | None = None

    def cancel(self, cause: str) -> None:
        """Tell the task to stop. Any thread."""
        with self._changed:
            self._cancelled = cause
            self._changed.notify_all()

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError if the task was told to stop."""
        if self._cancelled is not None:
            raise TaskCancelledError(self._cancelled)

    def wait(self, ready: Callable[[], object], timeout: float | None = None) -> None:
        """Wait until `ready()` holds: nothing comes here but the word to stop, so it is asked again and again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not ready():
                self.check_cancelled()
                left = remaining(deadline)
                if left == 0:
                    raise TimeoutError
                self._changed.wait(_LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS))

    def look(self) -> None:
        """Nothing comes."""

    def ask(self, request: Request[Any], timeout: float | None = None) -> NoReturn:
        """Raise ControlError."""
        raise ControlError(f"{request.METHOD}: there is no environment process here")

    def hand_in(self, request: Request[Any]) -> None:
        """There is nobody who would miss it."""

    def data_plane(self) -> HostDataPlane:
        """Raise ControlError."""
        raise ControlError("there is no environment process here, and so no data plane of one")


_LOOK_SECONDS = 0.01
