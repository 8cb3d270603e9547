# SPDX-License-Identifier: Apache-2.0
"""Orders the rows of a blocking partition by subpartition, and gives them out in regions, wherever these go.

Rules:

- Batches are collected until they are `sort_buffer` bytes, ordered by subpartition, and given to the sink as one
  region. So what is held does not grow with the number of subpartitions, and what is given out is long.
- Within a subpartition batches keep the order of writing. A broadcast batch is given once; where batches for one and
  batches for all take turns, each turn is a region, because only that keeps the order.
- Held are at most `sort_buffer` bytes and the batch in hand.
- Splits of rows of a fixed width, not compressed, are copied into that memory (`region_rows`), and cost least when
  small. Of other rows batches are held: slices keep their parents alive, all of them until the region is written;
  a split that fills half the buffer by itself is a region at once and not held at all. So a caller that gathers
  `gather_bytes` before it splits needs no more memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.buffer.fixed_payload import FixedPayloads
from penstock.partition.block_assembly import Payload
from penstock.partition.extents import BROADCAST
from penstock.partition.file_output import FileOptions
from penstock.partition.region_rows import RegionRows
from penstock.partition.row_checks import check_numbers, check_schema
from penstock.partition.sort_buffer import BLOCK_BYTES, SortBuffer, gather_bytes, joined, small_gather_bytes
from penstock.shuffle import EndOfPartition
from penstock.shuffle.splits import Split


class MessageSink(Protocol):
    """The place that messages are given to: a file, or a connection."""

    @property
    def is_open(self) -> bool:
        """True if it can be written to."""

    def begin(self, nbytes: int) -> None:
        """A region of about so many bytes comes. PenstockError where there is no room for it."""

    def append(self, target: int, rows: int, payload: memoryview) -> None:
        """The payload of a batch for a subpartition, or for all (`BROADCAST`); ascending in a region."""

    def give(self) -> None:
        """The messages so far may go, as far as they fill something."""

    def end(self) -> None:
        """The region is complete: all may go."""

    def finish(self) -> tuple[EndOfPartition, ...]:
        """No region follows; what each subpartition holds."""

    def abort(self) -> None:
        """Give up; idempotent, and without effect after `finish`."""


class RegionWriter:
    """Writes one partition. Life: any number of `write` and `broadcast`, then `finish`, or `abort`."""

    def __init__(
        self, sink: MessageSink, name: str, schema: pa.Schema, subpartitions: int, options: FileOptions
    ) -> None:
        self.subpartitions = subpartitions
        self._sink = sink
        self._name = name
        self._schema = schema
        self._payloads = PayloadFormat(schema, options.compression)
        self._buffer = SortBuffer(options.sort_buffer)
        fixed = FixedPayloads.of(schema) if options.compression == "none" else None
        self._rows = None if fixed is None else RegionRows(fixed, options.sort_buffer)

    @property
    def is_open(self) -> bool:
        """True if it can be written to."""
        return self._sink.is_open

    @property
    def gather_bytes(self) -> int:
        """The number of bytes that are best split at once."""
        best = gather_bytes if self._rows is None else small_gather_bytes
        return best(self.subpartitions, self._buffer.limit)

    @property
    def holds_batches(self) -> bool:
        """True if a split's batches are kept as they are: not rows of a fixed width, which are copied."""
        return self._rows is None

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Add a batch to one subpartition. PenstockError, with the files removed, when it can't be stored."""
        self._add(batch, subpartition, is_broadcast=False)

    def write_split(self, split: Split) -> None:
        """Add what one split gives each subpartition. Errors as of `write`."""
        self._check_open()
        if not len(split):
            return
        self._check_split(split)
        if self._rows is None:
            self._add_batches(list(split))
            return
        self._append_held(but_rows=True)
        done = 0
        while done < split.source.num_rows:
            added = self._rows.add(split, done)
            done += added
            if not added:
                self._append_held()

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Add a batch to all subpartitions, stored once. Errors as of `write`."""
        self._add(batch, 0, is_broadcast=self.subpartitions > 1)

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Write what is held, and the index; returns what each subpartition holds.

        The bytes are those of the payloads as stored; a broadcast batch counts for each subpartition.
        """
        self._check_open()
        self._append_held()
        self._rows = None  # its memory is needed no more
        return self._sink.finish()

    def abort(self) -> None:
        """Give up: the files go; idempotent, and without effect after `finish`."""
        self._buffer, self._rows = SortBuffer(0), None
        self._sink.abort()

    def _add(self, batch: pa.RecordBatch, subpartition: int, *, is_broadcast: bool) -> None:
        self._check_open()
        check_numbers(subpartition, subpartition, self.subpartitions, self._name)
        check_schema(batch, self._schema, self._name)
        self._hold(batch, subpartition, is_broadcast)

    def _add_batches(self, parts: list[tuple[int, pa.RecordBatch]]) -> None:
        """Add the batches of a split; those of a large one become a region without being held."""
        nbytes = self._payloads.sizes([batch for _, batch in parts])
        if nbytes * 2 < self._buffer.limit:
            for subpartition, batch in parts:
                self._hold(batch, subpartition, is_broadcast=False)
            return
        self._append_held()
        parts.sort(key=itemgetter(0))  # stable, so a subpartition's batches keep their order
        runs = ((number, [batch for _, batch in run]) for number, run in groupby(parts, itemgetter(0)))
        self._append_region(self._encoded(runs), nbytes, is_broadcast=False)

    def _hold(self, batch: pa.RecordBatch, subpartition: int, is_broadcast: bool) -> None:
        nbytes = self._payloads.size(batch)
        if not self._buffer.fits(nbytes, is_broadcast) or not (self._rows is None or self._rows.is_empty):
            self._append_held()
        self._buffer.add(batch, nbytes, subpartition, is_broadcast)

    def _check_split(self, split: Split) -> None:
        check_numbers(int(split.numbers.min()), int(split.numbers.max()), self.subpartitions, self._name)
        check_schema(split.source, self._schema, self._name)

    def _append_held(self, *, but_rows: bool = False) -> None:
        """Append a region of what is held, in either form: never both forms are."""
        buffer, rows = self._buffer, self._rows
        if not buffer.is_empty:
            nbytes, is_broadcast = buffer.nbytes, buffer.is_broadcast
            runs = ((number, joined(held, BLOCK_BYTES)) for number, held in buffer.take())
            self._append_region(self._encoded(runs), nbytes, is_broadcast=is_broadcast)
        if rows is not None and not rows.is_empty and not but_rows:
            self._append_region(rows.blocks(), rows.nbytes, is_broadcast=False)

    def _encoded(self, runs: Iterable[tuple[int, Iterable[pa.RecordBatch]]]) -> Iterator[Payload]:
        encode = self._payloads.encode
        for number, batches in runs:
            for batch in batches:
                yield Payload(number, batch.num_rows, memoryview(encode(batch)))

    def _append_region(self, payloads: Iterable[Payload], nbytes: int, *, is_broadcast: bool) -> None:
        """Append blocks, ascending by subpartition; gives up where that fails."""
        try:
            self._append_messages(payloads, nbytes, is_broadcast)
        except BaseException:
            self.abort()
            raise

    def _append_messages(self, payloads: Iterable[Payload], nbytes: int, is_broadcast: bool) -> None:
        append = self._sink.append
        self._sink.begin(nbytes)
        for subpartition, rows, payload in payloads:
            append(BROADCAST if is_broadcast else subpartition, rows, payload)
        self._sink.end()

    def _check_open(self) -> None:
        if not self._sink.is_open:
            raise ValueError(f"the partition in {self._name} is finished or given up")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
