# SPDX-License-Identifier: Apache-2.0
"""How a blocking partition is laid out while it is written: a file per subpartition, or two files for all.

The seam between the writer that a task sees and the formats in `penstock.partition`. `SortMergeWriter` is a
`LayoutWriter` as it is; `HashFiles` makes one of many files. What a layout that raises leaves, `abort` removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.partition.file_output import FileOptions
from penstock.partition.region_rows import Split
from penstock.partition.result_file import ResultFileWriter
from penstock.partition.sort_buffer import gather_bytes
from penstock.shuffle import EndOfPartition, PartitionId


class LayoutWriter(Protocol):
    """The files of one partition, being written."""

    @property
    def gather_bytes(self) -> int:
        """How many bytes are best split at once."""

    @property
    def bytes_on_disk(self) -> int:
        """What the files take so far."""

    def write_split(self, split: Split) -> None:
        """Append what one split gives each subpartition."""

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to one subpartition."""

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions."""

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Complete the files and give them their names; what each subpartition holds."""

    def abort(self) -> None:
        """Remove what was written; idempotent."""


class HashFiles:
    """One file per subpartition; a broadcast batch is stored in each."""

    def __init__(
        self, paths: Sequence[Path], schema: pa.Schema, partition: PartitionId, options: FileOptions
    ) -> None:
        self._gather_bytes = gather_bytes(len(paths), options.sort_buffer)
        self._files: list[ResultFileWriter] = []
        try:
            for path in paths:
                self._files.append(ResultFileWriter(path, schema, partition, options))
        except BaseException:
            self.abort()
            raise

    @property
    def gather_bytes(self) -> int:
        """How many bytes are best split at once: larger batches are fewer calls to the file system."""
        return self._gather_bytes

    @property
    def bytes_on_disk(self) -> int:
        """What the files take so far."""
        return sum(file.bytes_on_disk for file in self._files)

    def write_split(self, split: Split) -> None:
        """Append what one split gives each subpartition to its file."""
        for subpartition, batch in split:
            self._files[subpartition].write(batch)

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to the subpartition's file."""
        self._files[subpartition].write(batch)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all files."""
        for file in self._files:
            file.write(batch)

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Complete all files."""
        found = [file.finish() for file in self._files]
        return tuple(EndOfPartition(each.rows, each.bytes, each.checksum) for each in found)

    def abort(self) -> None:
        """Remove what is not finished; finished files go with the partition."""
        for file in self._files:
            file.abort()
