# SPDX-License-Identifier: Apache-2.0
"""Incremental aggregation: the newest result of each key is what a batch job gives, whatever the barriers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples, some_of
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.storage import pieces_of
from penstock.errors import ArithmeticOverflowError
from penstock.operators.aggregate_states import Aggregation
from penstock.record import spark_partition_ids
from penstock.record.key_groups import GroupOwners
from penstock.stream import increments, keyed_state
from penstock.stream.aggregate import AggregateStep, KeyedAggregate
from penstock.stream.chain import Chunk, StepContext
from uncertain_checkpoints import UncertainCheckpoints

GROUPS = 16
SCHEMA = pa.schema(
    [("k", pa.int64()), ("s", pa.string()), ("d", pa.date32()), ("i", pa.int32()), ("f", pa.float64())]
)
KEYS = [("k",), ("s",), ("d",), ("k", "s"), ()]
NUMBERS = [
    Aggregation("n", "*", "count"),
    Aggregation("v", "i", "count"),
    Aggregation("si", "i", "sum"),
    Aggregation("sf", "f", "sum"),
    Aggregation("a", "i", "avg"),
    Aggregation("lo", "f", "min"),
    Aggregation("hi", "f", "max"),
    Aggregation("early", "d", "min"),
    Aggregation("late", "i", "max"),
]
ROWS = [*NUMBERS, Aggregation("text", "s", "max"), Aggregation("many", "k", "count_distinct")]
DISTINCT = [Aggregation(f"many {column}", column, "count_distinct") for column in SCHEMA.names]
ITEMS = [NUMBERS, ROWS, DISTINCT]
FEW = st.one_of(st.none(), st.integers(0, 3))
FLOATS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, -2.0, math.nan, math.inf]))
ROW = st.tuples(FEW, st.one_of(st.none(), st.sampled_from("abc")), FEW, FEW, FLOATS)
BATCHES = st.lists(st.lists(ROW, min_size=1, max_size=8), min_size=1, max_size=6)


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """A batch of these rows."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def context(subtask: int = 0, parallelism: int = 1, groups: int = GROUPS) -> StepContext:
    """The context in which a step runs."""
    return StepContext(subtask, parallelism, groups, "stage 1")


def stored(chunks: list[Chunk]) -> dict[str, bytes]:
    """The chunks as a checkpoint gives them back."""
    return {name: b"".join(pieces_of(make())) for name, make in chunks}


