# SPDX-License-Identifier: Apache-2.0
"""Oracles in plain Python: what a stage gives for rows and watermarks, by the documented rules of Spark's verbs.

Each key group has the greatest watermark of the tasks that ever had it: a restore takes nothing back. The numbers are
read here as everywhere: what ends by a watermark is over, and a row that is older than it is late.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_torture.stages.values import Row, plain

Keyed = tuple[int, Row]
"""The group of a row's key, and the row."""
Key = tuple[Any, ...]
BEGIN, EVER = -(1 << 62), 1 << 62
FIGURES = ("n", "total", "least", "most")


class Oracle:
    """A stage's state; `watermarks` are those of all key groups."""

    def __init__(self, keys: Sequence[str], groups: int) -> None:
        self.keys = tuple(keys)
        self.watermarks = [BEGIN] * groups

    def give(self, rows: Sequence[Keyed], side: int) -> list[Row]:
        """The rows that a batch gives."""
        raise NotImplementedError

    def advance(self, groups: Iterable[int], watermark: int) -> list[Row]:
        """The rows that a watermark gives to the tasks of these groups."""
        own = set(groups)
        before = self.watermarks
        self.watermarks = [max(w, watermark) if group in own else w for group, w in enumerate(before)]
        return self.fired(own)

    def fired(self, groups: set[int]) -> list[Row]:
        """The rows that were waiting for the watermarks of these groups."""
        return []

    def fork(self) -> Oracle:
        """Its state as a checkpoint has it."""
        return copy.deepcopy(self)

    def key_of(self, row: Row) -> Key:
        """The row's key, with one NaN and one zero."""
        return tuple(plain(row[name]) for name in self.keys)

    def with_key(self, key: Key, **others: Any) -> Row:
        """A row of a key."""
        return {**dict(zip(self.keys, key, strict=True)), **others}


@dataclass(slots=True)
class Figures:
    """The figures of some values, of which nulls only count as rows."""

    n: int = 0
    total: int | None = None
    least: int | None = None
    most: int | None = None

    def add(self, value: int | None) -> None:
        """One more."""
        self.n += 1
        if value is not None:
            self.total = (self.total or 0) + value
            self.least = value if self.least is None else min(self.least, value)
            self.most = value if self.most is None else max(self.most, value)

    def merge(self, other: Figures) -> None:
        """Those of others too."""
        self.n += other.n
        for name, of in (("total", sum), ("least", min), ("most", max)):
            both = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            setattr(self, name, of(both) if both else None)

    def row(self) -> Row:
        """As columns."""
        return {name: getattr(self, name) for name in FIGURES}


class Totals(Oracle):
    """Each key that has changed, after each batch."""

    def __init__(self, keys: Sequence[str], groups: int) -> None:
        super().__init__(keys, groups)
        self._of: dict[Key, Figures] = defaultdict(Figures)

    def give(self, rows: Sequence[Keyed], side: int) -> list[Row]:
        """The keys of these rows."""
        for _, row in rows:
            self._of[self.key_of(row)].add(row["v"])
        changed = {self.key_of(row) for _, row in rows}
        return [self.with_key(key, **self._of[key].row()) for key in changed]


class Windows(Oracle):
    """Fixed windows; `updates`: each that has changed, else each once when it is over."""

    def __init__(
        self, keys: Sequence[str], groups: int, bounds: tuple[int, int, int], *, updates: bool, given: bool = False
    ) -> None:
        super().__init__(keys, groups)
        self._bounds = bounds
        self._updates = updates
        self._given = given
        self._open: dict[tuple[int, Key, int, int], Figures] = defaultdict(Figures)

    def give(self, rows: Sequence[Keyed], side: int) -> list[Row]:
        """The windows that these change, where those are wanted."""
        changed = set()
        for group, row in rows:
            for start, end in self._windows(row):
                if end > self.watermarks[group]:
                    place = (group, self.key_of(row), start, end)
                    self._open[place].add(row["v"])
                    changed.add(place)
        return [self._row(place) for place in changed] if self._updates else []

    def fired(self, groups: set[int]) -> list[Row]:
        """Those that are over; the others stay."""
        over = [place for place in self._open if place[0] in groups and place[3] <= self.watermarks[place[0]]]
        found = [] if self._updates else [self._row(place) for place in over]
        for place in over:
            del self._open[place]
        return found

    def _windows(self, row: Row) -> list[tuple[int, int]]:
        if self._given:
            return [] if row["w"] is None else [(row["w"]["start"], row["w"]["end"])]
        size, slide, offset = self._bounds
        if row["t"] is None:
            return []
        last = (row["t"] - offset) // slide * slide + offset
        starts = range(last, row["t"] - size, -slide)
        return [(start, start + size) for start in starts]

    def _row(self, place: tuple[int, Key, int, int]) -> Row:
        _, key, start, end = place
        return self.with_key(key, w=(("start", start), ("end", end)), **self._open[place].row())


