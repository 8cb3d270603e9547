# SPDX-License-Identifier: Apache-2.0
"""The batches of one channel, out of extents that have come as bytes: each is checked before any of it is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from penstock.buffer.arrow import PayloadFormat
from penstock.partition.file_header import damaged
from penstock.partition.file_input import FileOrigin
from penstock.partition.sort_buffer import joined
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler
from penstock.shuffle import EndOfData, EndOfPartition, Received

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 128 << 10
"""Batches are joined up to this many bytes: with many subpartitions messages are small."""


class FetchedExtent(NamedTuple):
    """An extent of a data file, its xxh3_64, and the times that its rows are meant."""

    offset: int
    length: int
    checksum: int
    times: int


class ExtentBatches:
    """Channel `number` of a partition whose bytes are those of the file at `path`."""

    def __init__(self, number: int, schema: pa.Schema, origin: FileOrigin, path: str) -> None:
        self._number = number
        self._origin = origin
        self._path = path
        self._size = PayloadFormat(schema).size
        self._sums = CompletenessCounter()
        self._assembler = MessageAssembler(BatchCodec(schema), self._sums)

    def read(self, extents: Iterable[FetchedExtent], begin: int, data: memoryview) -> Iterator[Received]:
        """The batches of neighbouring extents, the bytes of which lie in the file from `begin` on.

        IncompleteDataError where they are not as they were written.
        """
        for batch in joined(self._batches_of(extents, begin, data), _BATCH_BYTES):
            yield Received(self._number, batch)

    def closing(self, expected: EndOfPartition, range_: str) -> Iterator[Received]:
        """The events at the end of a range; IncompleteDataError where other rows have come than were written."""
        found = self._sums.end_of_partition()
        if found != expected:
            raise damaged(self._origin, self._path, f"{range_}: {found}, not {expected}")
        yield Received(self._number, event=EndOfData())
        yield Received(self._number, event=expected)

    def _batches_of(
        self, extents: Iterable[FetchedExtent], begin: int, data: memoryview
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        for offset, length, checksum, times in extents:
            found = data[offset - begin : offset - begin + length]
            if len(found) < length or xxhash.xxh3_64_intdigest(found) != checksum:
                what = f"the checksum of the extent at {offset} does not match"
                raise damaged(self._origin, self._path, what)
            for _ in range(times):
                for batch in self._assembler.feed(found, is_kept=True):
                    yield batch, self._size(batch)
