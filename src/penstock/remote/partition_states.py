# SPDX-License-Identifier: Apache-2.0
"""The life of a partition as the manager knows it, and what a reader is told in each state. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from penstock.lifecycle.table import Lifecycle, Table


class RemoteState(StrEnum):
    """The states of a partition."""

    NAMED = "named"
    """The driver has named it, and no task writes it yet."""
    OPEN = "open"
    COMPLETE = "complete"
    FAILED = "failed"
    LOST = "lost"
    RELEASED = "released"


class RemoteEvent(StrEnum):
    """The events of a partition."""

    BEGIN = "begin"
    FINISH = "finish"
    FAIL = "fail"
    LOSE = "lose"
    RELEASE = "release"


REMOTE_TABLE: Final[Table[RemoteState, RemoteEvent]] = {
    (RemoteState.NAMED, RemoteEvent.BEGIN): RemoteState.OPEN,
    (RemoteState.OPEN, RemoteEvent.BEGIN): RemoteState.OPEN,
    (RemoteState.OPEN, RemoteEvent.FINISH): RemoteState.COMPLETE,
    (RemoteState.OPEN, RemoteEvent.FAIL): RemoteState.FAILED,
    (RemoteState.NAMED, RemoteEvent.FAIL): RemoteState.FAILED,
    (RemoteState.NAMED, RemoteEvent.LOSE): RemoteState.LOST,
    (RemoteState.OPEN, RemoteEvent.LOSE): RemoteState.LOST,
    (RemoteState.COMPLETE, RemoteEvent.LOSE): RemoteState.LOST,
    **{(state, RemoteEvent.RELEASE): RemoteState.RELEASED for state in RemoteState},
}
"""A second writer may begin while none has finished; the first that finishes has it. Any other step is stale."""

HELD: Final = frozenset({RemoteState.OPEN, RemoteState.COMPLETE})
"""The states in which workers hold something."""


def partition_life(name: str) -> Lifecycle[RemoteState, RemoteEvent]:
    """The life of a new partition."""
    return Lifecycle(f"partition {name}", REMOTE_TABLE, RemoteState.NAMED)
