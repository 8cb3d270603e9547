# SPDX-License-Identifier: Apache-2.0
"""Writes a blocking partition with one data file for few subpartitions, whose rows are not ordered.

Rules: rows go to the extent that their subpartition has open (`arrival_writer`). One that is long enough is appended
to the file, the others at the end. Rows for all are extents of their own, and keep their place among the others.

When not to use it: many subpartitions (`sort_merge_writer`): each open extent takes two MiB.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa

from penstock.partition.arrival_writer import ArrivalWriter
from penstock.partition.extents import BROADCAST, EXTENT_BYTES
from penstock.partition.file_header import FileHeader
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.partition.whole_files import MESSAGE, WholeFiles
from penstock.shuffle import EndOfPartition
from penstock.shuffle.ids import PartitionId


class ExtentWriter(ArrivalWriter):
    """Writes one partition. Life: any number of writes, then `finish`, or `abort`."""

    def __init__(
        self, folder: Path, schema: pa.Schema, partition: PartitionId, subpartitions: int, options: FileOptions
    ) -> None:
        self._files = WholeFiles(folder, FileHeader(partition, subpartitions, is_whole=True), 1, options)
        super().__init__(_OpenExtents(self._files), str(folder), schema, subpartitions, options)

    @property
    def bytes_on_disk(self) -> int:
        """The bytes that its files take so far."""
        return self._files.bytes_on_disk


class _OpenExtents:
    """A `MessageSink` of one data file."""

    def __init__(self, files: WholeFiles) -> None:
        self._files = files
        self._held: dict[int, list[tuple[int, memoryview]]] = defaultdict(list)
        """By target: messages, each with its rows; of one and of all never both."""
        self._sizes: dict[int, int] = defaultdict(int)

    @property
    def is_open(self) -> bool:
        return self._files.is_open

    def begin(self, nbytes: int) -> None:
        """The file sees to its room when it is written."""

    def append(self, target: int, rows: int, payload: memoryview) -> None:
        if (target == BROADCAST) != (BROADCAST in self._held):
            self._store_all()
        size = MESSAGE.size + len(payload) + -len(payload) % 8
        if self._sizes[target] + size > EXTENT_BYTES:
            self._store(target)
        self._held[target].append((rows, payload))
        self._sizes[target] += size
        if self._sizes[target] >= EXTENT_BYTES:  # a long message waits for no other
            self._store(target)

    def give(self) -> None:
        """Full extents are with the file already."""

    def end(self) -> None:
        self._store_all()
        self._files[0].flush()

    def finish(self) -> tuple[EndOfPartition, ...]:
        return self._files.finish()

    def abort(self) -> None:
        self._held.clear()
        self._files.abort()

    def _store_all(self) -> None:
        for target in list(self._held):
            self._store(target)

    def _store(self, target: int) -> None:
        self._sizes[target] = 0
        for rows, payload in self._held.pop(target, ()):
            self._files.append(0, target, rows, payload)


def one_file_writer(
    folder: Path, schema: pa.Schema, partition: PartitionId, subpartitions: int, options: FileOptions
) -> ExtentWriter | SortMergeWriter:
    """The writer of one data file that suits so many subpartitions."""
    form = ExtentWriter if ArrivalWriter.fits(subpartitions, options) else SortMergeWriter
    return form(folder, schema, partition, subpartitions, options)