class Sessions(Oracle):
    """Rows with no gap between them, each session once when it is over; a row whose own session is over is late."""

    def __init__(self, keys: Sequence[str], groups: int, gap: int) -> None:
        super().__init__(keys, groups)
        self._gap = gap
        self._open: dict[tuple[int, Key], list[tuple[int, int, Figures]]] = defaultdict(list)

    def give(self, rows: Sequence[Keyed], side: int) -> list[Row]:
        """Nothing, for rows; late ones are not kept."""
        came: dict[tuple[int, Key], list[tuple[int, int, Figures]]] = defaultdict(list)
        for group, row in rows:
            if row["t"] is not None and row["t"] + self._gap > self.watermarks[group]:
                figures = Figures()
                figures.add(row["v"])
                came[group, self.key_of(row)].append((row["t"], row["t"] + self._gap, figures))
        for place, sessions in came.items():
            self._open[place] = _joined([*self._open[place], *sessions])
        return []

    def fired(self, groups: set[int]) -> list[Row]:
        """Those that are over."""
        found = []
        for (group, key), sessions in list(self._open.items()):
            if group in groups:
                passed = self.watermarks[group]
                found += [
                    self.with_key(key, w=(("start", start), ("end", end)), **figures.row())
                    for start, end, figures in sessions
                    if end <= passed
                ]
                self._open[group, key] = [one for one in sessions if one[1] > passed]
        return found


def _joined(sessions: Sequence[tuple[int, int, Figures]]) -> list[tuple[int, int, Figures]]:
    found: list[tuple[int, int, Figures]] = []
    for start, end, figures in sorted(copy.deepcopy(list(sessions)), key=lambda one: one[:2]):
        if found and start <= found[-1][1]:
            former = found[-1]
            former[2].merge(figures)
            found[-1] = (former[0], max(former[1], end), former[2])
        else:
            found.append((start, end, figures))
    return found


class Firsts(Oracle):
    """The first row of each key; with a time it is kept until the watermark has passed that, and `keeps` more."""

    def __init__(self, keys: Sequence[str], groups: int, time: str = "", keeps: int = 0) -> None:
        super().__init__(keys, groups)
        self._time = time
        self._keeps = keeps
        self._until: dict[Key, int] = {}

    def give(self, rows: Sequence[Keyed], side: int) -> list[Row]:
        """Those that are first."""
        found = []
        for group, row in rows:
            key, passed = self.key_of(row), self.watermarks[group]
            moment = row[self._time] if self._time else None
            if moment is not None and moment < passed:
                continue
            if self._until.get(key, BEGIN) < max(passed, BEGIN + 1):
                self._until[key] = EVER if moment is None else moment + self._keeps
                found.append(row)
        return found


class Tops(Oracle):
    """The first rows of each key by a column: those whose rank is new, after each batch."""

    def __init__(self, keys: Sequence[str], groups: int, count: int, column: str, *, ascending: bool) -> None:
        super().__init__(keys, groups)
        self._count = count
        self._column = column
        self._ascending = ascending
        self._of: dict[Key, list[tuple[int, Row]]] = defaultdict(list)
        self._came = 0

    def give(self, rows: Sequence[Keyed], side: int) -> list[Row]:
        """Those of this batch, and those that they move."""
        before = {key: list(self._of[key]) for key in {self.key_of(row) for _, row in rows}}
        for _, row in rows:
            self._came += 1
            self._of[self.key_of(row)].append((self._came, row))
        found = []
        for key, former in before.items():
            now = sorted(self._of[key], key=functools.cmp_to_key(self._compared))[: self._count]
            self._of[key] = now
            for rank, (number, row) in enumerate(now, 1):
                if rank > len(former) or former[rank - 1][0] != number:
                    found.append({**row, "rank": rank})
        return found

    def _compared(self, one: tuple[int, Row], other: tuple[int, Row]) -> int:
        left, right = (_order(each[1][self._column]) for each in (one, other))
        if left is None or right is None or left == right:
            return ((left is None) - (right is None)) or one[0] - other[0]
        return (1 if left > right else -1) * (1 if self._ascending else -1)


def _order(value: float | None) -> tuple[int, float] | None:
    if value is None:
        return None
    return (1, 0.0) if math.isnan(value) else (0, value)
