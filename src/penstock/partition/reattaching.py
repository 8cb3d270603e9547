# SPDX-License-Identifier: Apache-2.0
"""The subpartition of the approximate kind: its reader may go, and another one goes on with what comes then.

Rules:

- While it has no reader all that is added is dropped, so its producer never waits. The buffers that were queued when
  the reader left are dropped too.
- A reader that comes is told that it has come in the middle (`Reattached`), then gets what is sent from then on. The
  rest of a message whose beginning was dropped is dropped as well.
- The words that end the data are kept: a reader that comes later hears them again.
- It also hears which epoch ended last: its barrier was dropped, or is on its way to a reader that is gone, and the
  checkpoint would wait for it for ever.
- A second reader takes the place of the first, which is of an earlier attempt whose end was not noticed yet.
- Nothing is counted here: the writer's sums go on, so the next end of an epoch says how many rows were dropped.
"""

from __future__ import annotations

from typing import Protocol

from penstock.buffer import BufferSlice, DataType
from penstock.buffer.view import BufferOrEvent, DataListener
from penstock.partition.subpartition import DETACHED, PipelinedSubpartition, PipelinedView, SubpartitionEvent
from penstock.shuffle.events import Reattached, barrier_of, encode_event, is_closing


class ReattachableParent(Protocol):
    """The partition, as these subpartitions see it."""

    @property
    def name(self) -> str:
        """The partition's name in messages."""

    @property
    def host(self) -> str:
        """The host it is on, for messages."""

    def on_consumed(self, buffers: list[BufferSlice]) -> None:
        """Never called: another reader may come."""

    def on_detached(self, buffers: list[BufferSlice]) -> None:
        """The reader has left; the buffers are to be recycled."""


class _WholeMessages:
    """The slices of a message whose beginning was dropped are dropped too, until another message begins."""

    __slots__ = ("_is_amid",)

    def __init__(self) -> None:
        self._is_amid = False

    def cut(self) -> None:
        """The slices up to here were dropped, perhaps in the middle of a message."""
        self._is_amid = True

    def takes(self, buffer: BufferSlice) -> bool:
        """Tell whether this slice is of a message that is there from its beginning on."""
        self._is_amid = self._is_amid and buffer.continues
        return not self._is_amid


class ReattachableSubpartition(PipelinedSubpartition):
    """One subpartition whose readers may follow each other."""

    __slots__ = ("_barrier", "_closing", "_messages", "_partition")

    def __init__(self, index: int, parent: ReattachableParent) -> None:
        super().__init__(index, parent)
        self._partition = parent
        self._closing: list[bytes] = []
        """The words that end the data, as far as they were said."""
        self._barrier = b""
        """The barrier of the last epoch that has ended."""
        self._messages = _WholeMessages()

    def add(self, buffer: BufferSlice) -> bool:
        """Queue a slice. False when it will not be read: then it is the caller's to recycle."""
        return self._messages.takes(buffer) and super().add(buffer)

    def add_event(self, payload: bytes, data_type: int) -> bool:
        """As `PipelinedSubpartition.add_event`."""
        if is_closing(payload):
            self._closing.append(payload)
        self._barrier = barrier_of(payload) or self._barrier
        return super().add_event(payload, data_type)

    def create_view(self, listener: DataListener) -> PipelinedView:
        """The view of the reader that comes now; raises the PartitionError of one that has ended."""
        if self._view is None or self.is_ended:
            return super().create_view(listener)
        if self.state not in DETACHED:
            self._view.silence()
            self.consume()
        self._lifecycle.move(SubpartitionEvent.ATTACH)
        self._messages.cut()
        anew = encode_event(Reattached(self._barrier))
        self._queue.extend(BufferOrEvent(DataType.EVENT, payload, self.index) for payload in (anew, *self._closing))
        self._view = PipelinedView(self, listener)
        return self._view

    def consume(self) -> None:
        """The reader has left; called by its view."""
        if not self.is_ended and self.state not in DETACHED:
            self._lifecycle.move(SubpartitionEvent.DETACH)
            self._partition.on_detached(self._drain())
