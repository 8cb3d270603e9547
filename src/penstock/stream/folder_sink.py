# SPDX-License-Identifier: Apache-2.0
"""A sink of files in a folder, with two phases: `parquet`, `csv`, `json`, or `arrow` for jobs that read them at once.

    <folder>/.part-<uid>-<subtask>-<owner>-<token>.parquet   being written, or prepared: readers skip names with a dot
    <folder>/part-<uid>-<subtask>-<owner>-<token>.parquet    published, by a change of its name
    <folder>/.folder-<uid>-<owner>                           the folder's mark (see `sink_folder`)

With `partition_by` the files lie in folders named by the values of these columns, `<folder>/day=2026-01-31/part-...`,
as Spark names them, and lack the columns.

A file holds what came between two barriers. At the second it ends, and its name goes into the checkpoint, whose
thread writes it and waits until it is on the disk; when that is complete it gets the name that readers see. From then
on it is the reader's, who may move it on. An error of that thread declines the checkpoint and is raised by the next
call. An attempt begins by publishing what the restored checkpoint names. After its first complete checkpoint, and at
its end, it removes what earlier attempts have left besides. `uid` tells queries that write into one folder apart; it
must be the same in all attempts of a query. `owner` grows with each attempt, also where another driver has taken
over: so a task that begins late leaves the files of later attempts alone.

Limits: a folder of a partitioned sink stays when its files have gone. A file system that can't change a name in one
step (object stores) shows a file when it is there as a whole.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import PlanError, SettingError
from penstock.operators.csv_write import PLAIN_CSV, CsvSigns
from penstock.operators.file_forms import FORMS, FileForm
from penstock.operators.partitioned_write import by_folder
from penstock.stream.last_rows import LastRows, with_epoch
from penstock.stream.sink_files import EndedFiles, SinkFiles, files_schema
from penstock.stream.sink_folder import MARK, Prepared, SinkFolder

_REMEMBERED = 1000
"""So many published names a writer knows: the thread that stores checkpoints may not have looked yet."""


@dataclass(frozen=True, slots=True)
class FolderSink:
    """Files of `format` (one of `file_forms.FORMS`) in `folder`; `compression` is Parquet's, `csv` that of CSV."""

    filesystem: pafs.FileSystem
    folder: str
    schema: pa.Schema
    uid: str
    format: str = "parquet"
    compression: str = "snappy"
    owner: str = "0"
    """The attempt that opens it (see `StreamSink`)."""
    partition_by: tuple[str, ...] = ()
    csv: CsvSigns = PLAIN_CSV
    keys: tuple[str, ...] = ()
    """Of these columns' values only the last row of each epoch is written."""
    epoch_column: str = ""
    """The name of a column of epochs, the last of the files' columns; empty: there is none."""
    has_epochs: bool = False
    """Names have the number of the first checkpoint that may hold the rows, `-e<number>` ahead of their token."""

    def __post_init__(self) -> None:
        if self.format not in FORMS:
            raise SettingError(f"files of format {self.format!r}: one of {', '.join(FORMS)}")
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.uid):
            raise SettingError(f"the sink's uid {self.uid!r}: letters, digits and underscores, for it names files")

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        by = f" by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"{self.format} {self.folder}{by}"

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

    def is_elsewhere(self, restored: Sequence[bytes]) -> bool:
        """Tell if these files were prepared in another folder that may be left; not where rows have epochs.

        Epochs are numbers of checkpoints, which a place that begins without a state does not know: a consumer that
        takes each batch once, by its number, would drop the first one.
        """
        has_epochs = self.has_epochs or bool(self.epoch_column)
        return not has_epochs and any(
            prepared.folder not in ("", self.folder) for prepared in map(Prepared.of, restored)
        )

    def check_anew(self) -> None:
        """Raise CheckpointError if this query has published files, which it does only after a checkpoint."""
        found = self.filesystem.get_file_info(
            pafs.FileSelector(self.folder, allow_not_found=True, recursive=bool(self.partition_by))
        )
        published = next((info.base_name for info in found if info.base_name.startswith(f"part-{self.uid}-")), None)
        if published is not None:
            raise CheckpointError(
                f"the checkpointLocation is empty, and {self.folder} has files of this query, {published} and maybe"
                " more: is the location away? Bring it back. To start over, which writes all rows again, give another"
                " checkpointLocation, or remove these files"
            )

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> FolderWriter:
        """Publish what was prepared, and begin."""
        states = [Prepared.of(state) for state in restored]
        known = next((state.mark for state in states if state.mark), "")
        folder = SinkFolder(self.filesystem, self.folder, known or f"{MARK}{self.uid}-{self.owner}")
        if known:
            folder.require()
        for state in states:
            left = SinkFolder(self.filesystem, self.folder, state.mark)
            for _, name in state.files:
                left.publish(name)
            if state.files:  # the next checkpoint does not name them any more
                left.sync()
        if not known:
            folder.make()
        return FolderWriter(self, folder, (subtask, parallelism), max((each.epoch for each in states), default=0))

    def remove_leftovers(self, folder: SinkFolder, subtask: int, parallelism: int) -> None:
        """Files of earlier attempts of this subtask, by this driver or one before it, that no checkpoint names.

        Not ahead of the attempt's first complete checkpoint: its plan may have lost the stage whose state names them.
        Raises OSError where the folder is away, or can't be listed.
        """
        ours = re.compile(rf"\.part-{self.uid}-(\d+)-([0-9a-f-]+?)(?:-e\d+)?-[0-9a-f]{{16}}\.{self.format}")
        for name in folder.names(recursive=bool(self.partition_by)):
            found = ours.fullmatch(name.rpartition("/")[2])
            if found and int(found[1]) % parallelism == subtask and found[2] < self.owner:
                with suppress(FileNotFoundError):
                    self.filesystem.delete_file(f"{self.folder}/{name}")


