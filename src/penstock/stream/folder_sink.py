# SPDX-License-Identifier: Apache-2.0
"""A sink of files in a folder, with two phases: `parquet`, or `arrow` for whoever reads them at once.

    <folder>/.part-<uid>-<subtask>-<token>.parquet   being written, or prepared: readers skip names with a dot
    <folder>/part-<uid>-<subtask>-<token>.parquet    published, by a change of its name

A file holds what came between two barriers. At the second it is closed, and its name goes into the checkpoint,
whose thread waits until it is on the disk; when that is complete it gets the name that readers see. An attempt
begins by publishing what the restored checkpoint names, and by removing what an earlier attempt has left besides.
`uid` tells queries that write into one folder apart; it must be the same in all attempts of a query.

Limits: a file system that can't change a name in one step (object stores) shows a file when it is there as a whole.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.fs as pafs

from penstock.checkpoint.errors import CheckpointError
from penstock.shuffle.durable import sync_file, sync_folder
from penstock.shuffle.errors import SettingError

GROUP_ROWS = 1 << 20
MOST_BYTES = 32 << 20
"""Rows are held so long, then they become a row group."""


@dataclass(frozen=True, slots=True)
class FolderSink:
    """Files of `format` ("parquet" or "arrow") in `folder`; `compression` is Parquet's."""

    filesystem: pafs.FileSystem
    folder: str
    schema: pa.Schema
    uid: str
    format: str = "parquet"
    compression: str = "snappy"
    made: int = field(default_factory=time.time_ns, compare=False)
    """Nanoseconds since the epoch. The tasks of a driver that another one has taken over from may still begin: they
    leave files of sinks made later alone, for those are named in the other one's checkpoints."""

    def __post_init__(self) -> None:
        if self.format not in _WRITERS:
            raise SettingError(f"files of format {self.format!r}: one of {', '.join(_WRITERS)}")
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.uid):
            raise SettingError(f"the sink's uid {self.uid!r}: letters, digits and underscores, for it names files")

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return f"{self.format} {self.folder}"

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> FolderWriter:
        """Publish what was prepared, remove what else was left, begin."""
        self.filesystem.create_dir(self.folder, recursive=True)
        writer = FolderWriter(self, subtask)
        for state in restored:
            for _, name in msgpack.unpackb(state):
                self.publish(name)
        self._remove_leftovers(subtask, parallelism)
        return writer

    def publish(self, name: str) -> None:
        """Give a prepared file its name; one that has it already is left; raises CheckpointError for a lost one."""
        hidden, shown = f"{self.folder}/.{name}", f"{self.folder}/{name}"
        try:
            self.filesystem.move(hidden, shown)
        except (FileNotFoundError, OSError) as error:
            found_hidden, found_shown = self.filesystem.get_file_info([hidden, shown])
            if found_hidden.type != pafs.FileType.NotFound:
                raise
            if found_shown.type == pafs.FileType.NotFound:
                raise CheckpointError(
                    f"{shown} was prepared for a checkpoint and is gone: somebody has removed {hidden}"
                ) from error

    def _remove_leftovers(self, subtask: int, parallelism: int) -> None:
        """Files of earlier attempts of this subtask, by this driver or one before it, that no checkpoint names."""
        ours = re.compile(rf"\.part-{self.uid}-(\d+)-([0-9a-f]{{16}})[0-9a-f]+\.{self.format}")
        for info in self.filesystem.get_file_info(pafs.FileSelector(self.folder)):
            found = ours.fullmatch(info.base_name)
            if found and int(found[1]) % parallelism == subtask and int(found[2], 16) <= self.made:
                with suppress(FileNotFoundError):
                    self.filesystem.delete_file(info.path)


class FolderWriter:
    """One subtask's files."""

    def __init__(self, sink: FolderSink, subtask: int) -> None:
        self._sink = sink
        self._start = f"part-{sink.uid}-{subtask:05d}-{sink.made:016x}"
        self._is_local = isinstance(sink.filesystem, pafs.LocalFileSystem)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._name = ""
        self._stream: Any = None
        self._file: Any = None
        self._prepared: list[tuple[int, str]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; large amounts are written at once."""
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= MOST_BYTES:
            self._write_held()

    def prepare(self, checkpoint: int) -> bytes:
        """Close the file; the names of all that is to be published."""
        self._write_held()
        if self._file is not None:
            self._close_file()
            self._prepared.append((checkpoint, self._name))
        packed: bytes = msgpack.packb(self._prepared)
        return packed

    def sync(self, prepared: bytes) -> None:
        """Wait until the files that were prepared are on the disk, and the new names of those that were published."""
        if self._is_local:
            for _, name in msgpack.unpackb(prepared):
                with suppress(FileNotFoundError):  # it was published meanwhile, so it is on the disk
                    sync_file(f"{self._sink.folder}/.{name}")
            sync_folder(self._sink.folder)

    def commit(self, checkpoint: int) -> None:
        """Publish what was prepared up to this checkpoint."""
        while self._prepared and self._prepared[0][0] <= checkpoint:
            self._sink.publish(self._prepared[0][1])
            del self._prepared[0]

    def close(self) -> None:
        """Remove the file that is being written; what was prepared stays."""
        if self._is_local:
            sync_folder(self._sink.folder)
        if self._file is None:
            return
        with suppress(OSError, pa.ArrowException, ValueError):
            self._close_file()
        with suppress(OSError, pa.ArrowException):
            self._sink.filesystem.delete_file(f"{self._sink.folder}/.{self._name}")

    def _write_held(self) -> None:
        if not self._held:
            return
        held, self._held = self._held, []
        self._held_rows = self._held_bytes = 0
        if self._file is None:
            self._name = f"{self._start}{secrets.token_hex(8)}.{self._sink.format}"
            self._stream = self._sink.filesystem.open_output_stream(f"{self._sink.folder}/.{self._name}")
            self._file = _WRITERS[self._sink.format](self._stream, self._sink)
        self._file.write_table(pa.Table.from_batches(held, self._sink.schema))

    def _close_file(self) -> None:
        file, self._file = self._file, None
        try:
            file.close()
        finally:
            self._stream.close()


def _parquet(stream: Any, sink: FolderSink) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetWriter(stream, sink.schema, compression=sink.compression)


def _arrow(stream: Any, sink: FolderSink) -> Any:
    return pa.ipc.new_file(stream, sink.schema)


_WRITERS: dict[str, Callable[[Any, FolderSink], Any]] = {"parquet": _parquet, "arrow": _arrow}
