# SPDX-License-Identifier: Apache-2.0
"""Random jobs: rows, operators, exchanges, and the rows that must come out.

Operators are the same code for a stream and for the whole table, so that what is expected needs no second
implementation. Row `id` is unique, so that results can be put in order and compared whole.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.stream import Stream
from penstock.testing.sources import fromBatches

TYPES = (
    pa.int32(),
    pa.int64(),
    pa.float64(),
    pa.string(),
    pa.bool_(),
    pa.date32(),
    pa.binary(),
    pa.decimal128(20, 2),
)
KEYABLE = (pa.int32(), pa.int64(), pa.string(), pa.date32())
_NAPS = 100
"""So often a slow step sleeps: after many small batches it would take minutes."""
_SMALL = 37
"""Rows of a small batch."""
EXCHANGES = ("key", "key", "rebalance", "rescale", "random", "broadcast", "one", "custom")


@dataclass(frozen=True, slots=True)
class Step:
    """One operator: `kind` of `keep` (a third), `double`, `split` (small batches), `reuse`, `slow` or `raise`.

    `reuse` makes small batches, too, and writes the ids of all of them into the same memory.
    """

    kind: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As a function for `mapInArrow`."""
        naps = _NAPS
        scratch = np.zeros(_SMALL, np.int64)
        for batch in batches:
            if self.kind == "raise" and batch.num_rows:
                raise ValueError("torture raises on purpose")
            if self.kind == "slow" and naps:
                naps -= 1
                time.sleep(0.05)
            if self.kind == "split":
                for start in range(0, batch.num_rows, _SMALL):
                    yield batch.slice(start, _SMALL)
            elif self.kind == "reuse":
                for start in range(0, batch.num_rows, _SMALL):
                    part = batch.slice(start, _SMALL)
                    ids = scratch[: part.num_rows]
                    ids[:] = _values(part.column(0))
                    yield part.set_column(0, part.schema.field(0), _integers(ids))
            else:
                yield from self.on_table(pa.Table.from_batches([batch])).to_batches()

    def on_table(self, table: pa.Table) -> pa.Table:
        """The rows that it makes of all rows."""
        if self.kind == "keep":
            return table.filter(pc.equal(pc.bit_wise_and(table["id"], 3), 0))
        return pa.concat_tables([table, table]) if self.kind == "double" else table


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange to `partitions` consumers."""

    kind: str
    partitions: int
    key: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """A job. `harm` is what is done to it: empty, `raise`, `worker`, `environment` or `cancel`."""

    name: str
    rows: int
    types: tuple[pa.DataType, ...]
    producers: int
    steps: tuple[Step | Exchange, ...]
    aggregate: str
    harm: str
    harm_after: float

    def describe(self) -> str:
        """One line."""
        parts = [f"{s.kind}({s.partitions})" if isinstance(s, Exchange) else s.kind for s in self.steps]
        tail = [f"count by {self.aggregate}"] if self.aggregate else []
        harm = f", {self.harm} after {self.harm_after:.2f} s" if self.harm else ""
        return f"{self.rows} rows x {len(self.types) + 1} from {self.producers}: {' '.join(parts + tail)}{harm}"

    def table(self) -> pa.Table:
        """The rows that go in."""
        numbers = np.random.default_rng(self.rows)
        columns = [_integers(np.arange(self.rows, dtype=np.int64))]
        columns += [_column(numbers, self.rows, type_) for type_ in self.types]
        return pa.table(columns, names=["id", *(f"c{number}" for number in range(len(self.types)))])

    def stream(self, spark: Any = None) -> Stream:
        """The pipeline."""
        table = self.table()
        batches = table.to_batches(max_chunksize=max(1, self.rows // (4 * self.producers)))
        stream = fromBatches(pa.Table.from_batches(batches, schema=table.schema), self.producers, spark)
        for step in self.steps:
            if isinstance(step, Exchange):
                stream = _exchanged(stream, step)
            else:
                stream = stream.mapInArrow(step, stream.schema)
        if self.aggregate:
            return stream.groupBy(self.aggregate, numPartitions=2).agg(n=("*", "count"), total=("id", "sum"))
        return stream

    def expected(self) -> pa.Table:
        """The rows that must come out, in order."""
        table = self.table()
        for step in self.steps:
            if isinstance(step, Step):
                table = step.on_table(table)
            elif step.kind == "broadcast":
                table = pa.concat_tables([table] * step.partitions)
        if self.aggregate:
            grouped = table.group_by(self.aggregate).aggregate([([], "count_all"), ("id", "sum")])
            table = grouped.select([self.aggregate, "count_all", "id_sum"]).rename_columns(
                [self.aggregate, "n", "total"]
            )
        return in_order(table)


def in_order(table: pa.Table) -> pa.Table:
    """The rows sorted by the first column."""
    return table.combine_chunks().take(pc.sort_indices(table, [(table.column_names[0], "ascending")]))


def random_recipe(seed: int, number: int, *, spark: bool) -> Recipe:
    """Case `number` of a seed. With Spark at most eight subtasks, and harm from outside."""
    chance = random.Random(f"{seed}/{number}/{spark}")  # noqa: S311 - chance, not a secret
    types = tuple(chance.choice(TYPES) for _ in range(chance.randrange(5)))
    keys = ["id", *(f"c{index}" for index, type_ in enumerate(types) if type_ in KEYABLE)]
    harms = ["", "", "worker", "environment", "cancel", "raise"] if spark else ["", "", "", "raise"]
    harm = chance.choice(harms)
    steps: list[Step | Exchange] = []
    for _ in range(chance.choice((1, 1, 2))):
        steps += [Step(chance.choice(("keep", "double", "split", "reuse"))) for _ in range(chance.randrange(2))]
        steps.append(Exchange(chance.choice(EXCHANGES), chance.randint(1, 3), chance.choice(keys)))
    if harm:
        steps.insert(chance.randrange(len(steps) + 1), Step("raise" if harm == "raise" else "slow"))
    return Recipe(
        name=f"{'spark' if spark else 'local'} {seed}/{number}",
        rows=chance.choice((0, 1, 100, 5_000, 50_000)),
        types=types,
        producers=chance.randint(1, 2),
        steps=tuple(steps),
        aggregate=chance.choice(("", "", chance.choice(keys))) if steps[-1] != Step("raise") else "",
        harm=harm,
        harm_after=chance.random() * 0.6,
    )


def _exchanged(stream: Stream, step: Exchange) -> Stream:
    if step.kind == "key":
        return stream.keyBy(step.key, numPartitions=step.partitions)
    if step.kind == "custom":
        return stream.partitionCustom(_modulo(step.partitions), step.partitions)
    if step.kind == "one":
        return stream.toOne()
    verb: Callable[..., Stream] = getattr(stream, step.kind)
    return verb(step.partitions)


def _modulo(partitions: int) -> Callable[[pa.RecordBatch], Any]:
    def number(batch: pa.RecordBatch) -> Any:
        return _values(batch.column(0)) % partitions

    return number


def _values(column: pa.Array) -> Any:
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def _column(numbers: np.random.Generator, rows: int, type_: pa.DataType) -> pa.Array:
    """Random values, one in eight of them null."""
    values = numbers.integers(0, 1000, rows)
    array = _integers(values)
    if pa.types.is_boolean(type_):
        array = pc.greater(array, 500)
    elif pa.types.is_binary(type_):
        array = array.cast(pa.string()).cast(type_)
    elif pa.types.is_decimal(type_):
        array = array.cast(pa.decimal128(19, 0)).cast(type_)
    else:
        array = array.cast(pa.int32()).cast(type_)
    return pc.if_else(pc.equal(_integers(values % 8), 0), pa.scalar(None, type_), array)


def _integers(values: Any) -> pa.Array:
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))]
    )
