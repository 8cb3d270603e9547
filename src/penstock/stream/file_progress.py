# SPDX-License-Identifier: Apache-2.0
"""The progress of a subtask through the files of a folder, and its bytes in checkpoints.

It is the hashes of the names that are done (`known_files`), and by name how far it is in the files that it has begun.
Of a bounded source it is also the names that are still to be read, once the folder was looked into: a later attempt
reads these and no others, whatever its listing lacks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgpack
import numpy as np

from penstock.errors import PlanError
from penstock.stream.file_rows import START, Position
from penstock.stream.known_files import Hashes, KnownFiles, hash_of

_VERSION = 2


@dataclass(slots=True)
class Begun:
    """A file that is not done: the day of its change, how far it is read, since when it is gone (0: it is not)."""

    day: int
    position: Position = START
    gone_since: float = 0.0


@dataclass(slots=True)
class FileProgress:
    """The files that are done, and the positions in those that are not.

    `waiting` are the files that were seen and not begun, with the days of their changes; the last is read first.
    `is_listed`: they are all that a bounded source has to read.
    """

    known: KnownFiles = field(default_factory=KnownFiles)
    begun: dict[str, Begun] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    is_listed: bool = False
    _done: dict[int, array[int]] = field(default_factory=dict)
    """Of each day the hashes of files that were read since the look that is under way began, or the last one."""
    _handed: tuple[tuple[int, Hashes], ...] | None = None
    """Those that the look under way was given: its result holds them."""
    _read_since: list[str] = field(default_factory=list)
    """Files that were read since the look under way began: its result does not know them."""

    def finish(self, name: str, clock_day: int) -> None:
        """A file is read to its end, on this machine's day."""
        day = max(self.begun.pop(name).day, clock_day)
        self._done.setdefault(day, array("Q")).append(hash_of(name))
        if self._handed is not None:
            self._read_since.append(name)

    def hand_over(self) -> tuple[tuple[int, Hashes], ...]:
        """The names that were read since the last look, for the next one."""
        read = ((day, np.frombuffer(names, np.uint64)) for day, names in self._done.items())
        self._handed, self._done, self._read_since = (*(self._handed or ()), *read), {}, []
        return self._handed

    def begin_next(self) -> str | None:
        """The file to be read next is begun; None where none waits."""
        if not self.waiting:
            return None
        name, day = self.waiting.popitem()
        self.begun[name] = Begun(day)
        return name

    def looked(self, known: KnownFiles, new: dict[str, int]) -> None:
        """A look is over: the names that are known after it, and the files that it did not know."""
        for name in (*self._read_since, *self.begun):
            new.pop(name, None)
        self.known, self._handed, self._read_since = known, None, []
        self.waiting = {**new, **self.waiting} if self.waiting else new

    def packed(self, *, is_bounded: bool) -> bytes:
        """As a snapshot holds it."""
        today, forgotten, of_day = self.known.packed()
        of_day += [(day, names.tobytes()) for day, names in self._handed or ()]
        of_day += [(day, names.tobytes()) for day, names in self._done.items()]
        begun = {name: (each.day, each.position, each.gone_since) for name, each in self.begun.items()}
        waiting = self.waiting if is_bounded and self.is_listed else None
        packed: bytes = msgpack.packb((_VERSION, (today, forgotten, of_day), begun, waiting))
        return packed

    @classmethod
    def restored(cls, states: Sequence[bytes], subtask: int, parallelism: int) -> FileProgress:
        """A subtask's own part of what these snapshots hold; of two that hold a file, what the farther one says."""
        parts = [_unpacked(state) for state in states]
        if not parts:
            return cls()
        made = cls(KnownFiles.merged(part.known for part in parts).share(subtask, parallelism))
        made.is_listed = all(part.is_listed for part in parts)
        for part in parts:
            for name, begun in part.begun.items():
                if _is_own(name, subtask, parallelism) and hash_of(name) not in made.known:
                    other = made.begun.get(name)
                    if other is None or other.position < begun.position:
                        made.begun[name] = begun
            made.waiting.update(part.waiting)
        made._forget_what_was_not_begun(is_bounded=any(part.waiting or part.is_listed for part in parts))
        made.waiting = {
            name: day
            for name, day in made.waiting.items()
            if _is_own(name, subtask, parallelism) and name not in made.begun and hash_of(name) not in made.known
        }
        return made

    def _forget_what_was_not_begun(self, *, is_bounded: bool) -> None:
        """A file that was only opened is as one that was not."""
        for name in [name for name, begun in self.begun.items() if begun.position == START]:
            day = self.begun.pop(name).day
            if is_bounded:
                self.waiting[name] = day


def _unpacked(state: bytes) -> FileProgress:
    version, *found = msgpack.unpackb(state, strict_map_key=False)
    if version != _VERSION:
        raise PlanError(
            "the checkpoint to go on from says in an older form which files were read: finish the query with the "
            "version of Penstock that took it, or start at another checkpointLocation"
        )
    known, begun, waiting = found
    return FileProgress(
        KnownFiles.unpacked(known),
        {name: Begun(day, (part, rows), gone) for name, (day, (part, rows), gone) in begun.items()},
        dict(waiting or {}),
        waiting is not None,
    )


def _is_own(name: str, subtask: int, parallelism: int) -> bool:
    return hash_of(name) % parallelism == subtask
