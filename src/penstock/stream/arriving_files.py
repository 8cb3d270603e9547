# SPDX-License-Identifier: Apache-2.0
"""A source of files that arrive in a folder: each is read once, in the order in which they came.

A subtask has the files whose names' hash falls to it. It has the folder looked into every so often, beside its work,
and reads what is new by time of change, then by name. Its position is in `file_progress`.

Rules for the writers of files: a file appears whole (written elsewhere, then renamed) and does not change. Names that
begin with a dot or an underscore are not read, nor are subfolders, unless the choice of files says so: a file's name
has that of its subfolders ahead then. A name stands for its file: one that is replaced, or touched, is not read
again.

Listings may lack files: nothing follows from that (`known_files`). A file that was begun and can't be opened is tried
again, and the others are read meanwhile; after `GONE_SECONDS` that is an error. One that was not begun is left out
until a listing has it again; but a bounded source has to read all that its first listing had.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import SettingError
from penstock.machine.file_choice import EACH_FILE, FileChoice
from penstock.machine.locations import is_here
from penstock.record.row_sizes import first_rows
from penstock.stream.file_progress import FileProgress
from penstock.stream.file_rows import START, FileFormat, Placed
from penstock.stream.folder_looks import Listed, Look, Looks, LooksAtOnce, LooksBeside, listed, look
from penstock.stream.known_files import DAY_SECONDS, KEPT_DAYS
from penstock.stream.sources import read_whole

LISTING_SECONDS = 1.0
LISTING_SHARE = 0.05
"""The most of the time that goes into listings: a folder that takes longer to list is looked into more seldom."""
LOOK_SECONDS = 600.0
"""A listing that takes longer hangs: the query begins anew."""
GONE_SECONDS = 300.0
"""Seconds that a file that was begun may be away."""
_RETRY_SECONDS = (0.5, 10.0)
"""The first wait for one that is away, and the longest."""
_POLL_SECONDS = 0.008
"""Seconds that a poll goes on through files without rows."""
_ASK_SECONDS = (0.001, 0.05)
"""Seconds until a look under way is asked for: a quarter of its time, in these bounds."""

_LOG = logging.getLogger("penstock.stream")


@dataclass(frozen=True, slots=True)
class FilesSource:
    """The files of a folder; with `is_bounded` those that are there at the start, and then the source has ended.

    `is_available_now`: the readers of a run end after the files that their first look finds; a later run looks again.
    """

    filesystem: pafs.FileSystem
    folder: str
    format: FileFormat
    is_bounded: bool = False
    listing_seconds: float = LISTING_SECONDS
    is_available_now: bool = False
    choice: FileChoice = EACH_FILE

    def available_now(self) -> FilesSource:
        """Up to the files that are there as a reader is opened."""
        return replace(self, is_available_now=True)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"{self.format.name} files of {self.folder}"

    @property
    def reads(self) -> str:
        """The input that its positions in checkpoints are of: a local folder is the same by whatever path."""
        if is_here(self.filesystem):
            return f"{self.format.name} files of {os.path.realpath(self.folder)}"
        kind = self.filesystem.type_name.removeprefix("py::")
        return f"{self.format.name} files of {kind}:{self.folder.rstrip('/')}"

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return self.format.schema

    def splits(self) -> int | None:
        """Any number of subtasks."""
        return None

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> FilesReader:
        """A subtask's files."""
        progress = FileProgress.restored(restored, subtask, parallelism)
        return FilesReader(self, (subtask, parallelism), progress, World(LooksBeside(str(subtask))))

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """The rows of the files that are there now, for a batch job."""
        bounded = FilesSource(self.filesystem, self.folder, self.format, is_bounded=True, choice=self.choice)
        world = World(LooksAtOnce(), gone_seconds=0.0)
        yield from read_whole(FilesReader(bounded, (subtask, parallelism), FileProgress(), world))

    def listed(self) -> Listed:
        """Time of change (nanoseconds), name and bytes of each file; raises OSError where it can't be listed."""
        return listed(self.filesystem, self.folder, self.choice)


@dataclass(frozen=True, slots=True)
class World:
    """The surroundings of a reader: its way to look, both clocks, and the time that a begun file may be away."""

    looks: Looks
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    gone_seconds: float = GONE_SECONDS


