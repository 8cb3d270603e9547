# SPDX-License-Identifier: Apache-2.0
"""The lives of the two ends of a channel, as tables."""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.lifecycle.table import Table


class ReaderState(Enum):
    """The sending end: one reader of a subpartition view."""

    WAITING = "WAITING"
    """The partition is not produced yet."""
    OPENING = "OPENING"
    """Its view is being asked for, which may call back."""
    READING = "READING"
    BLOCKED = "BLOCKED"
    """An aligned barrier was sent; nothing more until the receiver resumes."""
    RELEASED = "RELEASED"


class ReaderEvent(Enum):
    """The events that move a reader."""

    OPEN = "asked for"
    MISS = "not produced yet"
    PRODUCED = "produced"
    BARRIER = "barrier sent"
    RESUME = "resumed"
    FAIL = "failed"
    CANCEL = "cancelled"


class ChannelState(Enum):
    """The receiving end: one remote input channel."""

    OPEN = "OPEN"
    BLOCKED = "BLOCKED"
    """An aligned barrier was received; the consumer resumes when all channels have theirs."""
    FAILED = "FAILED"
    """The sink has the error; buffers come back by `release`."""
    RELEASED = "RELEASED"


class ChannelEvent(Enum):
    """The events that move a channel."""

    BARRIER = "barrier received"
    RESUME = "resumed"
    FAIL = "failed"
    RELEASE = "released"


READER_TABLE: Final[Table[ReaderState, ReaderEvent]] = {
    (ReaderState.WAITING, ReaderEvent.OPEN): ReaderState.OPENING,
    (ReaderState.OPENING, ReaderEvent.MISS): ReaderState.WAITING,
    (ReaderState.OPENING, ReaderEvent.PRODUCED): ReaderState.READING,
    (ReaderState.READING, ReaderEvent.BARRIER): ReaderState.BLOCKED,
    (ReaderState.BLOCKED, ReaderEvent.RESUME): ReaderState.READING,
    **{
        (state, event): ReaderState.RELEASED
        for state in (ReaderState.WAITING, ReaderState.OPENING, ReaderState.READING, ReaderState.BLOCKED)
        for event in (ReaderEvent.FAIL, ReaderEvent.CANCEL)
    },
}

CHANNEL_TABLE: Final[Table[ChannelState, ChannelEvent]] = {
    (ChannelState.OPEN, ChannelEvent.BARRIER): ChannelState.BLOCKED,
    (ChannelState.BLOCKED, ChannelEvent.RESUME): ChannelState.OPEN,
    (ChannelState.OPEN, ChannelEvent.FAIL): ChannelState.FAILED,
    (ChannelState.BLOCKED, ChannelEvent.FAIL): ChannelState.FAILED,
    (ChannelState.OPEN, ChannelEvent.RELEASE): ChannelState.RELEASED,
    (ChannelState.BLOCKED, ChannelEvent.RELEASE): ChannelState.RELEASED,
    (ChannelState.FAILED, ChannelEvent.RELEASE): ChannelState.RELEASED,
}
