# SPDX-License-Identifier: Apache-2.0
"""Writes a blocking partition with a data file for each subpartition.

Rules: a batch is written when it comes, as one message; nothing is held back, so it needs no memory of its own. A
broadcast batch is stored in each file. It is used as `SortMergeWriter` is.

When not to use it: many producers times many consumers. Each writer then holds as many open files as there are
subpartitions, and its messages are as small as the batches that it gets.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.partition.file_header import FileHeader
from penstock.partition.file_output import FileOptions
from penstock.partition.row_checks import check_schema
from penstock.partition.sort_buffer import gather_bytes
from penstock.partition.whole_files import WholeFiles
from penstock.shuffle import EndOfPartition, PartitionId
from penstock.shuffle.splits import Split


class HashWriter:
    """Writes one partition. Life: any number of `write` and `broadcast`, then `finish`, or `abort`."""

    __slots__ = ("_files", "_folder", "_payloads", "_schema", "gather_bytes", "subpartitions")

    def __init__(
        self, folder: Path, schema: pa.Schema, partition: PartitionId, subpartitions: int, options: FileOptions
    ) -> None:
        self.subpartitions = subpartitions
        self.gather_bytes = gather_bytes(subpartitions, options.sort_buffer)
        """The number of bytes that are best split at once: larger batches are fewer calls to the file system."""
        self._folder = folder
        self._schema = schema
        self._payloads = PayloadFormat(schema, options.compression)
        header = FileHeader(partition, subpartitions, is_whole=True)
        self._files = WholeFiles(folder, header, subpartitions, options)

    @property
    def holds_batches(self) -> bool:
        """No: what is written is in the files."""
        return False

    @property
    def bytes_on_disk(self) -> int:
        """The bytes that the files take so far."""
        return self._files.bytes_on_disk

    def write_split(self, split: Split) -> None:
        """Append what one split gives each subpartition to its file."""
        for subpartition, batch in split:
            self.write(batch, subpartition)

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to the subpartition's file. PenstockError when it can't be stored."""
        self._append(range(subpartition, subpartition + 1), batch)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all files."""
        self._append(range(self.subpartitions), batch)

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Complete all files; returns what each subpartition holds."""
        return self._files.finish()

    def abort(self) -> None:
        """Give up: all files go; idempotent, and without effect after `finish`."""
        self._files.abort()

    def _append(self, targets: range, batch: pa.RecordBatch) -> None:
        check_schema(batch, self._schema, str(self._folder))
        if not self._files[targets[0]].file.is_open:
            raise ValueError(f"the partition in {self._folder} is finished or given up")
        payload = memoryview(self._payloads.encode(batch))
        for target in targets:
            self._files.append(target, target, batch.num_rows, payload)
            self._files[target].flush()
