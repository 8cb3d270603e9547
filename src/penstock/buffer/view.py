# SPDX-License-Identifier: Apache-2.0
"""The view that a reader has of a subpartition, whatever is behind it: a queue, files, both, or a connection.

Rules:

- Every view has the five members of `SubpartitionView`; that is all that the gate of a task on this host needs.
- A connection that serves a reader elsewhere needs to know what waits before it may be sent: a `ServableView`.
- A call that only some views answer is a capability of its own (`CreditListener`, `Resumable`). A reader asks with
  `isinstance` whether a view has it, and does without if it has not; no view has a member that does nothing. Asking
  takes microseconds: when a view is opened, or for what is rare, not for every buffer.
- A view is used on one thread, and never blocks. After `release` it gives nothing and stays silent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from penstock.buffer.data_types import BufferSlice, DataType

DataListener = Callable[[], None]
"""Called when a view has become worth looking at: something to poll, or a failure to pass on."""


@dataclass(frozen=True, slots=True)
class BufferOrEvent:
    """One thing out of a subpartition: a slice of a segment, data read from a file, or an event's bytes.

    A reader that polls a slice owns one reference of its segment and must recycle it once; data from a file brings
    its own `recycle`, to be called once when nobody needs the bytes any more. A slice of a stored partition, which is
    only leased, brings one too: it is called after the reference's release.
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

    def release(self) -> None:
        """The reader is done, for good or bad; idempotent. Queued items are recycled."""


class ServableView(SubpartitionView, Protocol):
    """A view whose data can be sent elsewhere: it says what that takes."""

    @property
    def backlog(self) -> int:
        """Data buffers that wait; 0 while an event blocks the view, so that no credit is promised for nothing."""


@runtime_checkable
class CreditListener(Protocol):
    """A view that must read its data from somewhere first, and reads as far ahead as its reader has credit."""

    def on_credit(self, buffers: int) -> None:
        """The reader can take so many buffers more (at the view's opening: those it begins with)."""


@runtime_checkable
class Resumable(Protocol):
    """A view that an event may block at its sender.

    Extents of a hybrid partition do that today; an aligned barrier does, and is sent by streaming queries only.
    """

    def resume(self) -> None:
        """Go on after an event that blocks; ProtocolError when nothing blocks."""
