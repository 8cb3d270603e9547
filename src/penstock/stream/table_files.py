# SPDX-License-Identifier: Apache-2.0
"""The writing stage of sinks that are tables: Parquet files that no reader knows until a commit names them.

A file holds a task's rows between two barriers. At the second it is closed, and its name goes to the committing task
(`commit_sink`) in front of the barrier; the thread that stores the checkpoint waits until the file is on the disk. So
a complete checkpoint names files that are there.

Limits: files of attempts that failed stay in the table's folder, as those of Spark's do, until somebody removes what
no version names (Delta's `vacuum`, Iceberg's removal of orphan files).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import PlanError
from penstock.machine.disk import Disk
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.commit_sink import message_batch
from penstock.stream.outside import outside
from penstock.stream.sink_files import GROUP_ROWS, MOST_BYTES

_FILES = "files"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a task wrote: its name in the folder, its bytes and rows."""

    name: str
    size: int
    rows: int

    def packed(self) -> bytes:
        """As a message."""
        packed: bytes = msgpack.packb((self.name, self.size, self.rows))
        return packed

    @classmethod
    def of(cls, message: bytes) -> TableFile:
        """Inverse of `packed`."""
        return cls(*msgpack.unpackb(message))


@dataclass(frozen=True, slots=True)
class WriteTableFiles:
    """The operator that turns rows into files of `folder` and messages about them."""

    filesystem: pafs.FileSystem
    folder: str
    schema: pa.Schema
    compression: str = "zstd"
    uid: str = "table-files"

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"files in {self.folder}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises PlanError: a batch job writes otherwise."""
        raise PlanError(f"{self.name} are of a streaming query: a batch job has writeDelta() and writeIceberg()")

    def step(self) -> TableFilesStep:
        """The step of one subtask."""
        return TableFilesStep(self)


class TableFilesStep(PlainStep):
    """One subtask's files."""

    def __init__(self, write: WriteTableFiles) -> None:
        self._write = write
        self._disk = Disk(write.filesystem)
        self._start = ""
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = self._rows = 0
        self._name = ""
        self._stream: Any = None
        self._file: Any = None
        self._unsynced: list[tuple[int, str]] = []
        """Files that no complete checkpoint is known to name, with the first checkpoint behind them."""
        self._closed: list[str] = []

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._write.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Make the folder."""
        self._start = f"part-{context.subtask:05d}-{context.owner or 0}-{context.attempt:06d}"
        with outside(f"{self.name} can't be written"):
            self._write.filesystem.create_dir(self._write.folder, recursive=True)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take rows; large amounts are written at once."""
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= MOST_BYTES:
            self._write_held()
        return ()

    def end_epoch(self) -> Iterable[pa.RecordBatch]:
        """Close the file, and say its name."""
        self._write_held()
        if self._file is None:
            return ()
        with outside(f"{self.name} can't be written"):
            self._close_file()
            (info,) = self._write.filesystem.get_file_info([self._path(self._name)])
        self._closed.append(self._name)
        rows, self._rows = self._rows, 0
        return (message_batch(TableFile(self._name, info.size, rows).packed()),)

    def end_input(self, *, stopped: bool) -> Iterable[pa.RecordBatch]:
        """As for an epoch."""
        return self.end_epoch()

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """Nothing, when the files are on the disk."""
        self._unsynced += [(checkpoint, name) for name in self._closed]
        self._closed = []
        paths = [self._path(name) for _, name in self._unsynced]

        def stored() -> bytes:
            if paths and self._disk.is_needed:
                for path in paths:
                    self._disk.sync_file(path)
                self._disk.sync_folder(self._write.folder)
            return b""

        return [(_FILES, stored)]

    def completed(self, checkpoint: int) -> None:
        """Their files are safe."""
        self._unsynced = [each for each in self._unsynced if each[0] > checkpoint]

    def close(self) -> None:
        """Remove the file that is being written."""
        if self._file is None:
            return
        with suppress(OSError, pa.ArrowException, ValueError):
            self._close_file()
        with suppress(OSError, pa.ArrowException):
            self._write.filesystem.delete_file(self._path(self._name))

    def _path(self, name: str) -> str:
        return f"{self._write.folder}/{name}"

    def _write_held(self) -> None:
        if not self._held:
            return
        import pyarrow.parquet as pq

        held, self._held = self._held, []
        self._rows += self._held_rows
        self._held_rows = self._held_bytes = 0
        write = self._write
        with outside(f"{self.name} can't be written"):
            if self._file is None:
                self._name = f"{self._start}-{secrets.token_hex(8)}.parquet"
                self._stream = write.filesystem.open_output_stream(self._path(self._name))
                self._file = pq.ParquetWriter(self._stream, write.schema, compression=write.compression)
            self._file.write_table(pa.Table.from_batches(held, write.schema))

    def _close_file(self) -> None:
        file, self._file = self._file, None
        try:
            file.close()
        finally:
            self._stream.close()
