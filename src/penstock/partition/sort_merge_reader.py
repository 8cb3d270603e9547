# SPDX-License-Identifier: Apache-2.0
"""Reads a sort-merge partition: any range of neighbouring subpartitions, any number of times.

Rules:

- Of each region a range is one stretch of the data file. Stretches are read in the order of the file, and the
  kernel is told to fetch the following ones (`LOOK_AHEAD` bytes of them) while one is being read.
- Batches and messages lie over the file's map, unless they are compressed. Pages that were read leave the process's
  memory again; a batch that is kept stays readable, from the page cache.
- Small batches are joined into ones of at most `BATCH_BYTES`. That is a copy, and cheaper than what every batch costs
  whoever works on it; with many subpartitions blocks are small.
- A broadcast batch comes once for each subpartition of the range: each of them holds it.
- Every block is checked before it is handed out, and at the end all sums against the index, so what is missing shows.
  PartitionLostError where a file is not there, IncompleteDataError where one is damaged.

Limits: data that no range reads is not checked. A reader is for one thread at a time, but for any number of
iterators.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.partition.file_blocks import Block, message_of, read_batch, read_block
from penstock.partition.file_header import read_header
from penstock.partition.file_input import FileInput, FileOrigin
from penstock.partition.sort_buffer import joined
from penstock.partition.sort_merge_index import IndexReader
from penstock.partition.sort_merge_writer import DATA_MAGIC, SortMergePaths
from penstock.shuffle import EndOfPartition
from penstock.shuffle.sums import Sums

LOOK_AHEAD = 4 << 20
"""Bytes of the file that the kernel is asked for before they are read."""
BATCH_BYTES = 128 << 10
"""Batches are joined up to this many bytes."""


class RegionStretch(NamedTuple):
    """The part of a region that a range reads: number, begin and end of each part, the times each block is meant."""

    region: int
    parts: list[tuple[int, int, int]]
    times: int

    @property
    def begin(self) -> int:
        """The offset at which it begins in the file."""
        return self.parts[0][1]

    @property
    def end(self) -> int:
        """The offset at which it ends."""
        return self.parts[-1][2]


class SortMergeReader:
    """Reads one finished partition."""

    __slots__ = ("_data", "_index", "_index_file", "_payloads", "paths", "schema", "subpartitions")

    def __init__(self, paths: SortMergePaths, where: FileOrigin) -> None:
        self.paths = paths
        self._index_file = FileInput(paths.index, where)
        self._index = IndexReader(self._index_file)
        self.subpartitions = self._index.subpartitions
        self._data = data = FileInput(paths.data, where)
        if data.size != self._index.data_size:
            raise data.incomplete(f"it has {data.size} bytes, its index says {self._index.data_size}")
        header, first = read_header(data, DATA_MAGIC)
        if header.schema is None or header.subpartitions != self.subpartitions or first > data.size:
            raise data.incomplete(f"its header does not belong to {paths.index}")
        self.schema: pa.Schema = header.schema
        self._payloads = PayloadFormat(header.schema, header.compression)

    def end(self, first: int, count: int) -> EndOfPartition:
        """Rows, bytes and checksum of a range. ValueError for a range that is not there."""
        return self._index.end(first, count)

    def stretches(self, first: int, count: int) -> Iterator[RegionStretch]:
        """The stretches that a range reads, in the order of the data file.

        ValueError for a range that is not there.
        """
        self._index.check_range(first, count)
        read = ((number, region, region.parts(first, count)) for number, region in enumerate(self._index.regions()))
        return (
            RegionStretch(number, parts, count if region.is_broadcast else 1)
            for number, region, parts in read
            if parts
        )

    def batches(self, first: int, count: int) -> Iterator[pa.RecordBatch]:
        """The batches of a range. ValueError for a range that is not there."""
        data, payloads = self._data, self._payloads
        read = ((read_batch(data, block, payloads), block.payload.size) for block in self._blocks(first, count))
        yield from joined(read, BATCH_BYTES)

    def messages(self, first: int, count: int) -> Iterator[memoryview]:
        """The same as messages of the record stream (length, checksum, payload, padding), over the file's map."""
        for block in self._blocks(first, count):
            yield message_of(self._data, block)

    def _blocks(self, first: int, count: int) -> Iterator[Block]:
        """Every block of the range, checked; at the end the sums must be the index's."""
        expected = self._index.end(first, count)
        sums = Sums()
        data = self._data
        for stretch in self._ahead(first, count):
            region = stretch.region << 32
            for number, begin, end in stretch.parts:
                position = begin
                while position < end:
                    block = read_block(data, position, end, region | number)
                    for _ in range(stretch.times):
                        sums.add(block.rows, block.payload.size, block.checksum)
                        yield block
                    position = block.end
            data.is_done_with(stretch.begin, stretch.end)
        found = sums.end_of_partition()
        if found != expected:
            raise data.incomplete(f"subpartitions {first} to {first + count - 1}: {found}, not {expected}")

    def _ahead(self, first: int, count: int) -> Iterator[RegionStretch]:
        """The stretches of a range, each announced to the kernel some MiB before its turn."""
        waiting: deque[RegionStretch] = deque()
        announced = 0
        for stretch in self.stretches(first, count):
            self._data.will_need(stretch.begin, stretch.end)
            waiting.append(stretch)
            announced += stretch.end - stretch.begin
            while announced >= LOOK_AHEAD and len(waiting) > 1:
                following = waiting.popleft()
                announced -= following.end - following.begin
                yield following
        yield from waiting

    def close(self) -> None:
        """Let go of both maps; idempotent. They go with the last batch that lies over them."""
        self._data.close()
        self._index_file.close()

    def __enter__(self) -> SortMergeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
