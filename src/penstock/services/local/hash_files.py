# SPDX-License-Identifier: Apache-2.0
"""A blocking partition with a file for each subpartition, while it is written, as one thing.

It is used as `SortMergeWriter` is, which writes two files for all. If a call raises, `abort` removes all that it
left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.partition.file_output import FileOptions
from penstock.partition.region_rows import Split
from penstock.partition.result_file import ResultFileWriter
from penstock.partition.sort_buffer import gather_bytes
from penstock.shuffle import EndOfPartition, PartitionId


class HashFiles:
    """One file per subpartition; a broadcast batch is stored in each."""

    def __init__(
        self, paths: Sequence[Path], schema: pa.Schema, partition: PartitionId, options: FileOptions
    ) -> None:
        self.gather_bytes = gather_bytes(len(paths), options.sort_buffer)
        """The number of bytes that are best split at once: larger batches are fewer calls to the file system."""
        self._files: list[ResultFileWriter] = []
        try:
            for path in paths:
                self._files.append(ResultFileWriter(path, schema, partition, options))
        except BaseException:
            self.abort()
            raise

    @property
    def holds_batches(self) -> bool:
        """No: what is written is in the files."""
        return False

    @property
    def bytes_on_disk(self) -> int:
        """The bytes that the files take so far."""
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
