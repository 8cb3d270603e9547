# SPDX-License-Identifier: Apache-2.0
"""Writes a sort-merge partition: two files however many subpartitions there are.

Rules:

- Batches are collected until they are `sort_buffer` bytes, ordered by subpartition, and appended to the data file as
  one region. So what is open and what is held do not grow with the number of subpartitions, and what is written is
  long and sequential.
- Within a subpartition batches keep the order of writing. A broadcast batch is stored once; where batches for one and
  batches for all take turns, each turn is a region, because only that keeps the order.
- Both files get their names at the end, the index last: where it is, the partition is complete.
- Held are at most `sort_buffer` bytes and the batch in hand. Slices keep their parents alive, all of them until the
  region is written; beyond that about a MiB waits to be written. A split that fills half the buffer by itself is a
  region at once and not held at all, so a caller that gathers `gather_bytes` before it splits needs no more memory.

When not to use it: a few subpartitions, where a file for each (`result_file`) does without the buffer, or data that
is read while it is written. `docs/file-formats.md` describes both files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from penstock.buffer import PayloadFormat
from penstock.partition.file_blocks import BlockOutput
from penstock.partition.file_header import FileHeader, pack_header
from penstock.partition.file_output import FileOptions, FileOutput
from penstock.partition.sort_buffer import BLOCK_BYTES, SortBuffer, gather_bytes, joined
from penstock.partition.sort_merge_index import INDEX_MAGIC, Region, Totals, pack_end
from penstock.shuffle import EndOfPartition
from penstock.shuffle.ids import PartitionId

DATA_MAGIC = b"PENSTDAT"


@dataclass(frozen=True, slots=True)
class SortMergePaths:
    """The two files of one partition."""

    data: Path
    index: Path


class SortMergeWriter:
    """Writes one partition. Life: any number of `write` and `broadcast`, then `finish`, or `abort`."""

    __slots__ = (
        "_blocks",
        "_buffer",
        "_data",
        "_index",
        "_paths",
        "_payloads",
        "_regions",
        "_schema",
        "_totals",
        "subpartitions",
    )

    def __init__(
        self,
        paths: SortMergePaths,
        schema: pa.Schema,
        partition: PartitionId,
        subpartitions: int,
        options: FileOptions,
    ) -> None:
        if subpartitions < 1:
            raise ValueError(f"partition {partition} has {subpartitions} subpartitions, it must be at least one")
        self.subpartitions = subpartitions
        self._paths = paths
        self._schema = schema
        self._payloads = PayloadFormat(schema, options.compression)
        self._buffer = SortBuffer(options.sort_buffer)
        self._totals = Totals(subpartitions)
        self._regions = 0
        header = FileHeader(partition, schema, subpartitions, options.compression, self._payloads.self_contained)
        self._data = FileOutput(paths.data, partition, options.reserve)
        try:
            self._index = FileOutput(paths.index, partition)
            self._data.append([pack_header(DATA_MAGIC, header)])
            self._index.append([pack_header(INDEX_MAGIC, FileHeader(partition, None, subpartitions))])
        except BaseException:
            self.abort()
            raise
        self._blocks = BlockOutput(self._data, self._payloads)

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self._data.is_open

    @property
    def gather_bytes(self) -> int:
        """How many bytes are best split at once."""
        return gather_bytes(self.subpartitions, self._buffer.limit)

    @property
    def bytes_on_disk(self) -> int:
        """What both files take so far."""
        return self._data.size + self._index.size

    @property
    def writes(self) -> int:
        """How often the file system was called to write."""
        return self._data.writes + self._index.writes

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Add a batch to one subpartition. PenstockError, with both files removed, when it can't be stored."""
        self._add(batch, subpartition, is_broadcast=False)

    def write_split(self, parts: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        """Add the batches of one split, of one schema, each with its subpartition.

        A large split becomes a region without being held.
        """
        self._check_open()
        for subpartition, batch in parts[:1]:
            self._check_batch(batch, subpartition)  # the others are of the same split
        nbytes = self._payloads.sizes([batch for _, batch in parts])
        if nbytes * 2 < self._buffer.limit:
            for subpartition, batch in parts:
                self._add(batch, subpartition, is_broadcast=False)
            return
        ordered = sorted(parts, key=itemgetter(0))  # stable, so a subpartition's batches keep their order
        runs = ((number, [batch for _, batch in run]) for number, run in groupby(ordered, itemgetter(0)))
        self._append_held()
        self._append_region(runs, nbytes, is_broadcast=False)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Add a batch to all subpartitions, stored once. Errors as of `write`."""
        self._add(batch, 0, is_broadcast=self.subpartitions > 1)

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Write what is held, and give both files their names; returns what each subpartition holds.

        The bytes are those of the payloads as stored; a broadcast batch counts for each subpartition.
        """
        self._check_open()
        try:
            self._append_held()
            ends = self._totals.ends()
            self._index.append(pack_end(self._regions, self._data.size, self._index.size, ends))
            self._index.seal()
            self._data.publish()
            try:
                self._index.publish()
            except BaseException:
                self._paths.data.unlink(missing_ok=True)
                raise
        except BaseException:
            self.abort()
            raise
        return ends

    def abort(self) -> None:
        """Give up: both files go; idempotent, and without effect after `finish`."""
        self._buffer = SortBuffer(0)
        for name in ("_data", "_index"):
            file: FileOutput | None = getattr(self, name, None)
            if file is not None:
                file.abort()

    def _add(self, batch: pa.RecordBatch, subpartition: int, *, is_broadcast: bool) -> None:
        self._check_open()
        self._check_batch(batch, subpartition)
        nbytes = self._payloads.size(batch)
        if not self._buffer.fits(nbytes, is_broadcast):
            self._append_held()
        self._buffer.add(batch, nbytes, subpartition, is_broadcast)

    def _check_batch(self, batch: pa.RecordBatch, subpartition: int) -> None:
        if not 0 <= subpartition < self.subpartitions:
            raise ValueError(f"there is no subpartition {subpartition} in {self._paths.data}")
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"the batch's schema is not that of {self._paths.data}: {batch.schema} instead of {self._schema}"
            )

    def _append_held(self) -> None:
        buffer = self._buffer
        if not buffer.is_empty:
            nbytes, is_broadcast = buffer.nbytes, buffer.is_broadcast
            runs = ((number, joined(held, BLOCK_BYTES)) for number, held in buffer.take())
            self._append_region(runs, nbytes, is_broadcast=is_broadcast)

    def _append_region(
        self, runs: Iterable[tuple[int, Iterable[pa.RecordBatch]]], nbytes: int, *, is_broadcast: bool
    ) -> None:
        """Append the batches of each subpartition, in ascending order of these; gives up where that fails."""
        try:
            self._append_runs(runs, nbytes, is_broadcast)
        except BaseException:
            self.abort()
            raise

    def _append_runs(
        self, runs: Iterable[tuple[int, Iterable[pa.RecordBatch]]], nbytes: int, is_broadcast: bool
    ) -> None:
        blocks, totals = self._blocks, self._totals
        self._data.ensure_room(nbytes)
        numbers: list[int] = []
        ends: list[int] = []
        region = Region(blocks.position, is_broadcast, numbers, ends)
        for subpartition, batches in runs:
            for batch in batches:
                length, checksum = blocks.append(batch, self._regions << 32 | subpartition)
                if is_broadcast:
                    totals.add_to_all(batch.num_rows, length, checksum)
                else:
                    totals.add(subpartition, batch.num_rows, length, checksum)
            numbers.append(subpartition)
            ends.append(blocks.position)
        blocks.flush()
        self._index.append([region.pack()])
        self._regions += 1

    def _check_open(self) -> None:
        if not self._data.is_open:
            raise ValueError(f"the partition file {self._paths.data} is finished or given up")

    def __enter__(self) -> SortMergeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
