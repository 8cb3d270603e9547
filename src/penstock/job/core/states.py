# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of a job, as a table that can be printed.

Rules. All transitions are here; a pair that is not in the table is illegal and raises with the job's last
events. Subtasks have their own table in `penstock.graph.execution_state`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from penstock.lifecycle.table import Lifecycle, Table, ends_of


class JobState(Enum):
    """The states of a job."""

    CREATED = "CREATED"
    WAITING_FOR_SLOTS = "WAITING_FOR_SLOTS"
    RUNNING = "RUNNING"
    CONFIRMING = "CONFIRMING"
    """All tasks ended well; the Spark jobs that carried them have not all returned."""
    FINISHED = "FINISHED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"


class JobEvent(Enum):
    """The events of a job."""

    SUBMITTED = "submitted"
    REFUSED = "refused"
    ADMITTED = "admitted"
    TASKS_FINISHED = "done"
    """All tasks ended well."""
    RESTART = "restart"
    """A result was lost before the job was over, so tasks run again."""
    CONFIRMED = "confirmed"
    FAILURE = "failure"
    CANCEL = "cancel"
    SETTLED = "settled"


_ACTIVE = (JobState.RUNNING, JobState.CONFIRMING)

JOB_TABLE: Final[Table[JobState, JobEvent]] = {
    (JobState.CREATED, JobEvent.REFUSED): JobState.FAILED,
    (JobState.CREATED, JobEvent.SUBMITTED): JobState.WAITING_FOR_SLOTS,
    (JobState.WAITING_FOR_SLOTS, JobEvent.ADMITTED): JobState.RUNNING,
    (JobState.WAITING_FOR_SLOTS, JobEvent.REFUSED): JobState.FAILED,
    (JobState.WAITING_FOR_SLOTS, JobEvent.CANCEL): JobState.CANCELED,
    (JobState.RUNNING, JobEvent.TASKS_FINISHED): JobState.CONFIRMING,
    (JobState.CONFIRMING, JobEvent.RESTART): JobState.RUNNING,
    (JobState.CONFIRMING, JobEvent.CONFIRMED): JobState.FINISHED,
    **{(state, JobEvent.FAILURE): JobState.FAILING for state in (*_ACTIVE, JobState.FAILING)},
    **{(state, JobEvent.CANCEL): JobState.CANCELING for state in (*_ACTIVE, JobState.CANCELING)},
    (JobState.FAILING, JobEvent.CANCEL): JobState.FAILING,
    (JobState.CANCELING, JobEvent.FAILURE): JobState.CANCELING,
    (JobState.FAILING, JobEvent.SETTLED): JobState.FAILED,
    (JobState.CANCELING, JobEvent.SETTLED): JobState.CANCELED,
}

TERMINAL: Final = ends_of(JOB_TABLE)


class Phase(Protocol):
    """The facts of their job's lifecycle that the parts of the core may know; the end of the job owns it."""

    @property
    def state(self) -> JobState:
        """The state of the job."""

    @property
    def is_active(self) -> bool:
        """True if tasks may be deployed and may end well."""


class JobLifecycle(Lifecycle[JobState, JobEvent]):
    """The state of one job and its last events."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name, JOB_TABLE, JobState.CREATED)

    @property
    def is_active(self) -> bool:
        """True if tasks may be deployed and may end well."""
        return self.state in _ACTIVE

    @property
    def is_ending(self) -> bool:
        """True if it fails or is cancelled, and has not come to its end yet."""
        return self.state in (JobState.FAILING, JobState.CANCELING)

    @property
    def is_terminal(self) -> bool:
        """True if nothing can happen any more."""
        return self.state in TERMINAL
