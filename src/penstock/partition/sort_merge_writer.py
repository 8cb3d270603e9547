# SPDX-License-Identifier: Apache-2.0
"""Writes a blocking partition with one data file, however many subpartitions there are.

Rules:

- Batches are collected until they are `sort_buffer` bytes, ordered by subpartition, and appended to the data file as
  one region. So what is open and what is held do not grow with the number of subpartitions, and what is written is
  long and sequential.
- Within a subpartition batches keep the order of writing. A broadcast batch is stored once; where batches for one and
  batches for all take turns, each turn is a region, because only that keeps the order.
- Held are at most `sort_buffer` bytes and the batch in hand; beyond that about two MiB wait to be written.
- Splits of rows of a fixed width, not compressed, are copied into that memory (`region_rows`), and cost least when
  small. Of other rows batches are held: slices keep their parents alive, all of them until the region is written;
  a split that fills half the buffer by itself is a region at once and not held at all. So a caller that gathers
  `gather_bytes` before it splits needs no more memory.

When not to use it: a few subpartitions, where a file for each (`hash_writer`) does without the buffer, or data that
is read while it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.buffer.fixed_payload import FixedPayloads
from penstock.partition.block_assembly import Payload
from penstock.partition.extents import BROADCAST
from penstock.partition.file_header import FileHeader
from penstock.partition.file_output import FileOptions
from penstock.partition.region_rows import RegionRows
from penstock.partition.sort_buffer import BLOCK_BYTES, SortBuffer, gather_bytes, joined, small_gather_bytes
from penstock.partition.whole_files import WholeFiles
from penstock.shuffle import EndOfPartition
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.splits import Split


class SortMergeWriter:
    """Writes one partition. Life: any number of `write` and `broadcast`, then `finish`, or `abort`."""

    __slots__ = ("_buffer", "_files", "_folder", "_payloads", "_rows", "_schema", "subpartitions")

    def __init__(
        self, folder: Path, schema: pa.Schema, partition: PartitionId, subpartitions: int, options: FileOptions
    ) -> None:
        if subpartitions < 1:
            raise ValueError(f"partition {partition} has {subpartitions} subpartitions, it must be at least one")
        self.subpartitions = subpartitions
        self._folder = folder
        self._schema = schema
        self._payloads = PayloadFormat(schema, options.compression)
        self._buffer = SortBuffer(options.sort_buffer)
        fixed = FixedPayloads.of(schema) if options.compression == "none" else None
        self._rows = None if fixed is None else RegionRows(fixed, options.sort_buffer)
        self._files = WholeFiles(folder, FileHeader(partition, subpartitions, is_whole=True), 1, options)

    @property
    def is_open(self) -> bool:
        """True if it can be written to."""
        return self._files.is_open

    @property
    def gather_bytes(self) -> int:
        """The number of bytes that are best split at once."""
        best = gather_bytes if self._rows is None else small_gather_bytes
        return best(self.subpartitions, self._buffer.limit)

    @property
    def holds_batches(self) -> bool:
        """True if a split's batches are kept as they are: not rows of a fixed width, which are copied."""
        return self._rows is None

    @property
    def bytes_on_disk(self) -> int:
        """The bytes that its files take so far."""
        return self._files.bytes_on_disk

    @property
    def writes(self) -> int:
        """The number of times that the file system was called to write rows."""
        return self._files.writes

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
        return self._files.finish()

    def abort(self) -> None:
        """Give up: the files go; idempotent, and without effect after `finish`."""
        self._buffer, self._rows = SortBuffer(0), None
        self._files.abort()

    def _add(self, batch: pa.RecordBatch, subpartition: int, *, is_broadcast: bool) -> None:
        self._check_open()
        self._check_numbers(subpartition, subpartition)
        self._check_schema(batch)
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
        self._check_numbers(int(split.numbers.min()), int(split.numbers.max()))
        self._check_schema(split.source)

    def _check_numbers(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= self.subpartitions:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"there is no subpartition {wrong} in {self._folder}")

    def _check_schema(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"the batch's schema is not that of {self._folder}: {batch.schema} instead of {self._schema}"
            )

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
        files = self._files
        files[0].file.ensure_room(nbytes)
        for subpartition, rows, payload in payloads:
            files.append(0, BROADCAST if is_broadcast else subpartition, rows, payload)
        files[0].flush()

    def _check_open(self) -> None:
        if not self._files.is_open:
            raise ValueError(f"the partition in {self._folder} is finished or given up")

    def __enter__(self) -> SortMergeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
