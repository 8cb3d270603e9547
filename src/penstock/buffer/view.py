# SPDX-License-Identifier: Apache-2.0
"""The view that a reader has of a subpartition, whatever is behind it: a queue, files, both, or a connection.

Rules:

- Every view has the six members of `SubpartitionView`; that is all that the gate of a task on this host needs.
- A connection that serves a reader elsewhere needs to know what waits before it may be sent, and says what its
  reader can take: a `ServableView`.
- No caller asks for the type of a view. One that has no use for a call gets it all the same, and its docstring says
  why it does nothing then.
- A view is used on one thread, and never blocks. After `release` it gives nothing and stays silent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.buffer.data_types import BufferSlice, DataType

DataListener = Callable[[], None]
"""Called when a view has become worth looking at: something to poll, or a failure to pass on."""


@dataclass(frozen=True, slots=True)
class BufferOrEvent:
    """One thing out of a subpartition: a slice of a segment, data read from a file, or an event's bytes.

    A reader that polls a slice owns one reference of its segment and must recycle it once; data from a file brings
    its own `recycle`, to be called once when it needs the bytes no more. A slice of a stored partition, which is only
    leased, brings one too: it is called after the reference's release.
    """

    data_type: int
    payload: BufferSlice | bytes
    subpartition: int
    recycle: Callable[[], None] | None = field(default=None, compare=False)

    @property
    def is_buffer(self) -> bool:
        """True if it is data, which costs a credit and holds memory."""
        return self.data_type == DataType.DATA


class SubpartitionView(Protocol):
    """The reading end of a subpartition, or of neighbouring ones."""

    @property
    def is_available(self) -> bool:
        """True if `poll` would give something, or there is a failure to pass on."""

    @property
    def failure(self) -> BaseException | None:
        """Why there will be nothing more, where that is not the reader's own doing. Its coming calls the listener."""

    @property
    def next_is_event(self) -> bool:
        """True if `poll` would give an event, which costs its reader neither credit nor room."""

    def poll(self) -> BufferOrEvent | None:
        """The next thing, or None: nothing there now, blocked, failed or released."""

    def resume(self) -> None:
        """Go on after an event that blocks, such as an aligned barrier; ProtocolError when nothing blocks."""

    def release(self) -> None:
        """The reader is done, for good or bad; idempotent. Queued items are recycled."""


class ServableView(SubpartitionView, Protocol):
    """A view whose data can be sent elsewhere: it says what that takes."""

    @property
    def backlog(self) -> int:
        """Data buffers that wait; 0 while an event blocks the view, so that no credit is promised for nothing."""

    def on_credit(self, buffers: int) -> None:
        """The reader can take so many buffers more (at the view's opening: those it begins with).

        A view that reads its data from somewhere first does so as far ahead as that goes.
        """
