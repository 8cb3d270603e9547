# SPDX-License-Identifier: Apache-2.0
"""Gives the rows of few subpartitions to a sink as they come, in no region: nothing is ordered.

Rules: the rows of a split for a subpartition are a message, which the sink puts beside others of the same one. Long
ones become several messages. Short ones are copied, and joined until they are long: a message has a head, and a
reader has work with each. So held are, for each subpartition, the bytes of a message and what the sink has open. It
is used as a `RegionWriter` is.

When not to use it: many subpartitions. Open extents would need more memory than a region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.partition.extents import BROADCAST, EXTENT_BYTES
from penstock.partition.file_output import FileOptions
from penstock.partition.region_writer import MessageSink
from penstock.partition.row_checks import check_numbers, check_schema
from penstock.partition.sort_buffer import BLOCK_BYTES as MESSAGE_BYTES
from penstock.partition.sort_buffer import SortBuffer, joined
from penstock.shuffle import EndOfPartition
from penstock.shuffle.splits import Split

_SHORT = 32 << 10
"""Bytes; rows with fewer are joined."""
_LONG = 4 * MESSAGE_BYTES
"""Bytes; rows with more are cut: a message should fit an extent, or a block."""


class ArrivalWriter:
    """Writes one partition. Life: any number of writes, then `finish`, or `abort`."""

    holds_batches = False
    """No: rows are encoded, or copied, as they are written."""

    def __init__(
        self, sink: MessageSink, name: str, schema: pa.Schema, subpartitions: int, options: FileOptions
    ) -> None:
        self.gather_bytes = min(options.sort_buffer, subpartitions * MESSAGE_BYTES)
        """The number of bytes that are best split at once: so each subpartition gets long messages."""
        self._sink = sink
        self._name = name
        self._schema = schema
        self.subpartitions = subpartitions
        self._payloads = PayloadFormat(schema, options.compression)
        self._plain = PayloadFormat(schema)
        self._short: dict[int, SortBuffer] = {}
        """The short buffers by target: a subpartition, or all."""

    @staticmethod
    def fits(subpartitions: int, options: FileOptions) -> bool:
        """Tell whether what is open of so many takes no more than half the memory of a region."""
        return 2 * subpartitions * EXTENT_BYTES <= options.sort_buffer

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Add a batch to one subpartition. ValueError for one of another schema, or a number that is none."""
        self.write_split(Split.whole(batch, subpartition))

    def write_split(self, split: Split) -> None:
        """Add what one split gives each subpartition. Errors as of `write`."""
        self._check(split.source, *((split.numbers.min(), split.numbers.max()) if len(split) else (0, 0)))
        with self._given_up_where_it_fails():
            self._append_short((BROADCAST,))
            for subpartition, batch in split:
                self._add(subpartition, batch)
            self._sink.give()

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Add a batch to all subpartitions. Errors as of `write`."""
        self._check(batch, 0, 0)
        with self._given_up_where_it_fails():
            self._append_short(range(self.subpartitions))
            self._add(BROADCAST, batch)
            self._sink.give()

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Give out what is held; returns what each subpartition holds. ValueError if it is over."""
        self._check_open()
        with self._given_up_where_it_fails():
            self._append_short(tuple(self._short))
            self._sink.end()
        return self._sink.finish()

    def abort(self) -> None:
        """Give out no more; idempotent."""
        self._short = {}
        self._sink.abort()

    def _check_open(self) -> None:
        if not self._sink.is_open:
            raise ValueError(f"{self._name} is finished or given up")

    def _check(self, batch: pa.RecordBatch, lowest: int, highest: int) -> None:
        self._check_open()
        check_numbers(lowest, highest, self.subpartitions, self._name)
        check_schema(batch, self._schema, self._name)

    @contextmanager
    def _given_up_where_it_fails(self) -> Iterator[None]:
        """Half a split is never committed."""
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def _add(self, target: int, batch: pa.RecordBatch) -> None:
        nbytes = self._payloads.size(batch)
        if nbytes < _SHORT:
            short = self._short.setdefault(target, SortBuffer(MESSAGE_BYTES))
            if not short.fits(nbytes, is_broadcast=False):
                self._append_short((target,))
            short.add(self._plain.decode(self._plain.encode(batch)), nbytes, target, is_broadcast=False)
            return
        self._append_short((target,))
        for part in self._cut(batch, nbytes):
            self._append(target, part)

    def _append_short(self, targets: Iterable[int]) -> None:
        """Append the short batches that these have, joined."""
        for target in targets:
            if (short := self._short.get(target)) is not None:
                for _, held in short.take():
                    for batch in joined(held, MESSAGE_BYTES):
                        self._append(target, batch)

    def _append(self, target: int, batch: pa.RecordBatch) -> None:
        self._sink.append(target, batch.num_rows, memoryview(self._payloads.encode(batch)))

    def _cut(self, batch: pa.RecordBatch, nbytes: int) -> Iterator[pa.RecordBatch]:
        """Halves of halves, as long as they are too long: rows are not alike, and short ones stay together.

        Rows that share bytes, as those of dictionaries and views do, stay together too: each half would have all of
        these bytes, so both would take much more than the whole.
        """
        if nbytes > _LONG and batch.num_rows > 1:
            half = batch.num_rows // 2
            parts = [(part, self._payloads.size(part)) for part in (batch.slice(0, half), batch.slice(half))]
            if sum(size for _, size in parts) * 4 < nbytes * 5:
                for part, size in parts:
                    yield from self._cut(part, size)
                return
        yield batch
