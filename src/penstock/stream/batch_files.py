# SPDX-License-Identifier: Apache-2.0
"""The rows of a query as numbered batches for a function of the driver's: each batch whole checkpoints, done once.

    <folder>/part-<uid>-<subtask>-<owner>-e<epoch>-<token>.parquet   rows of a complete checkpoint (`folder_sink`)
    <folder>/.batch-<number>.begun                                   the files of a batch: written before the call
    <folder>/.batch-<number>.done                                    the call has ended well; then its files go

A batch is made of the newest complete checkpoint: the driver publishes what the sink's tasks prepared for it, as they
do, and takes all published files up to its epoch. So a batch ends at a checkpoint, and where the function is slower
than the checkpoints it gets several at once. A batch that was begun and is not done is given again, with its number
and the same files. Numbers begin with 0 and grow by one.

Limits: a driver that was replaced and still lives may call its function once more. Files wait on the disk while the
function is behind; nothing slows the query down for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgpack
import pyarrow.fs as pafs

from penstock.checkpoint.found import UsableCheckpoint
from penstock.checkpoint.storage import CheckpointStorage
from penstock.machine.disk import Disk
from penstock.stream.sink_folder import Prepared, SinkFolder

_STATE = "sink/sink"
"""The chunk of a query's sink: its operator's id and its step's name for it."""
_EPOCH = re.compile(r"part-.*-e(\d+)-[0-9a-f]{16}\.parquet")
_BEGUN = re.compile(r"\.batch-(\d+)\.begun")


@dataclass(frozen=True, slots=True)
class FileBatch:
    """A batch: names of files; `is_again`: its function was called before, and did not come to its end."""

    number: int
    files: tuple[str, ...]
    is_again: bool = False


class BatchFiles:
    """The batches of one query, whose checkpoints lie at `location` and whose sink writes into `folder`."""

    def __init__(self, filesystem: pafs.FileSystem, folder: str, location: str) -> None:
        self._fs = filesystem
        self._folder = folder
        self._location = location
        self._disk = Disk(filesystem)
        self._next: int | None = None

    def take(self) -> FileBatch | None:
        """The next batch, whose call may begin; None where there is none yet. An error changes nothing."""
        if self._next is None and (again := self._look_back()) is not None:
            return again
        epoch = self._publish_newest()
        files = tuple(sorted(name for name, of in self._published() if of <= epoch))
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
        """Its call has ended well: it is not given again. Raises OSError where nobody can know that."""
        mark = f"{self._folder}/.batch-{batch.number:08d}.done"
        with self._fs.open_output_stream(mark):
            pass
        self._disk.sync_file(mark)
        self._disk.sync_folder(self._folder)
        self._remove(batch.files)
        before = f".batch-{batch.number - 1:08d}"
        self._remove((f"{before}.begun", f"{before}.done"))

    def _look_back(self) -> FileBatch | None:
        """Find out what an earlier driver has done; a batch of it that did not come to its end."""
        names = self._names()
        numbers = [int(found[1]) for name in names if (found := _BEGUN.fullmatch(name))]
        if not numbers:
            self._next = 0
            return None
        last = max(numbers)
        with self._fs.open_input_stream(f"{self._folder}/.batch-{last:08d}.begun") as stream:
            files = tuple(msgpack.unpackb(stream.read()))
        is_done = f".batch-{last:08d}.done" in names
        if is_done:
            self._remove(files)
        self._next = last + 1
        return None if is_done else FileBatch(last, files, is_again=True)

    def _publish_newest(self) -> int:
        """Publish all that the newest complete checkpoint names; its number, or -1 where there is none."""
        good = [each for each in CheckpointStorage(self._location).history() if isinstance(each, UsableCheckpoint)]
        newest = max((each.metadata for each in good), key=lambda metadata: metadata.number, default=None)
        if newest is None:
            return -1
        storage = CheckpointStorage(self._location)
        for part in newest.parts.values():
            if any(chunk.name == _STATE for chunk in part.chunks):
                for _, state in storage.read(part, [_STATE]):
                    prepared = Prepared.of(state)
                    for _, name in prepared.files:
                        SinkFolder(self._fs, self._folder, prepared.mark).publish(name)
        return newest.number

    def _published(self) -> Iterator[tuple[str, int]]:
        for name in self._names():
            if (found := _EPOCH.fullmatch(name)) is not None:
                yield name, int(found[1])

    def _names(self) -> set[str]:
        selector = pafs.FileSelector(self._folder, allow_not_found=True)
        return {info.base_name for info in self._fs.get_file_info(selector)}

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.delete_file(f"{self._folder}/{name}")
