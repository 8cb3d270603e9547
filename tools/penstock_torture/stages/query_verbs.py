# SPDX-License-Identifier: Apache-2.0
"""Verbs with state of whole queries, each in three ways: of Penstock, of Structured Streaming, and over lists.

A verb takes what is in front of it as a sequence: one stream, or the two of a join.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    verb: str = "dropDuplicates"
    """`dropDuplicatesWithinWatermark` is the other one."""

    def __str__(self) -> str:
        return f"{self.verb}()"

    def of_stream(self, streams: Sequence[Stream], width: int) -> Stream:
        """The verb of Penstock."""
        made: Stream = getattr(streams[0], self.verb)()
        return made

    def of_frame(self, frames: Sequence[Any]) -> Any:
        """The verb of Spark."""
        return getattr(frames[0], self.verb)()

    def of_rows(self, inputs: Sequence[Rows]) -> Rows:
        """The same of a list."""
        return list({_hashable(row): row for row in inputs[0]}.values())


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

    def of_stream(self, streams: Sequence[Stream], width: int) -> Stream:
        """The verb of Penstock."""
        by: Any = self.before.window
        if self.kind == "windows":
            by = window(self._column, *self._texts)
        elif self.kind == "sessions":
            by = session_window(self._column, self._texts[0])
        keyed = streams[0].keyBy(*self.shape.keys, by, numPartitions=width if self.shape.keys else None)
        return keyed.agg(n=("*", "count"), total=(self.before.figure, "sum"))

    def of_frame(self, frames: Sequence[Any]) -> Any:
        """The verb of Spark."""
        from pyspark.sql import functions as f

        by: Any = self.before.window
        if self.kind == "windows":
            by = f.window(self._column, *self._texts)
        elif self.kind == "sessions":
            by = f.session_window(self._column, self._texts[0])
        return (
            frames[0]
            .groupBy(*self.shape.keys, by)
            .agg(f.count("*").alias("n"), f.sum(self.before.figure).alias("total"))
        )

    def of_rows(self, inputs: Sequence[Rows]) -> Rows:
        """The same of a list."""
        rows = [row for row in inputs[0] if self.before.window or row[self.before.time] is not None]
        groups: dict[tuple[tuple[Any, ...], Span], Rows] = defaultdict(list)
        for key, span, row in self._in_sessions(rows) if self._are_sessions else self._in_windows(rows):
            groups[key, span].append(row)
        return [self._result(key, span, members) for (key, span), members in groups.items()]

    @property
    def _are_sessions(self) -> bool:
        return self.shape.window == "session_window"

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
        open_: dict[tuple[Any, ...], list[tuple[int, int, Rows]]] = defaultdict(list)
        for (begin, end), row in sorted(((self._alone(row), row) for row in rows), key=lambda pair: pair[0]):
            own = open_[self._key(row)]
            if own and begin <= own[-1][1]:
                start, last, members = own.pop()
                own.append((start, max(end, last), [*members, row]))
            else:
                own.append((begin, end, [row]))
        for key, sessions in open_.items():
            for start, end, members in sessions:
                yield from ((key, (start, end), row) for row in members)

    def _alone(self, row: Row) -> Span:
        """The session of one row."""
        if self.kind == "their own":
            return row[self.before.window]["start"], row[self.before.window]["end"]
        return row[self.before.time], row[self.before.time] + self.sizes[0] * MS


def _hashable(row: Row) -> tuple[Any, ...]:
    return tuple((name, tuple(v.items()) if isinstance(v, dict) else v) for name, v in row.items())