@dataclass(slots=True)
class _Gone:
    """A file that could not be opened: when to try again, and how long the wait was."""

    retry_at: float
    waited: float


@dataclass(slots=True)
class _Looking:
    """When looks begin."""

    due: float | None = None
    """When the next one does; None: none has been."""
    began: float | None = None
    """When the one under way did."""
    has_looked: bool = False
    """True if one has ended."""


class _Sizes:
    """The bytes of files that are not done, with their sum."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[str, int] = {}

    def add(self, sizes: dict[str, int]) -> None:
        """These files are new, or have come back."""
        for name, size in sizes.items():
            self.total += size - self._of.get(name, 0)
            self._of[name] = size

    def drop(self, name: str) -> None:
        """A file is done, or gone; one that is not known, because it was restored, counts nothing."""
        self.total -= self._of.pop(name, 0)


class FilesReader:
    """One subtask's files; `share` is its number and how many share the folder."""

    def __init__(self, source: FilesSource, share: tuple[int, int], progress: FileProgress, world: World) -> None:
        self._source = source
        self._share = share
        self._progress = progress
        self._world = world
        self._looking = _Looking()
        self._again = list(progress.begun)
        """Files that were begun, and that are to be opened again."""
        self._backlog = set(progress.begun)
        """Files that were there at the first look, and are not read."""
        self._gone: dict[str, _Gone] = {}
        self._sizes = _Sizes()
        self._file = ""
        self._rows: Iterator[Placed] = iter(())
        self._part: Placed | None = None

    @property
    def is_ended(self) -> bool:
        """True if all files were read that a bounded source, or one of what is available, has to read."""
        return not self._looks_again and not (self._progress.begun or self._progress.waiting)

    @property
    def reads_backlog(self) -> bool:
        """True while files are to be read that the first look has found: their order says nothing of their rows."""
        return bool(self._backlog) or not self._looking.has_looked

    @property
    def wake_at(self) -> float | None:
        """When the folder is looked into again, or may have been."""
        if self._file or self._again or self._progress.waiting:
            return None
        moments = [gone.retry_at for gone in self._gone.values()]
        if (began := self._looking.began) is not None:
            now = self._world.clock()
            moments.append(now + min(max((now - began) / 4, _ASK_SECONDS[0]), _ASK_SECONDS[1]))
        elif self._looks_again and self._looking.due is not None:
            moments.append(self._looking.due)
        return min(moments, default=None)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows of the file that is being read, or of the next one."""
        if self._part is None and not self._next_part():
            return None
        assert self._part is not None  # noqa: S101 - just found
        (part, before), batch = self._part
        given = first_rows(batch, max_rows)
        position = (part, before + given.num_rows)
        self._part = (position, batch.slice(given.num_rows)) if batch.num_rows > given.num_rows else None
        self._progress.begun[self._file].position = position
        return given

    def outstanding(self) -> dict[str, float]:
        """Files that are seen and not read to their end, and their bytes; all bytes of one that is begun count."""
        return {"files": len(self._progress.waiting) + len(self._progress.begun), "bytes": self._sizes.total}

    def snapshot(self) -> bytes:
        """The files that are done, and the positions in the others."""
        return self._progress.packed(is_bounded=self._source.is_bounded)

    def close(self) -> None:
        """Close the file."""
        self._rows = iter(())
        self._part = None
        self._world.looks.close()

    def _next_part(self) -> bool:
        """Find rows; False where there are none now, or many files had none: who polls has other things to do."""
        until = self._world.clock() + _POLL_SECONDS
        while True:
            if self._file:
                if self._read_on():
                    return True
                if self._world.clock() > until:
                    return False
                continue
            self._take_look()
            name = self._next_file()
            if name is None and not self._begin_look():
                return False
            if name is not None:
                self._open(name)

    def _read_on(self) -> bool:
        """The next rows of the file; False after its end, or if it is gone."""
        name = self._file
        try:
            self._part = next(self._rows, None)
        except FileNotFoundError:
            self._file = ""
            self._leave(name)
            return False
        except BaseException:
            # A reader that asks once more gets the rows after those that were given.
            self._file = ""
            self._again.insert(0, name)
            raise
        if self._part is not None:
            self._gone.pop(name, None)
            self._progress.begun[name].gone_since = 0.0
            return True
        self._file = ""
        self._gone.pop(name, None)
        self._progress.finish(name, self._day)
        self._sizes.drop(name)
        self._backlog.discard(name)
        return False

    def _next_file(self) -> str | None:
        """The file to read: first those that were begun, then those that wait, in their order."""
        if self._again:
            return self._again.pop(0)
        now = self._world.clock()
        back = next((name for name, gone in self._gone.items() if gone.retry_at <= now), None)
        return self._progress.begin_next() if back is None else back

    def _open(self, name: str) -> None:
        path = f"{self._source.folder}/{name}"
        self._file = name
        position = self._progress.begun[name].position
        self._rows = self._source.format.rows(self._source.filesystem, path, position)

    def _leave(self, name: str) -> None:
        """A file could not be opened: raises SettingError where it has been away for too long."""
        begun = self._progress.begun[name]
        path = f"{self._source.name}: {name}"
        now, wall = self._world.clock(), self._world.wall()
        if begun.position == START and not self._source.is_bounded:
            _LOG.warning("%s left the folder before it was read; it is read if it comes back", path)
            del self._progress.begun[name]
            self._sizes.drop(name)
            self._backlog.discard(name)
            self._looking.due = max(self._looking.due or 0.0, now + _RETRY_SECONDS[0])
            return
        if not begun.gone_since:
            _LOG.warning("%s can't be found and is not read to its end: it is tried again", path)
            begun.gone_since = wall
        away = wall - begun.gone_since
        if away >= self._world.gone_seconds:
            raise SettingError(
                f"{path} is not read to its end, and could not be found for {away:.0f} s: put it back, or start the "
                "query at another checkpointLocation"
            )
        before = self._gone.get(name)
        waited = _RETRY_SECONDS[0] if before is None else min(before.waited * 2, _RETRY_SECONDS[1])
        self._gone[name] = _Gone(now + waited, waited)

    @property
    def _day(self) -> int:
        """This machine's."""
        return int(self._world.wall() // DAY_SECONDS)

    @property
    def _looks_again(self) -> bool:
        if self._source.is_available_now and self._looking.has_looked:
            return False
        return not (self._source.is_bounded and self._progress.is_listed)

    def _begin_look(self) -> bool:
        """Begin to look for new files, where it is time; whether there is something to take now."""
        looking, now = self._looking, self._world.clock()
        if looking.began is not None or not self._looks_again or (looking.due is not None and now < looking.due):
            return False
        looking.began = now
        source, share, day = self._source, self._share, self._day
        known, read = self._progress.known, self._progress.hand_over()
        self._world.looks.begin(lambda: look(source.listed(), known, read, share, day))
        return self._take_look() and bool(self._progress.waiting)

    def _take_look(self) -> bool:
        """Take what a look has found, if it is over; raises what it raised, and SettingError for a file too old."""
        looking = self._looking
        if looking.began is None:
            return False
        try:
            found = self._world.looks.result()
        except BaseException:
            looking.began = None
            raise
        now = self._world.clock()
        if found is None:
            if now - looking.began > LOOK_SECONDS:
                raise TimeoutError(f"{self._source.folder} was not listed within {LOOK_SECONDS:.0f} s")
            return False
        took, looking.began = now - looking.began, None
        looking.due = now + self._source.listing_seconds * max(1.0, took / LISTING_SHARE)
        self._refuse_old(found)
        self._progress.looked(found.known, found.new)
        self._sizes.add({name: found.sizes[name] for name in found.new if name in found.sizes})
        if not looking.has_looked:
            self._backlog |= {*self._progress.begun, *self._progress.waiting}
        self._progress.is_listed = looking.has_looked = True
        return True

    def _refuse_old(self, found: Look) -> None:
        """Raise SettingError for a file that may have been read and forgotten."""
        for changed, name in found.refused:
            if name not in self._progress.begun and name not in self._progress.waiting:
                when = time.strftime("%Y-%m-%d", time.gmtime(changed / 1e9))
                raise SettingError(
                    f"{self._source.name}: {name} was changed on {when}, and names of that time that were away for "
                    f"{KEPT_DAYS} days are forgotten, so it may have been read: move it away, or touch it to have "
                    "it read"
                )
