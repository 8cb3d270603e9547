# SPDX-License-Identifier: Apache-2.0
"""What a reader of a subpartition sees, whatever kind of partition is behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.buffer import BufferSlice, DataType

DataListener = Callable[[], None]
"""Called when a view has become worth looking at: something to poll, or a failure to pass on."""


@dataclass(frozen=True, slots=True)
class BufferOrEvent:
    """One thing out of a subpartition: a slice of a segment, data read from a file, or an event's bytes.

    Whoever polls a slice owns one reference of its segment and must recycle it once; data from a file brings its
    own `recycle`, to be called once when nobody needs the bytes any more. A slice of a hybrid partition, which is
    only lent, brings one too: it is called behind the reference's release.
    """

    data_type: int
    payload: BufferSlice | bytes
    subpartition: int
    recycle: Callable[[], None] | None = field(default=None, compare=False)

    @property
    def is_buffer(self) -> bool:
        """Whether it is data, which costs a credit and holds memory."""
        return self.data_type == DataType.DATA


class SubpartitionView(Protocol):
    """The reading end of one subpartition. After `release` it gives nothing and stays silent."""

    @property
    def backlog(self) -> int:
        """Data buffers that wait; 0 while an event blocks the view, so that no credit is promised for nothing."""

    @property
    def next_is_event(self) -> bool:
        """Whether `poll` would give an event, which needs no credit."""

    @property
    def is_available(self) -> bool:
        """Whether `poll` would give something, or there is a failure to pass on."""

    @property
    def failure(self) -> BaseException | None:
        """Why there will be nothing more, where that is not the reader's own doing."""

    def poll(self) -> BufferOrEvent | None:
        """The next thing, or None: nothing there now, blocked, failed or released."""

    def on_credit(self, buffers: int) -> None:
        """The reader can take so many buffers more: a view that must read them first need read no further."""

    def resume(self) -> None:
        """Go on after an event that blocks its sender; ProtocolError when nothing blocks."""

    def on_task_event(self, payload: bytes) -> None:
        """An event from the reader back to the producer."""

    def new_buffer_size(self, size: int) -> None:
        """The reader wants buffers of this size from now on."""

    def acknowledge(self, last_seq: int) -> None:
        """The reader has processed everything up to this sequence number (the first thing polled is 0)."""

    def release(self) -> None:
        """The reader is done, for good or bad; idempotent. What is queued is recycled."""
