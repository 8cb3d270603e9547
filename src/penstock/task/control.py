# SPDX-License-Identifier: Apache-2.0
"""The questions that a running task may ask of its runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class TaskControl(Protocol):
    """The task's line to the JobMaster, and its one wait (`TaskWait`); called from the task's thread."""

    @property
    def arrivals(self) -> int:
        """The number of things that have come for the task."""

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Return when `arrivals` is not `seen`, or after so many seconds. Any thread."""

    def await_producers(self) -> None:
        """Wait until the JobMaster has confirmed that this task's producers ended well; raises what it says."""

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError when the task was told to stop; cheap, called for each batch.

        It is a NotWantedError where the task's rows are not wanted any more.
        """

    def report(self, metrics: Mapping[str, float]) -> None:
        """Take the task's figures; called at most every half second."""
