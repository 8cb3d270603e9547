# SPDX-License-Identifier: Apache-2.0
"""Joins of two streams and first rows of keys, as verbs of whole queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.api.stream import Stream
from penstock_torture.stages.query_verbs import MS, Rows, Shape

OTHER = {"k": "k", "t": "u", "v": "x"}
"""The columns of a join's right side, by those that they are made of."""


@dataclass(frozen=True)
class Joined:
    """Both streams within a bound of their times, by `k`; of the times only the shape's goes on."""

    shape: Shape
    how: str
    between: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.how} join between {self.between}, by {self.shape.time} from then on"

    def of_stream(self, streams: Sequence[Stream], width: int) -> Stream:
        """The verb of Penstock."""
        left, right = streams
        least, most = (f"{each} milliseconds" for each in self.between)
        other = right.select(*OTHER)
        for own, name in OTHER.items():
            other = other.withColumnRenamed(own, name)
        keyed = left.keyBy("k", numPartitions=width)
        return keyed.join(other.keyBy("k", numPartitions=width), self.how, between=("t", "u", least, most)).select(
            *self._columns
        )

    def of_frame(self, frames: Sequence[Any]) -> Any:
        """The verb of Spark."""
        from pyspark.sql import functions as f

        least, most = (f"INTERVAL {each} MILLISECONDS" for each in self.between)
        other = frames[1].selectExpr(*(f"{own} AS {name}" for own, name in {**OTHER, "k": "k2"}.items()))
        condition = f.expr(f"k = k2 AND u >= t + {least} AND u <= t + {most}")
        pairs = frames[0].join(other, condition, {"full": "full_outer"}.get(self.how, self.how))
        return pairs.select(f.coalesce("k", "k2").alias("k"), *self._columns[1:])

    def of_rows(self, inputs: Sequence[Rows]) -> Rows:
        """The same of lists."""
        left, right = inputs[0], [{name: row[own] for own, name in OTHER.items()} for row in inputs[1]]
        found, met = Rows(), set[int]()
        for row in left:
            own = [number for number, other in enumerate(right) if self._meets(row, other)]
            met.update(own)
            found += [{**right[number], **row} for number in own]
            if not own and self.how in ("left", "full"):
                found.append({**row, "u": None, "x": None})
        if self.how in ("right", "full"):
            nothing = {"s": None, "t": None, "v": None}
            found += [{**nothing, **row} for number, row in enumerate(right) if number not in met]
        return [{name: row[name] for name in self._columns} for row in found]

    def _meets(self, row: dict[str, Any], other: dict[str, Any]) -> bool:
        if row["k"] is None or row["k"] != other["k"]:
            return False
        after: int = other["u"] - row["t"]
        return self.between[0] * MS <= after <= self.between[1] * MS

    @property
    def _columns(self) -> tuple[str, ...]:
        return ("k", "s", self.shape.time, "v", "x")


@dataclass(frozen=True)
class Top:
    """The greatest figures of each key; a query gives each that takes a rank, so of a rank the greatest counts."""

    shape: Shape
    count: int

    def __str__(self) -> str:
        return f"top {self.count} of {self.shape.figure} by {self.shape.keys}"

    def of_stream(self, streams: Sequence[Stream], width: int) -> Stream:
        """The verb of Penstock."""
        ranked = streams[0].keyBy(*self.shape.keys, numPartitions=width).top(self.count, self.shape.figure)
        return ranked.select(*self.shape.keys, self.shape.figure, "rank")

    def of_rows(self, inputs: Sequence[Rows]) -> Rows:
        """The same of a list."""
        groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for row in inputs[0]:
            groups[tuple(row[key] for key in self.shape.keys)].append(row[self.shape.figure])
        return [
            {**dict(zip(self.shape.keys, key, strict=True)), self.shape.figure: value, "rank": rank}
            for key, values in groups.items()
            for rank, value in enumerate(sorted(values, key=_place, reverse=True)[: self.count], 1)
        ]

    def settled(self, rows: Rows) -> Rows:
        """The rows that count of all that were given."""
        newest: dict[tuple[Any, ...], Any] = {}
        for row in rows:
            place = (*(row[key] for key in self.shape.keys), row["rank"])
            newest[place] = max(newest.get(place), row[self.shape.figure], key=_place)
        names = (*self.shape.keys, "rank")
        return [{**dict(zip(names, key, strict=True)), self.shape.figure: each} for key, each in newest.items()]


def _place(value: int | None) -> tuple[bool, int]:
    return value is not None, value or 0
