# SPDX-License-Identifier: Apache-2.0
"""The life of one execution attempt, as one table `(state, event) -> state`.

Rules: all transitions are in `TRANSITIONS`; a pair that is missing there is illegal and raises with the
attempt's last events. FINISHED, CANCELED and FAILED are terminal: late reports about an attempt that has
ended (its task was lost after it had finished, a cancel that crossed its end) are not events of the attempt
and must be filtered by the caller with `is_terminal`. The module knows neither clock nor wire.
"""

from __future__ import annotations

from enum import Enum

from penstock.lifecycle.table import Lifecycle, ends_of


class ExecutionState(Enum):
    """The states of an attempt."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        """True if the attempt has ended."""
        return self in TERMINAL_STATES


class ExecutionEvent(Enum):
    """The events of an attempt."""

    SCHEDULE = "schedule"
    """Its slot was asked for."""
    DEPLOY = "deploy"
    """Its task has registered and is being told what to do."""
    INITIALIZE = "initialize"
    """The task has its deployment and takes its resources."""
    RUN = "run"
    """The task moves data."""
    FINISH = "finish"
    """The task reported success."""
    CANCEL = "cancel"
    """The JobMaster wants it to stop."""
    CONFIRM_CANCEL = "confirm_cancel"
    """The task reported that it stopped, or it never started."""
    FAIL = "fail"
    """The task reported an error, or was lost."""


def _transitions() -> dict[tuple[ExecutionState, ExecutionEvent], ExecutionState]:
    state, event = ExecutionState, ExecutionEvent
    table = {
        (state.CREATED, event.SCHEDULE): state.SCHEDULED,
        (state.SCHEDULED, event.DEPLOY): state.DEPLOYING,
        (state.DEPLOYING, event.INITIALIZE): state.INITIALIZING,
        (state.INITIALIZING, event.RUN): state.RUNNING,
        # A short task may end before its first report was heard.
        (state.DEPLOYING, event.RUN): state.RUNNING,
        (state.DEPLOYING, event.FINISH): state.FINISHED,
        (state.INITIALIZING, event.FINISH): state.FINISHED,
        (state.RUNNING, event.FINISH): state.FINISHED,
        # Nothing runs yet, so there is no task to wait for.
        (state.CREATED, event.CANCEL): state.CANCELED,
        (state.SCHEDULED, event.CANCEL): state.CANCELED,
        (state.DEPLOYING, event.CANCEL): state.CANCELING,
        (state.INITIALIZING, event.CANCEL): state.CANCELING,
        (state.RUNNING, event.CANCEL): state.CANCELING,
        (state.CANCELING, event.CANCEL): state.CANCELING,
        (state.CANCELING, event.INITIALIZE): state.CANCELING,
        (state.CANCELING, event.RUN): state.CANCELING,
        (state.CANCELING, event.CONFIRM_CANCEL): state.CANCELED,
        # The task was faster than the cancel, or failed or vanished under it: what was wanted has happened.
        (state.CANCELING, event.FINISH): state.CANCELED,
        (state.CANCELING, event.FAIL): state.CANCELED,
    }
    for alive in (state.CREATED, state.SCHEDULED, state.DEPLOYING, state.INITIALIZING, state.RUNNING):
        table[alive, event.FAIL] = state.FAILED
    return table


TRANSITIONS = _transitions()
"""Every legal step; what is not here is illegal."""


TERMINAL_STATES = ends_of(TRANSITIONS)
"""The states in which an attempt ends."""


class ExecutionLifecycle(Lifecycle[ExecutionState, ExecutionEvent]):
    """One attempt's state with its last events."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name, TRANSITIONS, ExecutionState.CREATED)
