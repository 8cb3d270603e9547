# SPDX-License-Identifier: Apache-2.0
"""Verbs with state of whole queries, each in three ways: of Penstock, of Structured Streaming, and over a list."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.api.stream import Stream
from penstock.api.windows import session_window, window
from penstock_torture.stages.values import Row, plain

MS = 1000
"""Microseconds of a millisecond."""
Rows = list[Row]
Span = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """The columns that the next verb may use; `time` empty: a window is all that says when a row was."""

    keys: tuple[str, ...] = ("k", "s")
    figure: str = "v"
    time: str = "t"
    window: str = ""


@dataclass(frozen=True)
class Distinct:
    """Rows that are there once."""

    shape: Shape

    def __str__(self) -> str:
        return "dropDuplicates()"

    def of_stream(self, stream: Stream, width: int) -> Stream:
        """The verb of Penstock."""
        return stream.dropDuplicates()

    def of_frame(self, frame: Any) -> Any:
        """The verb of Spark."""
        return frame.dropDuplicates()

    def of_rows(self, rows: Rows) -> Rows:
        """The same of a list."""
        return [dict(each) for each in dict.fromkeys(tuple(row.items()) for row in rows)]


@dataclass(frozen=True)
class Grouped:
    """Count and sum by some keys and `windows` of a time or of windows, `sessions`, or `their own` windows."""

    shape: Shape
    before: Shape
    kind: str
    sizes: tuple[int, int] = (0, 0)
    """Of windows the size and the slide, of sessions the gap, in milliseconds."""

    def __str__(self) -> str:
        return f"{self.kind} {self.sizes} of {self.before.time or self.before.window} by {self.shape.keys}"

    def of_stream(self, stream: Stream, width: int) -> Stream:
        """The verb of Penstock."""
        by: Any = self.before.window
        if self.kind == "windows":
            by = window(self._column, *self._texts)
        elif self.kind == "sessions":
            by = session_window(self._column, self._texts[0])
        keyed = stream.keyBy(*self.shape.keys, by, numPartitions=width if self.shape.keys else None)
        return keyed.agg(n=("*", "count"), total=(self.before.figure, "sum"))

    def of_frame(self, frame: Any) -> Any:
        """The verb of Spark."""
        from pyspark.sql import functions as f

        by: Any = self.before.window
        if self.kind == "windows":
            by = f.window(self._column, *self._texts)
        elif self.kind == "sessions":
            by = f.session_window(self._column, self._texts[0])
        return frame.groupBy(*self.shape.keys, by).agg(
            f.count("*").alias("n"), f.sum(self.before.figure).alias("total")
        )

    def of_rows(self, rows: Rows) -> Rows:
        """The same of a list."""
        groups: dict[tuple[tuple[Any, ...], Span], Rows] = defaultdict(list)
        for key, span, row in self._in_sessions(rows) if self.kind == "sessions" else self._in_windows(rows):
            groups[key, span].append(row)
        return [self._result(key, span, members) for (key, span), members in groups.items()]

    @property
    def _column(self) -> str:
        return self.before.time or self.before.window

    @property
    def _texts(self) -> tuple[str, str]:
        return f"{self.sizes[0]} milliseconds", f"{self.sizes[1]} milliseconds"

    def _result(self, key: tuple[Any, ...], span: Span, members: Rows) -> Row:
        values = [row[self.before.figure] for row in members if row[self.before.figure] is not None]
        named = dict(zip(self.shape.keys, key, strict=True))
        both = {"start": span[0], "end": span[1]}
        return {**named, self.shape.window: both, "n": len(members), "total": sum(values) if values else None}

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(plain(row[name]) for name in self.shape.keys)

    def _in_windows(self, rows: Rows) -> Iterator[tuple[tuple[Any, ...], Span, Row]]:
        size, slide = (each * MS for each in self.sizes)
        for row in rows:
            own = row[self.before.window] if self.before.window else {}
            if self.kind == "their own":
                yield self._key(row), (own["start"], own["end"]), row
                continue
            moment = row[self.before.time] if self.before.time else own["end"] - 1
            for start in range(moment // slide * slide, moment - size, -slide):
                yield self._key(row), (start, start + size), row

    def _in_sessions(self, rows: Rows) -> Iterator[tuple[tuple[Any, ...], Span, Row]]:
        gap = self.sizes[0] * MS
        open_: dict[tuple[Any, ...], list[tuple[int, int, Rows]]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row[self.before.time]):
            own, moment = open_[self._key(row)], row[self.before.time]
            if own and moment <= own[-1][1]:
                start, _, members = own.pop()
                own.append((start, moment + gap, [*members, row]))
            else:
                own.append((moment, moment + gap, [row]))
        for key, sessions in open_.items():
            for start, end, members in sessions:
                yield from ((key, (start, end), row) for row in members)


Verb = Distinct | Grouped


def random_verbs(chance: random.Random) -> list[Verb]:
    """One to four, each of what the one before gives."""
    shape, found = Shape(), list[Verb]()
    for _ in range(chance.randint(1, 4)):
        found.append(_random_verb(chance, shape, is_distinct=bool(found) and isinstance(found[-1], Distinct)))
        shape = found[-1].shape
    return found


def _random_verb(chance: random.Random, shape: Shape, *, is_distinct: bool) -> Verb:
    kinds: tuple[str, ...] = ("windows", "their own")
    if shape.time:
        kinds = ("windows", "sessions") if is_distinct else ("windows", "sessions", "distinct")
    kind = chance.choice(kinds)
    if kind == "distinct":
        return Distinct(shape)
    keys = tuple(key for key in shape.keys if chance.random() < 0.7)
    after = replace(shape, keys=keys, figure="total", time="")
    if kind == "their own":
        return Grouped(after, shape, kind)
    if kind == "sessions":
        gap = chance.choice((1, 5, 20))
        keys = keys or shape.keys  # Spark has no sessions of all rows
        return Grouped(replace(after, keys=keys, window="session_window"), shape, kind, (gap, gap))
    sizes = ((50, 50), (60, 20), (100, 40)) if shape.time else ((300, 300), (500, 500))
    return Grouped(replace(after, window="window"), shape, kind, chance.choice(sizes))