def newest(results: list[pa.RecordBatch], keys: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The last result of each key; NaN as text, as it is not equal to itself."""
    found = {}
    for result in results:
        for row in result.to_pylist():
            values = tuple("NaN" if value != value else value for value in row.values())
            found[values[:keys]] = values[keys:]
    return found


@settings(max_examples=examples(60))
@given(BATCHES, st.sampled_from(KEYS), st.sampled_from(ITEMS), st.data())
def test_the_newest_results_are_those_of_a_batch_job(
    rows: list[list[tuple[Any, ...]]], keys: tuple[str, ...], items: list[Aggregation], data: st.DataObject
) -> None:
    """For every function and kind of key, with a snapshot and a new step restored from it after any batch."""
    operator = KeyedAggregate(SCHEMA, keys, tuple(items))
    step = operator.step()
    step.open(context(), [])
    given_rows: list[pa.RecordBatch] = []
    for found in rows:
        given_rows += step.process(batch(found))
        if data.draw(st.booleans(), label="barrier"):
            chunks = step.snapshot(1)
            state = stored(chunks)
            step = operator.step()
            step.open(context(), [state])
    whole = list(operator.apply(iter([batch(found) for found in rows])))
    assert given_rows[0].schema == operator.result_schema
    assert newest(given_rows, len(keys)) == newest(whole, len(keys))


@settings(max_examples=20)
@given(BATCHES, st.sampled_from(ITEMS))
def test_a_snapshot_is_what_was_when_it_was_taken(
    rows: list[list[tuple[Any, ...]]], items: list[Aggregation]
) -> None:
    """Rows that come between its taking and its storing change nothing of it."""
    operator = KeyedAggregate(SCHEMA, ("k", "s"), tuple(items))
    step = operator.step()
    step.open(context(), [])
    chunks = at_once = None
    for found in rows:
        step.process(batch(found))
        if chunks is None:
            chunks = step.snapshot(1)
            at_once = stored(chunks)
    assert chunks is not None
    assert stored(chunks) == at_once


@pytest.mark.parametrize("keys", [("k",), ("k", "s"), ()])
@pytest.mark.parametrize("items", ITEMS)
def test_another_parallelism_takes_its_keys_out_of_all_states(
    keys: tuple[str, ...], items: list[Aggregation]
) -> None:
    """Three tasks go on with the states of two, each with the keys of its own key groups."""
    operator = KeyedAggregate(SCHEMA, keys, tuple(items))
    rows = [(n % 7, "abc"[n % 3], n % 5, n, float(n)) for n in range(100)]

    def share(of: int, subtask: int) -> pa.RecordBatch:
        whole = batch(rows)
        if not keys:
            return whole if subtask == 0 else whole.slice(0, 0)
        groups = spark_partition_ids([whole.column(key) for key in keys], GROUPS).astype(int)
        return whole.filter(pa.array((groups * of // GROUPS == subtask).tolist()))

    states = []
    for subtask in range(2):
        step = operator.step()
        step.open(context(subtask, 2), [])
        if share(2, subtask).num_rows:
            step.process(share(2, subtask))
        states.append(stored(step.snapshot(1)))
    results: list[pa.RecordBatch] = []
    for subtask in range(3):
        step = operator.step()
        step.open(context(subtask, 3), states)
        if share(3, subtask).num_rows:
            results += step.process(share(3, subtask))
    whole = list(operator.apply(iter([batch(rows), batch(rows)])))
    assert newest(results, len(keys)) == newest(whole, len(keys))


class Tasks:
    """The steps of one vertex, and all rows that they have had."""

    def __init__(self, operator: KeyedAggregate) -> None:
        self.operator = operator
        self.steps: list[AggregateStep] = []
        self.rows: list[tuple[Any, ...]] = []

    def open(self, width: int, states: list[dict[str, bytes]]) -> None:
        """Begin with states, with another number of tasks where that is another one."""
        same = width == len(states)
        self.steps = [self.operator.step() for _ in range(width)]
        for n, step in enumerate(self.steps):
            step.open(context(n, width), states[n : n + 1] if same else states)

    def give(self, rows: list[tuple[Any, ...]]) -> list[pa.RecordBatch]:
        """Each row to the task of its key; the results."""
        self.rows += rows
        whole = batch(rows)
        keys = [whole.column(key) for key in self.operator.keys]
        owners = GroupOwners(GROUPS, len(self.steps)).of(keys) if keys else np.zeros(len(rows), np.int64)
        results: list[pa.RecordBatch] = []
        for n, step in enumerate(self.steps):
            own = whole.filter(pa.array((owners == n).tolist()))
            if own.num_rows:
                results += step.process(own)
        return results

    def tell(self, checkpoint: int) -> None:
        """A checkpoint is known to be complete."""
        for step in self.steps:
            step.completed(checkpoint)


@pytest.mark.parametrize("seed", some_of(range(120), 15))
def test_checkpoints_that_refer_to_older_ones_hold_all_state(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some keys change between checkpoints that fail, or that tasks hear of late; any number of tasks goes on.

    After each restore every key has the result that a batch job over the same rows has.
    """
    monkeypatch.setattr(increments, "LEAST_SLOTS", 0)
    monkeypatch.setattr(increments, "SHARE", 1)
    monkeypatch.setattr(increments, "MOST_CHANGES", 4)
    monkeypatch.setattr(keyed_state, "CHUNK_ROWS", 5)
    chance = random.Random(seed)
    keys = KEYS[seed % len(KEYS)]
    tasks = Tasks(KeyedAggregate(SCHEMA, keys, tuple(ITEMS[seed // len(KEYS) % len(ITEMS)])))
    tasks.open(chance.randint(1, 3), [])
    checkpoints = UncertainCheckpoints(chance, tasks.tell)

    def rows(count: int) -> list[tuple[Any, ...]]:
        numbers = [chance.choice([None, *range(12)]) for _ in range(count)]
        return [
            (n, chance.choice([None, *"abcdef"]), n, chance.randrange(9), chance.random() // 0.1) for n in numbers
        ]

    probe = [(n, text, n, 1, 1.0) for n in (None, *range(12)) for text in (None, *"abcdef")]
    tasks.give(probe)
    for _ in range(25):
        tasks.give(rows(chance.randint(1, 4)))
        if chance.random() < 0.6:
            states, is_complete = checkpoints.take([step.snapshot for step in tasks.steps])
            again = Tasks(tasks.operator)
            again.open(chance.choice((len(states), chance.randint(1, 3))), states)
            again.rows = list(tasks.rows)
            results = again.give(probe)
            whole = list(tasks.operator.apply(iter([batch(again.rows)])))
            assert newest(results, len(keys)) == newest(whole, len(keys))
            if is_complete and chance.random() < 0.2:  # a failure: the tasks begin with it
                tasks.steps, tasks.rows = again.steps, again.rows
    assert checkpoints.referred > 0


def test_distinct_values_lie_in_chunks_of_as_many_rows_as_keys_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key with many values makes no chunk larger, and all of them are there after a restore."""
    monkeypatch.setattr(keyed_state, "CHUNK_ROWS", 32)
    operator = KeyedAggregate(SCHEMA, ("s",), (Aggregation("many", "k", "count_distinct"),))
    step = operator.step()
    step.open(context(), [])
    rows = [(n, "a", 1, 1, 1.0) for n in range(100)]
    step.process(batch(rows))
    state = stored(step.snapshot(1))
    sizes = [
        pa.ipc.open_stream(data).read_all().num_rows for name, data in state.items() if "distinct.0/rows" in name
    ]
    assert sizes == [32, 32, 32, 4]
    again = operator.step()
    again.open(context(), [state])
    (result,) = again.process(batch([*rows, (None, "a", 1, 1, 1.0), (100, "a", 1, 1, 1.0)]))
    assert result.to_pylist() == [{"s": "a", "many": 101}]


def refused(change: Callable[[dict[str, bytes]], StepContext]) -> str:
    """The message with which a changed state is refused."""
    operator = KeyedAggregate(SCHEMA, ("k",), (NUMBERS[0],))
    step = operator.step()
    step.open(context(), [])
    step.process(batch([(1, "a", 1, 1, 1.0)]))
    state = stored(step.snapshot(1))
    where = change(state)
    with pytest.raises(CheckpointError) as caught:
        operator.step().open(where, [state])
    return str(caught.value)


def changed_aggregation() -> None:
    """Go on with other functions than the state was kept for."""
    step = KeyedAggregate(SCHEMA, ("k",), (NUMBERS[0],)).step()
    step.open(context(), [])
    step.process(batch([(1, "a", 1, 1, 1.0)]))
    KeyedAggregate(SCHEMA, ("k",), (NUMBERS[2],)).step().open(context(), [stored(step.snapshot(1))])


def test_states_that_do_not_fit_are_refused() -> None:
    """One without its description, of another version, of other functions, or of other groups where they count."""

    def without(state: dict[str, bytes]) -> StepContext:
        del state["about"]
        return context()

    def of_before(state: dict[str, bytes]) -> StepContext:
        state["about"] = msgpack.packb(msgpack.unpackb(state["about"]) | {"version": 2})
        return context()

    assert "can't be read" in refused(without)
    assert "is of version 2 with keys by" in refused(of_before)
    with pytest.raises(CheckpointError, match=r"state of 'aggregate by k: n=count\(\*\).*now has .*sum"):
        changed_aggregation()
    assert "lies in 16 key groups" in refused(lambda _: context(0, 2, 32))


def test_an_integer_sum_that_leaves_its_type_is_an_error() -> None:
    """Wherever that happens, also on top of a restored state; sums that come near it are right."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    operator = KeyedAggregate(schema, ("k",), (Aggregation("s", "v", "sum"),))

    def rows(*values: int) -> pa.RecordBatch:
        return pa.record_batch({"k": [1] * len(values), "v": list(values)}, schema)

    step = operator.step()
    step.open(context(), [])
    near = (1 << 63) - 2
    (first,) = step.process(rows(near, 1, -5, 5))
    assert first.to_pylist() == [{"k": 1, "s": near + 1}]
    again = operator.step()
    again.open(context(), [stored(step.snapshot(1))])
    for one in (step, again):
        with pytest.raises(ArithmeticOverflowError, match=r"s=sum\(v\)"):
            one.process(rows(1))


def test_sums_wrap_without_ansi_rules() -> None:
    """As in Spark, and as the batch aggregation does."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    operator = KeyedAggregate(schema, ("k",), (Aggregation("s", "v", "sum"),), ansi=False)
    step = operator.step()
    step.open(context(), [])
    (result,) = step.process(pa.record_batch({"k": [1, 1], "v": [(1 << 63) - 1, 1]}, schema))
    assert result.to_pylist() == [{"k": 1, "s": -(1 << 63)}]
