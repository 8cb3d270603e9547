# SPDX-License-Identifier: Apache-2.0
"""A source of files that arrive in a folder: each is read once, in the order in which they came.

A subtask has the files whose names' hash falls to it. It looks into the folder every so often, and reads what is new
by time of change, then by name. Its position is the names that are done and how far it is in those that are not. A
name that has left the folder is forgotten, so a position is as large as the folder is.

Rules for whoever puts files there: a file appears whole (written elsewhere, then renamed) and does not change. Names
that begin with a dot or an underscore are not read, nor are subfolders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgpack
import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from penstock.shuffle.errors import SettingError
from penstock.stream.file_rows import START, FileFormat, Placed, Position
from penstock.stream.sources import read_whole

LISTING_SECONDS = 1.0
LISTING_SHARE = 0.05
"""A folder that takes longer to list is looked into as much more seldom: the task does nothing else meanwhile."""
_HIDDEN = (".", "_")


@dataclass(frozen=True, slots=True)
class FilesSource:
    """The files of a folder; with `is_bounded` those that are there at the start, and then the source has ended."""

    filesystem: pafs.FileSystem
    folder: str
    format: FileFormat
    is_bounded: bool = False
    listing_seconds: float = LISTING_SECONDS

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return f"{self.format.name} files of {self.folder}"

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return self.format.schema

    def splits(self) -> int | None:
        """Any number of subtasks."""
        return None

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> FilesReader:
        """A subtask's files."""
        progress = _Progress()
        for state in restored:
            progress.add(state)
        return FilesReader(self, (subtask, parallelism), progress, time.monotonic)

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """What is there now, for a batch job."""
        bounded = FilesSource(self.filesystem, self.folder, self.format, is_bounded=True)
        yield from read_whole(bounded.open(subtask, parallelism, []))

    def listed(self) -> list[tuple[int, str]]:
        """Time of change (nanoseconds) and name of each file; raises SettingError where there is no folder."""
        try:
            found = self.filesystem.get_file_info(pafs.FileSelector(self.folder))
        except FileNotFoundError as error:
            raise SettingError(f"{self.name}: there is no such folder") from error
        return sorted(
            (info.mtime_ns or 0, info.base_name)
            for info in found
            if info.is_file and not info.base_name.startswith(_HIDDEN)
        )


@dataclass(slots=True)
class _Progress:
    """What is done, and how far the files are that are not."""

    done: set[str] = field(default_factory=set)
    under_way: dict[str, Position] = field(default_factory=dict)

    def add(self, state: bytes) -> None:
        """Take a snapshot's."""
        done, under_way = msgpack.unpackb(state)
        self.done.update(done)
        self.under_way.update({name: (part, rows) for name, (part, rows) in under_way.items()})

    def keep(self, names: Sequence[str]) -> None:
        """Forget all but these."""
        self.done.intersection_update(names)
        self.under_way = {name: self.under_way[name] for name in names if name in self.under_way}

    def packed(self) -> bytes:
        """As a snapshot holds it."""
        packed: bytes = msgpack.packb([sorted(self.done), self.under_way])
        return packed


class FilesReader:
    """One subtask's files; `share` is its number and how many share the folder."""

    def __init__(
        self, source: FilesSource, share: tuple[int, int], progress: _Progress, clock: Callable[[], float]
    ) -> None:
        self._source = source
        self._subtask, self._parallelism = share
        self._progress = progress
        self._clock = clock
        self._waiting: list[str] = []
        self._look_at: float | None = None
        self._file = ""
        self._rows: Iterator[Placed] = iter(())
        self._part: Placed | None = None
        self._is_ended = False

    @property
    def is_ended(self) -> bool:
        """Whether all files of a bounded source were read."""
        return self._is_ended

    @property
    def wake_at(self) -> float | None:
        """When the folder is looked into again."""
        return None if self._file or self._waiting else self._look_at

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows of the file that is being read, or of the next one."""
        if self._part is None and not self._next_part():
            return None
        assert self._part is not None  # noqa: S101 - just found
        (part, before), batch = self._part
        given = batch.slice(0, max_rows)
        position = (part, before + given.num_rows)
        self._part = (position, batch.slice(max_rows)) if batch.num_rows > max_rows else None
        self._progress.under_way[self._file] = position
        return given

    def snapshot(self) -> bytes:
        """What is done, and how far the others are."""
        return self._progress.packed()

    def close(self) -> None:
        """Close the file."""
        self._rows = iter(())
        self._part = None

    def _next_part(self) -> bool:
        """Find rows; False where there are none now."""
        while True:
            if self._file:
                self._part = next(self._rows, None)
                if self._part is not None:
                    return True
                self._progress.done.add(self._file)
                del self._progress.under_way[self._file]
                self._file = ""
            if not self._waiting and not self._look():
                return False
            self._open(self._waiting.pop(0))

    def _open(self, name: str) -> None:
        position = self._progress.under_way.setdefault(name, START)
        path = f"{self._source.folder}/{name}"
        self._file = name
        self._rows = self._source.format.rows(self._source.filesystem, path, position)

    def _look(self) -> bool:
        """Look for new files, where it is time; whether there are any."""
        now = self._clock()
        if self._is_ended or (self._look_at is not None and now < self._look_at):
            return False
        is_first = self._look_at is None
        self._look_at = now
        if not is_first and self._source.is_bounded:
            self._is_ended = True
            return False
        own = [name for _, name in self._source.listed() if self._is_own(name)]
        took = self._clock() - now
        self._look_at = now + took + self._source.listing_seconds * max(1.0, took / LISTING_SHARE)
        self._progress.keep(own)
        self._waiting = [name for name in own if name not in self._progress.done]
        if not self._waiting and self._source.is_bounded:
            self._is_ended = True
        return bool(self._waiting)

    def _is_own(self, name: str) -> bool:
        return bool(xxhash.xxh3_64_intdigest(name.encode()) % self._parallelism == self._subtask)
