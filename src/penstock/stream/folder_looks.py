# SPDX-License-Identifier: Apache-2.0
"""Looking into a folder beside the task: a thread lists it and finds out what is new.

A folder of 200,000 files takes seconds to list, and a mount may hang. Meanwhile the task reads on and answers
barriers. A look gets the names that are known when it begins and gives those that are known when it ends; it shares
nothing with the task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow.fs as pafs

from penstock.errors import SettingError
from penstock.machine.file_choice import EACH_FILE, FileChoice, is_hidden
from penstock.machine.locations import names_in
from penstock.stream.known_files import DAY_NANOS, Hashes, KnownFiles, hashes_of

_JOIN_SECONDS = 1.0

Listed = Sequence[tuple[int, str, int]]
"""Time of change (nanoseconds), name and bytes of each file."""


@dataclass(frozen=True, slots=True)
class Look:
    """The names that are known after a look, and the files that are not, with the days of their changes.

    The last of `new` is to be read first: to take what is first out of a dict costs the more, the more was taken.
    `refused` are those that may have been read and forgotten, with their times of change.
    """

    known: KnownFiles
    new: dict[str, int]
    refused: Sequence[tuple[int, str]]
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the new files."""


Work = Callable[[], Look]


class Looks(Protocol):
    """The way in which looks are carried out, one at a time."""

    def begin(self, work: Work) -> None:
        """Begin one; none may be under way."""

    def result(self) -> Look | None:
        """The look that was begun, once; None before it has ended. Raises what the look raised."""

    def close(self) -> None:
        """Wait for none any more."""


class LooksAtOnce:
    """Looks for which the caller waits: a batch job does."""

    def __init__(self) -> None:
        self._found: Look | None = None

    def begin(self, work: Work) -> None:
        """Look now."""
        self._found = work()

    def result(self) -> Look | None:
        """The look."""
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Nothing is held."""


class LooksBeside:
    """Each look is a thread, so that one that hangs does not keep the task from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._look: _Thread | None = None

    def begin(self, work: Work) -> None:
        """Start the thread."""
        self._look = _Thread(work, f"penstock-look-{self._name}")
        self._look.start()

    def result(self) -> Look | None:
        """The look, if it has ended."""
        look = self._look
        if look is None or look.is_alive():
            return None
        self._look = None
        if look.error is not None:
            raise look.error
        return look.found

    def close(self) -> None:
        """Leave a thread that hangs to the end of the process."""
        if self._look is not None:
            self._look.join(_JOIN_SECONDS)


class _Thread(threading.Thread):
    def __init__(self, work: Work, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.found: Look | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.found = self._work()
        except BaseException as error:  # noqa: BLE001 - the task raises it
            self.error = error


def listed(filesystem: pafs.FileSystem, folder: str, choice: FileChoice = EACH_FILE) -> Listed:
    """The files of a folder that are to be read; raises OSError, and ValueError for a name that is none.

    Raises SettingError for a folder that is partitioned: rows in folders such as `day=3` would be missed.
    """
    found = filesystem.get_file_info(pafs.FileSelector(folder, recursive=choice.recursive))
    start = len(folder.rstrip("/")) + 1
    with names_in(folder):
        named = [(info.path[start:] if choice.recursive else info.base_name, info) for info in found]
        seen = [(name, info) for name, info in named if not is_hidden(name)]
        parts = [name for name, info in seen if not info.is_file and "=" in name]
        if parts and not choice.recursive:
            raise SettingError(
                f"{folder} is partitioned: it has the folder {min(parts)}, and readStream reads the files of one"
                " folder, none of folders in it: say option('recursiveFileLookup', True), which reads them without"
                " the columns that these names hold, or read that folder"
            )
        kept = [(info.mtime_ns or 0, name, info.size or 0) for name, info in seen if info.is_file]
    return [file for file in kept if choice.takes(file[1], file[0])]


def look(
    files: Listed, known: KnownFiles, read: Sequence[tuple[int, Hashes]], share: tuple[int, int], clock_day: int
) -> Look:
    """The files of a listing that are new to a subtask, which knows these and has read some more since.

    `share` is its number and how many subtasks there are.
    """
    known, forgotten = known.plus(read), known.forgotten
    names = hashes_of([name for _, name, _ in files])
    own = names % np.uint64(share[1]) == share[0]
    days = np.fromiter((changed // DAY_NANOS for changed, _, _ in files), np.int64, len(files))
    known = known.seen(names[own], days[own], clock_day)
    places = np.flatnonzero(own)
    new = sorted((files[place] for place in places[known.unknown(names[own])]), reverse=True)
    refused = [(changed, name) for changed, name, _ in new if changed // DAY_NANOS <= forgotten]
    days_of = {name: changed // DAY_NANOS for changed, name, _ in new}
    return Look(known, days_of, refused, {name: size for _, name, size in new})
