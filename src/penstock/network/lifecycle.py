# SPDX-License-Identifier: Apache-2.0
"""The lifecycles of the two ends of a channel, as tables that can be printed.

Rules. All transitions are here. A pair that is not in the table is illegal and raises with the object's last events.
`str(Lifecycle)` and `table_text` are for people; nothing parses them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Final


class ReaderState(Enum):
    """The sending end: one reader of a subpartition view."""

    WAITING = "WAITING"
    """The partition is not produced yet."""
    READING = "READING"
    BLOCKED = "BLOCKED"
    """An aligned barrier was sent; nothing more until the receiver resumes."""
    RELEASED = "RELEASED"


class ChannelState(Enum):
    """The receiving end: one remote input channel."""

    OPEN = "OPEN"
    BLOCKED = "BLOCKED"
    """An aligned barrier was received; the consumer resumes when all channels have theirs."""
    FAILED = "FAILED"
    """The sink has the error; buffers come back by `release`."""
    RELEASED = "RELEASED"


Table = Mapping[tuple[Enum, str], Enum]

READER_TABLE: Final[Table] = {
    (ReaderState.WAITING, "produced"): ReaderState.READING,
    (ReaderState.WAITING, "failed"): ReaderState.RELEASED,
    (ReaderState.WAITING, "cancelled"): ReaderState.RELEASED,
    (ReaderState.READING, "barrier sent"): ReaderState.BLOCKED,
    (ReaderState.READING, "failed"): ReaderState.RELEASED,
    (ReaderState.READING, "cancelled"): ReaderState.RELEASED,
    (ReaderState.BLOCKED, "resumed"): ReaderState.READING,
    (ReaderState.BLOCKED, "failed"): ReaderState.RELEASED,
    (ReaderState.BLOCKED, "cancelled"): ReaderState.RELEASED,
}

CHANNEL_TABLE: Final[Table] = {
    (ChannelState.OPEN, "barrier received"): ChannelState.BLOCKED,
    (ChannelState.OPEN, "failed"): ChannelState.FAILED,
    (ChannelState.OPEN, "released"): ChannelState.RELEASED,
    (ChannelState.BLOCKED, "resumed"): ChannelState.OPEN,
    (ChannelState.BLOCKED, "failed"): ChannelState.FAILED,
    (ChannelState.BLOCKED, "released"): ChannelState.RELEASED,
    (ChannelState.FAILED, "released"): ChannelState.RELEASED,
}


class IllegalTransitionError(RuntimeError):
    """An event that the lifecycle does not allow in this state: a fault on our side."""


class Lifecycle:
    """The current state of one object and its last few events."""

    __slots__ = ("_events", "_name", "_table", "state")

    def __init__(self, name: str, table: Table, state: Enum) -> None:
        self._name = name
        self._table = table
        self.state = state
        self._events: deque[str] = deque(maxlen=8)

    def allows(self, event: str) -> bool:
        """Whether the event is legal now."""
        return (self.state, event) in self._table

    def move(self, event: str) -> None:
        """Take one step; raises IllegalTransitionError."""
        successor = self._table.get((self.state, event))
        if successor is None:
            story = ", ".join(self._events) or "none"
            raise IllegalTransitionError(
                f"{self._name}: {event!r} in state {self.state.name}; events so far: {story}"
            )
        self._events.append(event)
        self.state = successor

    def __str__(self) -> str:
        return f"{self._name} {self.state.name} ({', '.join(self._events)})"


def table_text(table: Table) -> str:
    """The table as text, one transition a line."""
    return "\n".join(f"{state.name:9} {event:17} -> {successor.name}" for (state, event), successor in table.items())
