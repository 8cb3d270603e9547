# SPDX-License-Identifier: Apache-2.0
"""The rows of a query as numbered batches for a function of the driver's: each batch whole checkpoints, done once.

    <folder>/part-<uid>-<subtask>-<owner>-e<epoch>-<token>.parquet   rows of a complete checkpoint (`folder_sink`)
    <folder>/.batch-<number>.begun                                   the files of a batch: written before the call
    <folder>/.batch-<number>.done                                    the call has ended well; then its files go

A batch is made of the newest complete checkpoint: the driver publishes what the sink's tasks prepared for it, as they
do, and takes all published files up to its epoch. So a batch ends at a checkpoint, and where the function is slower
than the checkpoints it gets several at once. A batch that was begun and is not done is given again, with its number
and the same files. Numbers begin with 0 and grow by one. A list of the folder counts where it shows the mark that
checkpoints name: a folder that is away looks like one without batches.

All files that wait for a call have the columns of the query: one that goes on with others is refused as it starts.

Limits: a driver that was replaced and still lives may call its function once more. Files wait on the disk while the
function is behind; nothing slows the query down for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgpack
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.found import UsableCheckpoint
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import PlanError
from penstock.machine.disk import Disk
from penstock.stream.sink_folder import MARK, Prepared, SinkFolder

_STATE = "sink/sink"
"""The chunk of a query's sink: its operator's id and its step's name for it."""
_EPOCH = re.compile(r"part-.*-e(\d+)-[0-9a-f]{16}\.parquet")
_ATTEMPT = re.compile(r"-e\d+-[0-9a-f]{16}\.parquet")
_BEGUN = re.compile(r"\.batch-(\d+)\.begun")


@dataclass(frozen=True, slots=True)
class FileBatch:
    """A batch: names of files; `is_again`: its function was called before, and did not come to its end."""

    number: int
    files: tuple[str, ...]
    is_again: bool = False


def _epoch_of(name: str, other: int) -> int:
    """The number of the first checkpoint that may hold a file's rows; `other` for what is no file of rows."""
    found = _EPOCH.fullmatch(name)
    return other if found is None else int(found[1])


