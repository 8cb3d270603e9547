# SPDX-License-Identifier: Apache-2.0
"""Writes a blocking partition with one data file, however many subpartitions there are.

Rules: rows are ordered in regions (`region_writer`), and each region is appended to the file. So what is open does
not grow with the number of subpartitions, and what is written is long and sequential. Beyond what is held to be
ordered, about two MiB wait to be written.

When not to use it: a few subpartitions, where a file for each (`hash_writer`) does without the buffer, or data that
is read while it is written.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.partition.file_header import FileHeader
from penstock.partition.file_output import FileOptions
from penstock.partition.region_writer import RegionWriter
from penstock.partition.whole_files import WholeFiles
from penstock.shuffle import EndOfPartition
from penstock.shuffle.ids import PartitionId


class SortMergeWriter(RegionWriter):
    """Writes one partition. Life: any number of `write` and `broadcast`, then `finish`, or `abort`."""

    def __init__(
        self, folder: Path, schema: pa.Schema, partition: PartitionId, subpartitions: int, options: FileOptions
    ) -> None:
        self._files = WholeFiles(folder, FileHeader(partition, subpartitions, is_whole=True), 1, options)
        super().__init__(_OneFile(self._files), str(folder), schema, subpartitions, options)

    @property
    def bytes_on_disk(self) -> int:
        """The bytes that its files take so far."""
        return self._files.bytes_on_disk

    @property
    def writes(self) -> int:
        """The number of times that the file system was called to write rows."""
        return self._files.writes


class _OneFile:
    """A `MessageSink` of one data file."""

    def __init__(self, files: WholeFiles) -> None:
        self._files = files
        self.append = partial(files.append, 0)

    @property
    def is_open(self) -> bool:
        return self._files.is_open

    def begin(self, nbytes: int) -> None:
        self._files[0].file.ensure_room(nbytes)

    def give(self) -> None:
        """A file takes what is long by itself."""

    def end(self) -> None:
        self._files[0].flush()

    def finish(self) -> tuple[EndOfPartition, ...]:
        return self._files.finish()

    def abort(self) -> None:
        self._files.abort()
