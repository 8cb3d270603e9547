# SPDX-License-Identifier: Apache-2.0
"""The demands of the sending side on the partitions that it serves: views, and the bytes to send of an item.

Everything here is called on the event loop's thread, and nothing may block. Listeners may be called at any time, also
within `request_view` and `poll`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.buffer.view import BufferOrEvent, ServableView
from penstock.shuffle.ids import PartitionId


class Outgoing(NamedTuple):
    """The bytes of an item, valid and unchanged until `recycle` is called: when they were sent, or dropped."""

    payload: memoryview | bytes
    recycle: Callable[[], None] | None


class PartitionProvider(Protocol):
    """The partitions of this environment."""

    def request_view(
        self, partition: PartitionId, first: int, last: int, listener: Callable[[], None]
    ) -> ServableView:
        """The view of these subpartitions (both ends inclusive); `listener` is called when it becomes available.

        Raises a typed PartitionError or StaleError. After PartitionNotProducedError the listener is kept and called
        once when the partition is registered: the request is then made again.
        """

    def outgoing(self, item: BufferOrEvent) -> Outgoing:
        """The buffers or bytes to send of an item that one of these views gave."""