def _stored(schema: pa.Schema) -> pa.Schema:
    """A schema as it is read from a file."""
    file = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), file)
    return pq.read_schema(pa.BufferReader(file.getvalue())).remove_metadata()


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class BatchFiles:
    """The batches of one query, whose checkpoints lie at `location` and whose sink writes into `folder`."""

    def __init__(self, filesystem: pafs.FileSystem, folder: str, location: str) -> None:
        self._fs = filesystem
        self._folder = folder
        self._checkpoints = CheckpointStorage(location)
        self._disk = Disk(filesystem)
        self._next: int | None = None
        self._published: tuple[int, list[Prepared]] | None = None
        """The checkpoint whose files were published last."""

    def take(self) -> FileBatch | None:
        """The next batch, whose call may begin; None where there is none yet. An error changes nothing."""
        newest = self._newest()
        if newest is None:
            return None
        names = self._names(newest[1])
        if self._next is None and (again := self._look_back(names)) is not None:
            return again
        if newest != self._published:
            self._publish(newest[1])
            self._published = newest
            names = self._names(newest[1])
        files = tuple(sorted(name for name in names if _epoch_of(name, newest[0] + 1) <= newest[0]))
        if not files:
            return None
        number = self._next or 0
        place = f"{self._folder}/.batch-{number:08d}"
        with self._fs.open_output_stream(f"{place}.new") as stream:
            stream.write(msgpack.packb(files))
        self._disk.sync_file(f"{place}.new")
        self._fs.move(f"{place}.new", f"{place}.begun")
        self._disk.sync_folder(self._folder)
        self._next = number + 1
        return FileBatch(number, files)

    def done(self, batch: FileBatch) -> None:
        """Its call has ended well: it is not given again. Raises OSError where that can't be known."""
        mark = f"{self._folder}/.batch-{batch.number:08d}.done"
        with self._fs.open_output_stream(mark):
            pass
        self._disk.sync_file(mark)
        self._disk.sync_folder(self._folder)
        self._remove(batch.files)
        before = f".batch-{batch.number - 1:08d}"
        self._remove((f"{before}.begun", f"{before}.done"))

    def refuse_others(self, schema: pa.Schema) -> None:
        """Raise PlanError where rows that wait for a call have other columns than the query's files will have.

        Raises CheckpointError where the folder is away. Nothing is changed.
        """
        newest = self._newest()
        if newest is None:
            return
        try:
            names = self._names(newest[1])
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{self._folder} is not as the query left it: {error.strerror} Bring it back, or start with another"
                " checkpointLocation"
            ) from error
        _, files, is_done = self._last_begun(names)
        waiting = {name for name in names if _EPOCH.fullmatch(name)}
        hidden = {f".{name}" for state in newest[1] for _, name in state.files} & names
        waiting = waiting - set(files) if is_done else waiting | set(files)
        by_attempt = {_ATTEMPT.sub("", name): name for name in waiting | hidden}
        wanted = _stored(schema)
        for name in by_attempt.values():  # an attempt has one plan, so one of its files speaks for all
            with self._fs.open_input_file(f"{self._folder}/{name}") as file:
                found = pq.read_schema(file).remove_metadata()
            if found != wanted:
                raise PlanError(
                    f"foreachBatch has rows to give that are not done, with the columns {_listed(found)}, and this"
                    f" query has {_listed(wanted)}: start it as it was until they are done, as with"
                    " trigger(availableNow=True), or with another checkpointLocation"
                )

    def _look_back(self, names: set[str]) -> FileBatch | None:
        """Find out what an earlier driver has done; a batch of it that did not come to its end."""
        last, files, is_done = self._last_begun(names)
        if is_done:
            self._remove(files)
        self._next = last + 1
        return None if is_done else FileBatch(last, files, is_again=True)

    def _last_begun(self, names: set[str]) -> tuple[int, tuple[str, ...], bool]:
        """The last batch that was begun, its files, and whether it is done; -1 where there was none."""
        last = max((int(found[1]) for name in names if (found := _BEGUN.fullmatch(name))), default=-1)
        if last < 0:
            return last, (), True
        with self._fs.open_input_stream(f"{self._folder}/.batch-{last:08d}.begun") as stream:
            return last, tuple(msgpack.unpackb(stream.read())), f".batch-{last:08d}.done" in names

    def _newest(self) -> tuple[int, list[Prepared]] | None:
        """The newest complete checkpoint, and what the sink's tasks prepared for it; None where there is none."""
        good = [each.metadata for each in self._checkpoints.history() if isinstance(each, UsableCheckpoint)]
        newest = max(good, key=lambda metadata: metadata.number, default=None)
        if newest is None:
            return None
        parts = [part for part in newest.parts.values() if any(chunk.name == _STATE for chunk in part.chunks)]
        states = [state for part in parts for _, state in self._checkpoints.read(part, [_STATE])]
        return newest.number, [Prepared.of(state) for state in states]

    def _publish(self, states: Sequence[Prepared]) -> None:
        """Publish all that a checkpoint names."""
        for prepared in states:
            for _, name in prepared.files:
                SinkFolder(self._fs, self._folder, prepared.mark).publish(name)

    def _names(self, states: Sequence[Prepared]) -> set[str]:
        """The names in the folder; raises OSError where the mark that checkpoints name is not among them.

        A checkpoint whose tasks had all ended has no word of theirs, as they had published: then any mark counts.
        """
        mark = next((each.mark for each in states), "") or self._any_mark()
        return SinkFolder(self._fs, self._folder, mark).names()

    def _any_mark(self) -> str:
        found = self._fs.get_file_info(pafs.FileSelector(self._folder, allow_not_found=True))
        names = (info.base_name for info in found)
        return next((name for name in names if name.startswith(MARK)), f"{MARK}...")

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.delete_file(f"{self._folder}/{name}")
