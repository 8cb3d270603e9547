# SPDX-License-Identifier: Apache-2.0
"""The states of an attached task, as its environment knows them.

Rules:

- The task of a DataFrame's partition works on the attempt that it is named by, and has *reported* when that has
  ended. A worker is named by itself: when an attempt has ended it is *between* two of them, and is lost with its own
  name if it goes then.
- A task may ask again at any time, and what was said to it before is not for what it does next.
- Cancels may cross with its reports: where there is nothing to stop they change nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.lifecycle.table import Table


class TaskState(Enum):
    """The states of an attached task."""

    ATTACHED = "ATTACHED"
    """It has asked for nothing."""
    ASKING = "ASKING"
    WORKING = "WORKING"
    CANCELED = "CANCELED"
    """It was told to stop."""
    BETWEEN = "BETWEEN"
    REPORTED = "REPORTED"
    """Nothing is lost with it: its attempt has ended, or there is nothing for it to do."""
    GONE = "GONE"

    @property
    def is_stopped(self) -> bool:
        """True if the rows that it may still want to write are not needed."""
        return self in (TaskState.CANCELED, TaskState.BETWEEN, TaskState.REPORTED, TaskState.GONE)


class AttachedTaskEvent(Enum):
    """The events of an attached task."""

    ASK = "ask"
    DEPLOY = "deploy"
    DISMISS = "dismiss"
    CANCEL = "cancel"
    FINISH = "finish"
    """A worker's attempt has ended."""
    REPORT = "report"
    """The attempt that it is named by has ended."""
    GO = "go"


_HERE = tuple(state for state in TaskState if state is not TaskState.GONE)
_AT_WORK = (TaskState.ATTACHED, TaskState.ASKING, TaskState.WORKING, TaskState.CANCELED)
_DONE = (TaskState.BETWEEN, TaskState.REPORTED)

TASK_TABLE: Final[Table[TaskState, AttachedTaskEvent]] = {
    **{(state, AttachedTaskEvent.ASK): TaskState.ASKING for state in _HERE},
    (TaskState.ASKING, AttachedTaskEvent.DEPLOY): TaskState.WORKING,
    (TaskState.WORKING, AttachedTaskEvent.DEPLOY): TaskState.WORKING,
    (TaskState.CANCELED, AttachedTaskEvent.DEPLOY): TaskState.CANCELED,
    **{(state, AttachedTaskEvent.DISMISS): TaskState.REPORTED for state in _AT_WORK},
    **{(state, AttachedTaskEvent.CANCEL): TaskState.CANCELED for state in _AT_WORK},
    **{(state, AttachedTaskEvent.CANCEL): state for state in _DONE},
    **{(state, AttachedTaskEvent.FINISH): TaskState.BETWEEN for state in _HERE},
    **{(state, AttachedTaskEvent.REPORT): TaskState.REPORTED for state in _HERE},
    **{(state, AttachedTaskEvent.GO): TaskState.GONE for state in _HERE},
    **{(TaskState.GONE, event): TaskState.GONE for event in AttachedTaskEvent},
}
