# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of a job, as a table that can be printed.

Rules. All transitions are here; a pair that is not in the table is illegal and raises with the job's last
events. Subtasks have their own table in `penstock.graph.execution_state`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Final


class JobState(Enum):
    """Where a job is."""

    CREATED = "CREATED"
    WAITING_FOR_SLOTS = "WAITING_FOR_SLOTS"
    RUNNING = "RUNNING"
    CONFIRMING = "CONFIRMING"
    """All tasks ended well; the Spark jobs that carried them have not all returned."""
    FINISHED = "FINISHED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"


class JobEvent(Enum):
    """What moves a job."""

    SUBMITTED = "submitted"
    REFUSED = "refused"
    ADMITTED = "admitted"
    TASKS_FINISHED = "tasks finished"
    RESTART = "restart"
    """A result was lost before the job was over, so tasks run again."""
    CONFIRMED = "confirmed"
    FAILURE = "failure"
    CANCEL = "cancel"
    SETTLED = "settled"


_ACTIVE = (JobState.RUNNING, JobState.CONFIRMING)

JOB_TABLE: Final[Mapping[tuple[JobState, JobEvent], JobState]] = {
    (JobState.CREATED, JobEvent.REFUSED): JobState.FAILED,
    (JobState.CREATED, JobEvent.SUBMITTED): JobState.WAITING_FOR_SLOTS,
    (JobState.WAITING_FOR_SLOTS, JobEvent.ADMITTED): JobState.RUNNING,
    (JobState.WAITING_FOR_SLOTS, JobEvent.REFUSED): JobState.FAILED,
    (JobState.WAITING_FOR_SLOTS, JobEvent.CANCEL): JobState.CANCELED,
    (JobState.RUNNING, JobEvent.TASKS_FINISHED): JobState.CONFIRMING,
    (JobState.CONFIRMING, JobEvent.RESTART): JobState.RUNNING,
    (JobState.CONFIRMING, JobEvent.CONFIRMED): JobState.FINISHED,
    **{(state, JobEvent.FAILURE): JobState.FAILING for state in (*_ACTIVE, JobState.FAILING)},
    **{(state, JobEvent.CANCEL): JobState.CANCELLING for state in (*_ACTIVE, JobState.CANCELLING)},
    (JobState.FAILING, JobEvent.CANCEL): JobState.FAILING,
    (JobState.CANCELLING, JobEvent.FAILURE): JobState.CANCELLING,
    (JobState.FAILING, JobEvent.SETTLED): JobState.FAILED,
    (JobState.CANCELLING, JobEvent.SETTLED): JobState.CANCELED,
}

TERMINAL: Final = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELED})


class IllegalJobTransitionError(RuntimeError):
    """An event that the table does not allow in this state: a fault on our side."""


class JobLifecycle:
    """The state of one job and its last events."""

    __slots__ = ("_events", "_name", "state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._events: deque[str] = deque(maxlen=12)
        self.state = JobState.CREATED

    def fire(self, event: JobEvent) -> JobState:
        """Take one step; raises IllegalJobTransitionError with the story so far."""
        successor = JOB_TABLE.get((self.state, event))
        if successor is None:
            story = ", ".join(self._events) or "none"
            raise IllegalJobTransitionError(
                f"job {self._name}: {event.value!r} in state {self.state.name}; events so far: {story}"
            )
        self._events.append(event.value)
        self.state = successor
        return successor

    @property
    def is_active(self) -> bool:
        """Whether tasks may be deployed and may end well."""
        return self.state in _ACTIVE

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can happen any more."""
        return self.state in TERMINAL


def as_text() -> str:
    """The table as text, one transition a line."""
    return "\n".join(f"{state.name:18} {event.value:15} -> {new.name}" for (state, event), new in JOB_TABLE.items())
