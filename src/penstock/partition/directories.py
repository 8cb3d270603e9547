# SPDX-License-Identifier: Apache-2.0
"""Which of several directories a partition's files go to.

Rules: a directory that is broken, or that keeps less than the reserve free, is passed over. Of the others those with
at least half as much room as the roomiest take turns: so disks of one size share the load evenly, and a small or
nearly full one is spared until the others are as full. `choose` is pure; `Directories` looks at the disks and
remembers whose turn it is. Limit: it looks when a partition begins, and nothing is reserved; `FileOutput` looks again
while it writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import NoStorageError

LEFT_OUT_SECONDS = 300.0
"""A disk that was full may have room again, one that was broken may have been mended."""


@dataclass(frozen=True, slots=True)
class DirectorySpace:
    """One directory: the bytes free on its file system, or the problem with it."""

    path: Path
    free: int = 0
    problem: str = ""


def choose(spaces: Sequence[DirectorySpace], reserve: int, turn: int) -> int:
    """The position of the directory whose turn it is; NoStorageError naming all of them where none will do.

    `turn` is where the search begins, so the position after the last answer spreads partitions over all.
    """
    fit = {at: space.free - reserve for at, space in enumerate(spaces) if not space.problem and space.free > reserve}
    if not fit:
        told = "; ".join(f"{space.path}: {space.problem or _room(space.free)}" for space in spaces)
        raise NoStorageError(
            f"no directory can take a partition with {reserve} bytes kept free ({told or 'there is none'}). Free "
            f"space, or set spark.penstock.blocking.directories to others or spark.penstock.blocking.reserve lower."
        )
    enough = max(fit.values()) // 2
    order = [(turn + step) % len(spaces) for step in range(len(spaces))]
    return next(at for at in order if fit.get(at, -1) >= enough)


def _room(free: int) -> str:
    return f"{free} bytes are free" if free else "the disk is full"


def look(path: Path) -> DirectorySpace:
    """The state of a directory now; one that is not there, or not writable, has a problem."""
    try:
        system = os.statvfs(path)
    except OSError as error:
        return DirectorySpace(path, problem=error.strerror or str(error))
    if not path.is_dir():
        return DirectorySpace(path, problem="it is no directory")
    if not os.access(path, os.W_OK | os.X_OK):
        return DirectorySpace(path, problem="it may not be written to")
    return DirectorySpace(path, system.f_bavail * system.f_frsize)


class Directories:
    """The directories of one host's partitions. For one thread, but `note_failure` is for any.

    One in which a write failed is left out for LEFT_OUT_SECONDS, as long as there is another.
    """

    __slots__ = ("_clock", "_failed", "_turn", "paths", "reserve")

    def __init__(self, paths: Sequence[Path], reserve: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.paths = tuple(paths)
        self.reserve = reserve
        self._clock = clock
        self._turn = 0
        self._failed: dict[Path, float] = {}

    def choose(self, spaces: Sequence[DirectorySpace] | None = None) -> Path:
        """The directory of the next partition; NoStorageError naming all of them where none will do.

        `spaces` is how they are, of a caller that has looked at each in a thread of its own.
        """
        spaces = [look(path) for path in self.paths] if spaces is None else spaces
        try:
            chosen = self._choose_sound(spaces)
        except NoStorageError:
            chosen = choose(spaces, self.reserve, self._turn)  # better one that has failed than none
        self._turn = (chosen + 1) % len(self.paths)
        return self.paths[chosen]

    @property
    def has_room(self) -> bool:
        """True if there is one that has room, and in which no write has failed lately."""
        try:
            self._choose_sound([look(path) for path in self.paths])
        except NoStorageError:
            return False
        return True

    @property
    def are_broken(self) -> bool:
        """True if none can be written to at all."""
        return all(look(path).problem for path in self.paths)

    def note_failure(self, path: Path) -> bool:
        """A write there failed; whether it is one of these, and was not left out already."""
        was_out = bool(self._judged(DirectorySpace(path)).problem)
        if path in self.paths:
            self._failed[path] = self._clock()
        return path in self.paths and not was_out

    def _choose_sound(self, spaces: Sequence[DirectorySpace]) -> int:
        return choose([self._judged(space) for space in spaces], self.reserve, self._turn)

    def _judged(self, space: DirectorySpace) -> DirectorySpace:
        failed = self._failed.get(space.path)
        if failed is None or self._clock() - failed > LEFT_OUT_SECONDS:
            return space
        return replace(space, problem=space.problem or "a write there has failed")
