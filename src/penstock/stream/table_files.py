# SPDX-License-Identifier: Apache-2.0
"""The writing stage of sinks that are tables: Parquet files that no reader knows until a commit names them.

A file holds a task's rows between two barriers. At the second it is closed, and its name goes to the committing task
(`commit_sink`) in front of the barrier; the thread that stores the checkpoint waits until the file is on the disk. So
a complete checkpoint names files that are there. A mount that dropped shows an empty folder in its place, where files
can be written too. So the table's own part that is there in any case, its log say, must be seen beside them.

A table by keys gets the last row of each key of an epoch. The commit copies it, and then removes the file.

Limits: files of attempts that failed stay in the table's folder, as those of Spark's do, until the user removes what
no version names (Delta's `vacuum`, Iceberg's removal of orphan files).
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

import msgpack
import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import PlanError
from penstock.machine.disk import Disk
from penstock.operators.file_forms import FileForm
from penstock.operators.partitioned_write import NOTHING, by_folder
from penstock.record.relabelled import relabelled_batch
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.commit_sink import message_batch
from penstock.stream.last_rows import LastRows
from penstock.stream.outside import outside
from penstock.stream.sink_files import SinkFiles, files_schema

_FILES = "files"
_FOLDERS = 3
"""So many folders around the files' own may be new: those of the table, and its own."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a task wrote: its path in the table's folder of files, its bytes and rows.

    `values` are those of the columns that the table is partitioned by, as texts; the file lacks these columns.
    """

    name: str
    size: int
    rows: int
    values: Mapping[str, str | None] = field(default_factory=dict)

    def packed(self) -> bytes:
        """As a message."""
        packed: bytes = msgpack.packb((self.name, self.size, self.rows, self.values))
        return packed

    @classmethod
    def of(cls, message: bytes) -> TableFile:
        """Inverse of `packed`."""
        return cls(*msgpack.unpackb(message))


@dataclass(frozen=True, slots=True)
class WriteTableFiles:
    """The operator that turns rows into files and messages about them: the files lie in `folder`/`own`.

    Messages name them from `folder` on. A checkpoint may be copied, and the query that goes on from the copy has
    another folder of its own.
    """

    filesystem: pafs.FileSystem
    folder: str
    own: str
    schema: pa.Schema
    mark: str = ""
    """The path of something that the table has in any case; empty: nothing is known."""
    compression: str = "zstd"
    partition_by: tuple[str, ...] = ()
    """A file has rows of one combination of these columns' values."""
    keys: tuple[str, ...] = ()
    """Only the last row of each of these columns' values is written. The committing task removes the file."""
    uid: str = "table-files"

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"files in {self.folder}/{self.own}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises PlanError: a batch job writes otherwise."""
        raise PlanError(f"{self.name} are of a streaming query: a batch job has writeDelta() and writeIceberg()")

    def step(self) -> TableFilesStep:
        """The step of one subtask."""
        return TableFilesStep(self)


class TableFilesStep(PlainStep):
    """Writes the table files of one subtask."""

    def __init__(self, write: WriteTableFiles) -> None:
        self._write = write
        self._disk = Disk(write.filesystem)
        self._start = ""
        form = FileForm("parquet", files_schema(write.schema, write.partition_by), write.compression)
        self._columns = form.schema.names
        self._files = SinkFiles(form, self._new_name, self._open_stream)
        self._folders: dict[str, str] = {}
        """Of each file that is not closed the name that Spark would give to the folder of its rows."""
        self._last = LastRows(write.keys) if write.keys else None
        self._unsynced: list[tuple[int, str]] = []
        """Files that no complete checkpoint is known to name, with the first checkpoint behind them."""
        self._closed: list[str] = []
        self._has_synced_folders = False

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._write.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Make the folder."""
        self._start = f"part-{context.subtask:05d}-{context.owner or 0}-{context.attempt:06d}"
        with outside(f"{self.name} can't be written"):
            self._write.filesystem.create_dir(self._path(self._write.own), recursive=True)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take rows; large amounts are written at once."""
        batch = relabelled_batch(batch, self._write.schema)
        if self._last is not None:
            self._last.add(batch)
            return ()
        with outside(f"{self.name} can't be written"):
            self._take(batch)
        return ()

    def end_epoch(self) -> Iterable[pa.RecordBatch]:
        """Close the files, and say their names."""
        with outside(f"{self.name} can't be written"):
            for batch in self._last.take() if self._last is not None else ():
                self._take(batch)
            rows = self._files.close()
            infos = self._write.filesystem.get_file_info([self._path(name) for name in rows])
        self._closed += rows
        folders, self._folders = self._folders, {}
        return [
            message_batch(TableFile(name, info.size, rows[name], self._values(folders[name])).packed())
            for name, info in zip(rows, infos, strict=True)
        ]

    def _take(self, batch: pa.RecordBatch) -> None:
        by = self._write.partition_by
        for folder, rows in by_folder(batch, by, self._columns) if by else [("", batch)]:
            self._files.write(folder, rows)

    def _values(self, folder: str) -> dict[str, str | None]:
        """The values that a folder's name has, by their columns."""
        texts = [part.partition("=")[2] for part in folder.split("/")]
        return {
            column: None if text == NOTHING else unquote(text)
            for column, text in zip(self._write.partition_by, texts, strict=False)
        }

    def end_input(self, *, stopped: bool) -> Iterable[pa.RecordBatch]:
        """As for an epoch."""
        return self.end_epoch()

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """Nothing, when the files are on the disk."""
        self._unsynced += [(checkpoint, name) for name in self._closed]
        self._closed = []
        files = [(number, self._path(name)) for number, name in self._unsynced]

        def stored() -> bytes:
            if files and self._disk.is_needed:
                self._require_table()
                for number, path in files:
                    is_kept = number == checkpoint or not self._write.keys
                    with nullcontext() if is_kept else suppress(FileNotFoundError):  # it was committed
                        self._disk.sync_file(path)
                self._sync_names()
                self._require_table()
            return b""

        return [(_FILES, stored)]

    def completed(self, checkpoint: int) -> None:
        """Their files are safe."""
        self._unsynced = [each for each in self._unsynced if each[0] > checkpoint]

    def close(self) -> None:
        """Remove the file that is being written."""
        for name in self._files.abandon():
            with suppress(OSError, pa.ArrowException):
                self._write.filesystem.delete_file(self._path(name))

    def _sync_names(self) -> None:
        """Wait for the names of files and, once, for those of the folders around: one that was made may be lost."""
        folder = self._path(self._write.own)
        self._disk.sync_folder(folder)
        if self._has_synced_folders:
            return
        for _ in range(_FOLDERS):
            folder = folder.rpartition("/")[0]
            with suppress(PermissionError):  # one that we can't read, we have not made
                self._disk.sync_folder(folder or "/")
        self._has_synced_folders = True

    def _require_table(self) -> None:
        """Raise OSError where the table is away: files that were written meanwhile lie below its mount."""
        mark = self._write.mark
        if mark and self._write.filesystem.get_file_info(mark).type == pafs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, "the table is away: has its file system dropped?", mark)

    def _path(self, name: str) -> str:
        return f"{self._write.folder}/{name}"

    def _new_name(self, folder: str) -> str:
        name = f"{self._write.own}/{self._start}-{secrets.token_hex(8)}.parquet"
        self._folders[name] = folder
        return name

    def _open_stream(self, name: str) -> pa.NativeFile:
        return self._write.filesystem.open_output_stream(self._path(name))
