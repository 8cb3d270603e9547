# SPDX-License-Identifier: Apache-2.0
"""The names of a folder that a subtask has read, as 64-bit hashes: which of a listing are new.

Each name has the day on which it was last seen. A listing says nothing of the names that it lacks: a mount may have
dropped, or gives a part. Such a name stays for `KEPT_DAYS` more days, and then it is forgotten. `forgotten` is the
last day of which that happened. A file that changed on that day or before, and whose name is unknown, may have been
read: the source refuses it. All younger unknown ones are new, so none is read twice and none is left out.

A name is seen on this machine's day, or on the day of its file's change if that is later. The folder says how much
time has passed since: the day of its youngest file counts, but none that this machine's clock has not reached. So
neither a writer's clock nor the reader's makes names old alone.

Two names of one hash count as one: of a million names that happens once in 40 million folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import xxhash

KEPT_DAYS = 7
DAY_SECONDS = 86_400
DAY_NANOS = DAY_SECONDS * 1_000_000_000
NEVER = -1

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]
Days = np.ndarray[tuple[int], np.dtype[np.int64]]
Packed = tuple[int, int, list[tuple[int, bytes]]]
"""The folder's day, the forgotten one, and the hashes of each day."""


def hash_of(name: str) -> int:
    """The hash by which a name is remembered; it also says which subtask reads the file."""
    return xxhash.xxh3_64_intdigest(name.encode())


def hashes_of(names: Sequence[str]) -> Hashes:
    """The hash of each name."""
    return np.fromiter((hash_of(name) for name in names), np.uint64, len(names))


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """The hashes of names by the day on which they were last seen, sorted; never changed."""

    of_day: tuple[tuple[int, Hashes], ...] = ()
    today: int = 0
    forgotten: int = NEVER

    @classmethod
    def merged(cls, many: Iterable[Self]) -> Self:
        """The names that any of these knows; names that one may have forgotten, all may."""
        parts = tuple(many)
        of_day = _gathered(pair for part in parts for pair in part.of_day)
        today = max((part.today for part in parts), default=0)
        return cls(of_day, today, max((part.forgotten for part in parts), default=NEVER))

    def share(self, subtask: int, parallelism: int) -> KnownFiles:
        """The names that fall to one subtask."""
        own = [(day, names[names % np.uint64(parallelism) == subtask]) for day, names in self.of_day]
        return KnownFiles(_gathered(own), self.today, self.forgotten)

    def plus(self, read: Iterable[tuple[int, Hashes]]) -> KnownFiles:
        """With names that were read meanwhile, and the days on which they were seen."""
        return KnownFiles(_gathered([*self.of_day, *read]), self.today, self.forgotten)

    def __contains__(self, name: int) -> bool:
        return any(bool(_among(np.array([name], np.uint64), names)[0]) for _, names in self.of_day)

    @property
    def count(self) -> int:
        """The number of names that are remembered."""
        return sum(len(names) for _, names in self.of_day)

    def unknown(self, listed: Hashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which of these it does not know."""
        found = np.ones(len(listed), np.bool_)
        for _, names in self.of_day:
            found &= ~_among(listed, names)
        return found

    def seen(self, listed: Hashes, changed: Days, clock_day: int) -> KnownFiles:
        """The names after a listing: each file's hash and the day of its change; `clock_day` is this machine's.

        No day is forgotten on which a file changed that is still to be read.
        """
        if not len(listed):
            return self
        today = max(self.today, min(clock_day, int(changed.max())))
        unknown = self.unknown(listed)
        present, last_seen = listed[~unknown], np.maximum(changed[~unknown], clock_day)
        pairs = [(int(day), present[last_seen == day]) for day in np.unique(last_seen)]
        in_order = np.sort(present)
        pairs += [(day, names[~_among(names, in_order)]) for day, names in self.of_day]
        kept_from = min(today - KEPT_DAYS, int(changed[unknown].min(initial=today)))
        gone = [day for day, names in pairs if day < kept_from and len(names)]
        of_day = _gathered((day, names) for day, names in pairs if day >= kept_from)
        return KnownFiles(of_day, today, max(gone, default=self.forgotten))

    def packed(self) -> Packed:
        """As a snapshot holds it."""
        return self.today, self.forgotten, [(day, names.tobytes()) for day, names in self.of_day]

    @classmethod
    def unpacked(cls, packed: Packed) -> Self:
        """Inverse of `packed`; the hashes of a day may stand in several pieces, in any order."""
        today, forgotten, of_day = packed
        return cls(_gathered((day, np.frombuffer(names, np.uint64)) for day, names in of_day), today, forgotten)


def _gathered(pairs: Iterable[tuple[int, Hashes]]) -> tuple[tuple[int, Hashes], ...]:
    """One sorted array for each day that has any."""
    found: dict[int, list[Hashes]] = {}
    for day, names in pairs:
        if len(names):
            found.setdefault(day, []).append(names)
    return tuple((day, _distinct(each)) for day, each in sorted(found.items()))


def _distinct(many: list[Hashes]) -> Hashes:
    """All of these in order, each once. `np.unique` takes ten times as long: it may hash."""
    names = np.sort(np.concatenate(many))
    return np.asarray(names[np.append([True], names[1:] != names[:-1])])


def _among(some: Hashes, names: Hashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of some are in these, which are sorted."""
    if not len(names):
        return np.zeros(len(some), np.bool_)
    places = np.minimum(np.searchsorted(names, some), len(names) - 1)
    return np.asarray(names[places] == some)
