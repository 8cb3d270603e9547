# SPDX-License-Identifier: Apache-2.0
"""The questions of the parts of the core about the subtasks of their job, which `attempts` alone changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from penstock.job.core.execution.subtask import Subtask
from penstock.shuffle import AttemptId


class Roll(Protocol):
    """Which subtasks there are, and how far; of a vertex that is not open, nothing has happened."""

    @property
    def live(self) -> int:
        """The number that tasks work on."""

    @property
    def round(self) -> int:
        """The number of restarts."""

    @property
    def has_run(self) -> bool:
        """True if any subtask was ever told what to do."""

    @property
    def moving(self) -> Collection[int]:
        """The regions that run together and whose tasks were all there."""

    def current(self, attempt: AttemptId) -> Subtask | None:
        """The subtask whose accepted attempt this is."""

    def find(self, vertex: int, index: int) -> Subtask | None:
        """The subtask at a place, if there is such a place."""

    def of(self, vertex: int) -> Sequence[Subtask]:
        """A vertex's subtasks; none before its region is open."""

    def pending(self, vertex: int) -> int:
        """The number of subtasks of an open vertex that no task has taken."""

    def first_pending(self, vertex: int, count: int) -> Sequence[Subtask]:
        """The first of them."""

    # --- how far a vertex is

    def is_open(self, vertex: int) -> bool:
        """Tell whether its subtasks are there."""

    def is_taken(self, vertex: int) -> bool:
        """Tell whether any subtask waits for its deployment."""

    def is_running(self, vertex: int) -> bool:
        """Tell whether any subtask runs."""

    def is_deployed(self, vertex: int) -> bool:
        """Tell whether all subtasks run or ended well."""

    def is_complete(self, vertex: int) -> bool:
        """Tell whether all subtasks ended well."""

    def is_confirmed(self, vertex: int) -> bool:
        """Tell whether its DataFrame was read to its end."""

    def undeployed(self, vertex: int) -> int:
        """The number of subtasks that neither run nor have ended well."""
