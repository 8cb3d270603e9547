# SPDX-License-Identifier: Apache-2.0
"""A sink of files in a folder, with two phases: `parquet`, or `arrow` for whoever reads them at once.

    <folder>/.part-<uid>-<subtask>-<owner>-<token>.parquet   being written, or prepared: readers skip names with a dot
    <folder>/part-<uid>-<subtask>-<owner>-<token>.parquet    published, by a change of its name
    <folder>/.folder-<uid>-<owner>                           the folder's mark (see `sink_folder`)

A file holds what came between two barriers. At the second it is closed, and its name goes into the checkpoint, whose
thread waits until it is on the disk; when that is complete it gets the name that readers see. From then on it is the
reader's, who may move it on. An attempt begins by publishing what the restored checkpoint names. After its first
complete checkpoint, and at its end, it removes what earlier attempts have left besides. `uid` tells queries that
write into one folder apart; it must be the same in all attempts of a query. `owner` grows with each attempt, also
where another driver has taken over: so a task that begins late leaves the files of later attempts alone.

Limits: a file system that can't change a name in one step (object stores) shows a file when it is there as a whole.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import PlanError, SettingError
from penstock.stream.sink_folder import Prepared, SinkFolder

GROUP_ROWS = 1 << 20
MOST_BYTES = 32 << 20
"""Rows are held so long, then they become a row group."""
_REMEMBERED = 1000
"""So many published names a writer knows: the thread that stores checkpoints may not have looked yet."""


@dataclass(frozen=True, slots=True)
class FolderSink:
    """Files of `format` ("parquet" or "arrow") in `folder`; `compression` is Parquet's."""

    filesystem: pafs.FileSystem
    folder: str
    schema: pa.Schema
    uid: str
    format: str = "parquet"
    compression: str = "snappy"
    owner: str = "0"
    """The attempt that opens it (see `StreamSink`)."""

    def __post_init__(self) -> None:
        if self.format not in _WRITERS:
            raise SettingError(f"files of format {self.format!r}: one of {', '.join(_WRITERS)}")
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.uid):
            raise SettingError(f"the sink's uid {self.uid!r}: letters, digits and underscores, for it names files")

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"{self.format} {self.folder}"

    def owned(self, owner: str) -> FolderSink:
        """The same sink, for one attempt."""
        return replace(self, owner=owner)

    def check(self, restored: Sequence[bytes]) -> None:
        """Raise PlanError or CheckpointError where a query that goes on from these can't have this sink."""
        for prepared in map(Prepared.of, restored):
            if prepared.folder not in ("", self.folder):
                raise PlanError(
                    f"the checkpoint to go on from has files to publish in {prepared.folder}, and this query writes"
                    f" into {self.folder}: start it with the path that it had, or with another checkpointLocation"
                )
            if prepared.mark:
                try:
                    SinkFolder(self.filesystem, self.folder, prepared.mark).require()
                except FileNotFoundError as error:
                    raise CheckpointError(
                        f"{self.folder} is not as the query left it: {error.strerror} Bring it back, or start with"
                        " another checkpointLocation"
                    ) from error

    def check_anew(self) -> None:
        """Raise CheckpointError if this query has published files, which it does only after a checkpoint."""
        found = self.filesystem.get_file_info(pafs.FileSelector(self.folder, allow_not_found=True))
        published = next((info.base_name for info in found if info.base_name.startswith(f"part-{self.uid}-")), None)
        if published is not None:
            raise CheckpointError(
                f"the checkpointLocation is empty, and {self.folder} has files of this query, {published} and maybe"
                " more: is the location away? Bring it back. To begin anew, which writes all rows again, give another"
                " checkpointLocation, or remove these files"
            )

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> FolderWriter:
        """Publish what was prepared, and begin."""
        states = [Prepared.of(state) for state in restored]
        known = next((state.mark for state in states if state.mark), "")
        folder = SinkFolder(self.filesystem, self.folder, known or f".folder-{self.uid}-{self.owner}")
        if known:
            folder.require()
        for state in states:
            for _, name in state.files:
                SinkFolder(self.filesystem, self.folder, state.mark).publish(name)
        if not known:
            folder.make()
        return FolderWriter(self, folder, (subtask, parallelism))

    def remove_leftovers(self, folder: SinkFolder, subtask: int, parallelism: int) -> None:
        """Files of earlier attempts of this subtask, by this driver or one before it, that no checkpoint names.

        Not ahead of the attempt's first complete checkpoint: its plan may have lost the stage whose state names them.
        Raises OSError where the folder is away, or can't be listed.
        """
        ours = re.compile(rf"\.part-{self.uid}-(\d+)-([0-9a-f-]+)-[0-9a-f]{{16}}\.{self.format}")
        for name in folder.names():
            found = ours.fullmatch(name)
            if found and int(found[1]) % parallelism == subtask and found[2] < self.owner:
                with suppress(FileNotFoundError):
                    self.filesystem.delete_file(f"{self.folder}/{name}")


class FolderWriter:
    """One subtask's files."""

    def __init__(self, sink: FolderSink, folder: SinkFolder, share: tuple[int, int]) -> None:
        self._sink = sink
        self._share = share
        self._has_committed = self._has_removed = False
        subtask, _ = share
        self._folder = folder
        self._start = f"part-{sink.uid}-{subtask:05d}-{sink.owner}"
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._name = ""
        self._stream: Any = None
        self._file: Any = None
        self._prepared: list[tuple[int, str]] = []
        self._published: dict[str, None] = {}

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
        return Prepared(self._prepared, self._sink.folder, self._folder.mark).packed()

    def sync(self, prepared: bytes) -> None:
        """Wait until the files that were prepared are on the disk, and the new names of those that were published.

        Raises OSError, and so declines the checkpoint, where one of them is gone.
        """
        names = [name for _, name in Prepared.of(prepared).files]
        self._folder.sync_files(names)
        self._folder.refuse_lost(names, self._published)

    def commit(self, checkpoint: int) -> None:
        """Publish what was prepared up to this checkpoint; the first time also remove what earlier attempts left."""
        while self._prepared and self._prepared[0][0] <= checkpoint:
            name = self._prepared[0][1]
            self._folder.publish(name)
            self._published[name] = None
            del self._prepared[0]
        while len(self._published) > _REMEMBERED:
            del self._published[next(iter(self._published))]
        self._has_committed = True
        if not self._has_removed:
            self._remove_leftovers()

    def close(self) -> None:
        """Remove the file that is being written, and leftovers that a list did not show; what was prepared stays."""
        if self._has_committed:
            self._remove_leftovers()
        self._folder.sync()
        if self._file is None:
            return
        with suppress(OSError, pa.ArrowException, ValueError):
            self._close_file()
        with suppress(OSError, pa.ArrowException):
            self._sink.filesystem.delete_file(self._folder.hidden(self._name))

    def _remove_leftovers(self) -> None:
        with suppress(OSError):  # after the next checkpoint, then
            self._sink.remove_leftovers(self._folder, *self._share)
            self._has_removed = True

    def _write_held(self) -> None:
        if not self._held:
            return
        held, self._held = self._held, []
        self._held_rows = self._held_bytes = 0
        if self._file is None:
            self._name = f"{self._start}-{secrets.token_hex(8)}.{self._sink.format}"
            self._stream = self._sink.filesystem.open_output_stream(self._folder.hidden(self._name))
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
