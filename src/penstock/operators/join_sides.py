# SPDX-License-Identifier: Apache-2.0
"""Two streams in one exchange: rows of both sides under one schema, with a column that says whose each is.

The columns of the other side are null. A row without a key meets nothing, and is left out where it begins, unless an
outer join keeps its side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.graph import INTERNAL
from penstock.operators.groups import Side
from penstock.operators.join import join_schema
from penstock.operators.keys import plain

SIDE = f"{INTERNAL}side"
LEFT, RIGHT = 0, 1


@dataclass(frozen=True, slots=True)
class JoinedSides:
    """Both sides of a join; keys have the names of the left one."""

    left: Side
    right: Side
    how: str = "inner"

    @property
    def kept(self) -> tuple[bool, bool]:
        """Tell for the left and the right side if all of its rows come out, also those that meet nothing."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def schema(self) -> pa.Schema:
        """That of rows of either side: keys, side, columns of the left, columns of the right."""
        keys = list(self.result_schema)[: len(self.left.keys)]
        others = [field.with_nullable(True) for side in (self.left, self.right) for field in others_of(side)]
        names = [f"{INTERNAL}{place}" for place in range(len(others))]
        return pa.schema(
            [
                *keys,
                pa.field(SIDE, pa.int8()),
                *(field.with_name(name) for field, name in zip(others, names, strict=True)),
            ]
        )

    @property
    def result_schema(self) -> pa.Schema:
        """Keys, then the other columns of the left and of the right side."""
        return join_schema(self.left, self.right, self.how)

    def columns(self, number: int) -> list[int]:
        """The places of a side's columns besides the keys, in the rows of both."""
        first = len(self.left.keys) + 1
        left = len(others_of(self.left))
        return list(range(first, first + left)) if number == LEFT else list(range(first + left, len(self.schema)))


def others_of(side: Side) -> list[pa.Field]:
    """A side's columns that are no keys."""
    return [field for field in side.schema if field.name not in side.keys]


@dataclass(frozen=True, slots=True)
class AsSide:
    """Rows of one side under the schema of both; batch by batch."""

    sides: JoinedSides
    number: int

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"{'right' if self.number else 'left'} side of a join"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that have a key, or of a side that is kept all."""
        side = self.sides.right if self.number else self.sides.left
        schema = self.sides.schema
        own = self.sides.columns(self.number)
        for batch in batches:
            keys = [plain(batch.column(key)) for key in side.keys]
            if not self.sides.kept[self.number] and any(key.null_count for key in keys):
                valid = keys[0].is_valid()
                for key in keys[1:]:
                    valid = pc.and_(valid, key.is_valid())
                batch = batch.filter(valid)  # noqa: PLW2901 - the rows that count
                keys = [plain(batch.column(key)) for key in side.keys]
            columns = [*keys, _numbers(self.number, batch.num_rows)]
            columns += [pa.nulls(batch.num_rows, field.type) for field in list(schema)[len(columns) :]]
            for place, field in zip(own, others_of(side), strict=True):
                columns[place] = batch.column(field.name)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _numbers(number: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(np.full(count, number, np.int8))])
