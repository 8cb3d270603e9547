# SPDX-License-Identifier: Apache-2.0
"""What the sending side asks of the partitions that it serves: views of subpartitions, and where views come from.

Everything here is called on the event loop's thread, and nothing may block. Payload memory stays valid and unchanged
until `recycle` is called. Listeners may be called at any time, also within `request_view` and `poll`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.shuffle.ids import PartitionId


@dataclass(frozen=True, slots=True)
class BufferOrEvent:
    """What a view gives out. `recycle` is called once the bytes were fully handed to the transport, or dropped."""

    data_type: int
    payload: memoryview | bytes
    recycle: Callable[[], None] | None
    subpartition: int


class SubpartitionView(Protocol):
    """A reader's view of one or more subpartitions. Calls come from the event loop only."""

    @property
    def backlog(self) -> int:
        """Data buffers that wait and could be sent."""

    @property
    def is_available(self) -> bool:
        """Whether `poll` would give something."""

    @property
    def next_is_event(self) -> bool:
        """Whether what `poll` gives next is an event, which costs no credit."""

    @property
    def failure(self) -> BaseException | None:
        """Why the view ended before its end, if it did. The listener is called when this is set."""

    def poll(self) -> BufferOrEvent | None:
        """Take the next buffer or event."""

    def on_credit(self, buffers: int) -> None:
        """The consumer has granted so many buffers more (at the view's opening: those it begins with)."""

    def resume(self) -> None:
        """The alignment after an aligned barrier is over."""

    def on_task_event(self, payload: bytes) -> None:
        """An event from the consumer."""

    def new_buffer_size(self, size: int) -> None:
        """Fill buffers up to this size."""

    def acknowledge(self, last_seq: int) -> None:
        """The consumer has processed everything up to the last message sent."""

    def release(self) -> None:
        """Nobody reads this view any more. Called once."""


class PartitionProvider(Protocol):
    """Where views come from: the partitions of this environment."""

    def request_view(
        self, partition: PartitionId, first: int, last: int, listener: Callable[[], None]
    ) -> SubpartitionView:
        """The view of these subpartitions (both ends inclusive); `listener` is called when it becomes available.

        Raises a typed PartitionError or StaleError. After PartitionNotProducedError the listener is kept and called
        once when the partition is registered: the request is then made again. A listener whose `is_active` is False
        need not be kept.
        """