class FolderWriter:
    """Writes the files of one subtask."""

    def __init__(self, sink: FolderSink, folder: SinkFolder, share: tuple[int, int], epoch: int = 0) -> None:
        self._epoch = epoch
        """The checkpoint that it prepared for last, or began with."""
        self._sink = sink
        self._share = share
        self._has_committed = self._has_removed = False
        subtask, _ = share
        self._folder = folder
        self._start = f"part-{sink.uid}-{subtask:05d}-{sink.owner}"
        epochs = [pa.field(sink.epoch_column, pa.int64())] if sink.epoch_column else []
        self._rows = pa.schema([*sink.schema, *epochs])
        form = FileForm(sink.format, files_schema(self._rows, sink.partition_by), sink.compression, sink.csv)
        self._schema = form.schema
        self._last = LastRows(sink.keys) if sink.keys else None
        self._files = SinkFiles(form, self._new_name, self._open_stream)
        self._prepared: list[tuple[int, str]] = []
        self._ended: list[tuple[int, EndedFiles]] = []
        """Files that are not written as a whole, each with the checkpoint that it was prepared for."""
        self._finishing = threading.Lock()
        self._failure: Exception | None = None
        self._published: dict[str, None] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; large amounts are written at once."""
        self._check()
        if self._last is not None:
            self._last.add(batch)
        else:
            self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._sink.epoch_column:
            batch = with_epoch(batch, self._rows, self._epoch + 1)
        keys = self._sink.partition_by
        if not keys:
            self._files.write("", batch)
            return
        for folder, rows in by_folder(batch, keys, self._schema.names):
            self._files.write(f"{folder}/", rows)

    def prepare(self, checkpoint: int) -> bytes:
        """End the files; the names of all that is to be published."""
        self._check()
        for rows in self._last.take() if self._last is not None else ():
            self._write(rows)
        ended = self._files.end()
        if ended.rows:
            self._ended.append((checkpoint, ended))
        self._prepared += [(checkpoint, name) for name in ended.rows]
        self._epoch = checkpoint
        return Prepared(self._prepared, self._sink.folder, self._folder.mark, checkpoint).packed()

    def sync(self, prepared: bytes) -> None:
        """Write the files that were prepared, and wait until they and the names of published ones are on the disk.

        Raises OSError, and so declines the checkpoint, where one of them is gone.
        """
        self._finish(Prepared.of(prepared).epoch)
        names = [name for _, name in Prepared.of(prepared).files]
        self._folder.sync_files(names)
        self._folder.refuse_lost(names, self._published)

    def commit(self, checkpoint: int) -> None:
        """Publish what was prepared up to this checkpoint; the first time also remove what earlier attempts left."""
        self._check()
        if any(number <= checkpoint for number, _ in list(self._ended)):
            self._finish(checkpoint)  # no thread has: there are no checkpoints
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
        """Remove the files being written, and leftovers that a list did not show; what was prepared stays."""
        try:
            if self._has_committed:
                self._remove_leftovers()
            self._folder.sync()
        finally:
            for name in [*self._files.abandon(), *self._abandoned()]:
                with suppress(OSError, pa.ArrowException):
                    self._sink.filesystem.delete_file(self._folder.hidden(name))

    def _finish(self, checkpoint: int) -> None:
        """Write all that was prepared up to a checkpoint. Any thread."""
        with self._finishing:
            self._check()
            try:
                while self._ended and self._ended[0][0] <= checkpoint:
                    self._ended[0][1].finish()
                    del self._ended[0]
            except Exception as error:
                self._failure = error
                raise

    def _check(self) -> None:
        """Raise what has kept prepared files from being written: their rows are lost to this attempt."""
        if self._failure is not None:
            raise self._failure

    def _abandoned(self) -> list[str]:
        """Prepared files that are not whole; where a thread still writes some, a later attempt removes them."""
        if not self._finishing.acquire(blocking=False):
            return []
        try:
            ended, self._ended = self._ended, []
            return [name for _, each in ended for name in each.abandon()]
        finally:
            self._finishing.release()

    def _remove_leftovers(self) -> None:
        with suppress(OSError):  # after the next checkpoint, then
            self._sink.remove_leftovers(self._folder, *self._share)
            self._has_removed = True

    def _new_name(self, folder: str) -> str:
        epoch = f"-e{self._epoch + 1:08d}" if self._sink.has_epochs else ""
        return f"{folder}{self._start}{epoch}-{secrets.token_hex(8)}.{self._sink.format}"

    def _open_stream(self, name: str) -> pa.NativeFile:
        self._folder.make_within(name)
        return self._sink.filesystem.open_output_stream(self._folder.hidden(name))
