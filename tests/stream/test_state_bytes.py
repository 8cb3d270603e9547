# SPDX-License-Identifier: Apache-2.0
"""The bytes of a step's state, as it tells them, are those by which its memory has grown."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from effort import some_of
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.operators.aggregate_states import Aggregation
from penstock.operators.groups import Side
from penstock.operators.join_sides import LEFT, AsSide, JoinedSides
from penstock.operators.window_aggregates import PartialWindows
from penstock.operators.windows import WindowKey
from penstock.stream.aggregate import KeyedAggregate
from penstock.stream.chain import StepContext
from penstock.stream.duplicates import DropDuplicates
from penstock.stream.state.store import KeyedStore
from penstock.stream.state.variables import LIST, MAP, VALUE, VariableSpec
from penstock.stream.stream_join import Between, StreamJoin
from penstock.stream.top_rows import TopRows
from penstock.stream.window_aggregate import WindowAggregate

ROWS, PIECE = 100_000, 10_000
TIME = pa.timestamp("us")
SCHEMA = pa.schema([("k", pa.int64()), ("t", TIME), ("s", pa.string())])
OTHER = pa.schema([("k", pa.int64()), ("u", TIME), ("b", pa.int64())])
TEXT = pa.schema([("s", pa.string())])
Batches = Iterator[pa.RecordBatch]


def pieces() -> Batches:
    """Rows, each with a key of its own."""
    for first in range(0, ROWS, PIECE):
        numbers = np.arange(first, first + PIECE)
        text = pa.array([f"text of {number}" for number in numbers.tolist()])
        yield pa.record_batch([pa.array(numbers), pa.array(numbers).cast(TIME), text], schema=SCHEMA)


class OfStep:
    """A step that takes these rows, ahead of which something may be done with them."""

    def __init__(self, operator: Any, before: Callable[[Batches], Batches] = iter) -> None:
        self._step = operator.step()
        self._step.open(StepContext(0, 1, 128, "test"), [])
        self._before = before

    def take(self, batch: pa.RecordBatch) -> None:
        """Take a batch."""
        for part in self._before(iter((batch,))):
            for _ in self._step.process(part):
                pass

    @property
    def nbytes(self) -> float:
        """The figure that it tells."""
        found: float = self._step.metrics()["state_bytes"]
        return found


class OfProcessor:
    """The states of a processor that has one of each kind, with times to live, and timers."""

    def __init__(self) -> None:
        own = pa.schema([("o", pa.int64())])
        kinds = ((VALUE, None), (LIST, None), (MAP, own))
        self._store = KeyedStore(SCHEMA.remove(2).remove(1), [VariableSpec(k, k, TEXT, o, 10) for k, o in kinds])

    def take(self, batch: pa.RecordBatch) -> None:
        """Take a batch."""
        store, text = self._store, pa.record_batch([batch["s"]], schema=TEXT)
        slots = store.slots([batch["k"]], batch.num_rows)
        store.variable(VALUE).put(slots, text, 0)
        store.variable(LIST).append(slots, text, 0)
        store.variable(MAP).put(slots, batch.select(["k"]), text, 0)
        store.timers.register(slots, slots + 1_000)

    @property
    def nbytes(self) -> int:
        """Those of the store."""
        return self._store.nbytes


def windows(*, updates: bool) -> OfStep:
    """Windows that are longer than time."""
    first = Stream((SourceStep("rows", SCHEMA, streaming=True),)).withWatermark("t", "0 seconds")
    last: Any = first.keyBy("k", WindowKey("t", 1 << 40, 1 << 40, 0, 0, "w")).agg(n=("*", "count")).branches[0]
    spec = last.operator.spec
    partial = PartialWindows(spec)
    return OfStep(
        WindowAggregate(spec, updates=updates), lambda given: partial.apply(each.select(["k", "t"]) for each in given)
    )


def join() -> OfStep:
    """A join in which nothing meets."""
    sides = JoinedSides(Side(SCHEMA, ("k",)), Side(OTHER, ("k",)))
    return OfStep(StreamJoin(sides, Between(("t", "u"), 0, 10, by_watermark=True)), AsSide(sides, LEFT).apply)


def aggregate(*functions: str) -> Callable[[], OfStep]:
    """An aggregation of texts, or of rows."""
    items = tuple(Aggregation(each, "*" if each == "count" else "s", each) for each in functions)
    return lambda: OfStep(KeyedAggregate(SCHEMA, ("k",), items))


CASES: dict[str, Callable[[], Any]] = {
    "counts": aggregate("count"),
    "texts": aggregate("count", "max"),
    "distinct texts": aggregate("count_distinct"),
    "texts as keys": lambda: OfStep(DropDuplicates(SCHEMA, ("s",), "t", 5)),
    "first rows": lambda: OfStep(TopRows(SCHEMA, ("k",), 3, (("t", False),))),
    "windows": lambda: windows(updates=False),
    "windows that are updated": lambda: windows(updates=True),
    "a join": join,
    "a processor": OfProcessor,
}


@pytest.mark.parametrize("kind", some_of(list(CASES), 4))
def test_the_bytes_of_a_state_are_those_of_its_memory(kind: str) -> None:
    """No part of a state is left out, and none is counted twice."""
    given = list(pieces())
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
        state = CASES[kind]()
        for batch in given:
            state.take(batch)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert grown / 1.3 < state.nbytes < 1.5 * grown, (state.nbytes, grown)
