# SPDX-License-Identifier: Apache-2.0
"""The messages of a writer: batches as they are, or cut to a size that a slice of a stream may hold; and their sums.

A stream's message is at most `MESSAGE_BYTES`, or a quarter of a segment where that is less, unless one row alone is
larger. Sizes are estimated before they are made: exactly where every column has a fixed width.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.link.frames import ALL
from penstock.record.codec import BatchCodec
from penstock.record.framing import ALIGNMENT, HEADER, Message, frame_message
from penstock.shuffle.events import EndOfPartition
from penstock.shuffle.sums import Sums, sum_of

MESSAGE_BYTES = 128 << 10
_PART_OF_SEGMENT = 4


class MessageMaker:
    """The messages of one schema."""

    def __init__(self, schema: pa.Schema, segment_size: int, *, verify: bool) -> None:
        self.segment_size = segment_size
        self.limit = min(MESSAGE_BYTES, segment_size // _PART_OF_SEGMENT)
        """Bytes of a message with its header, about."""
        self._codec = BatchCodec(schema)
        self._size = PayloadFormat(schema).size
        self._verify = verify

    def whole(self, batch: pa.RecordBatch) -> Message:
        """The batch as one message; raises SchemaError for a batch of another schema."""
        return frame_message(self._codec.encode(batch), self._verify)

    def size(self, batch: pa.RecordBatch) -> int:
        """About the bytes of the batch as one message."""
        return HEADER.size + self._size(batch)

    def cut(self, batch: pa.RecordBatch, room: int) -> tuple[int, Message]:
        """The message of as many rows from the front as fit; it is larger than `room` only where one row is."""
        rows = batch.num_rows
        size, wanted = self.size(batch), min(self.limit, room)
        if size > wanted:
            rows = max(1, rows * wanted // size)
        while True:
            part = batch if rows == batch.num_rows else batch.slice(0, rows)
            message = self.whole(part)
            total = framed(message)
            if total <= room or rows == 1:
                return rows, message
            rows = max(1, min(rows - 1, rows * room // total))


def framed(message: Message) -> int:
    """Bytes of a message with its header and what fills it up."""
    return HEADER.size + message.length + -message.length % ALIGNMENT


class WriterSums:
    """The sums of every subpartition since the first message."""

    def __init__(self, subpartitions: int) -> None:
        self._own = [Sums() for _ in range(subpartitions)]
        self._everywhere = Sums()
        self._messages = [0] * subpartitions
        self._broadcasts = 0

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return len(self._own)

    @property
    def positions(self) -> list[int]:
        """Messages of each subpartition."""
        return [own + self._broadcasts for own in self._messages]

    def add(self, target: int, rows: int, message: Message) -> None:
        """A message for one subpartition, or for `ALL`."""
        if target == ALL:
            self._everywhere.add(rows, message.length, message.checksum)
            self._broadcasts += 1
        else:
            self._own[target].add(rows, message.length, message.checksum)
            self._messages[target] += 1

    def ends(self) -> list[EndOfPartition]:
        """The sums of each subpartition so far."""
        everywhere = self._everywhere.end_of_partition()
        return [sum_of((own.end_of_partition(), everywhere)) for own in self._own]
