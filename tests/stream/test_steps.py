# SPDX-License-Identifier: Apache-2.0
"""Operators as steps: which there are, what an epoch's end does to them, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.storage import pieces_of
from penstock.errors import PlanError
from penstock.graph import JobVertex, Operator
from penstock.operators.aggregate_states import Aggregation
from penstock.operators.functions import MapInArrow, MapInPandas
from penstock.operators.verbs import Limit
from penstock.stream import check, iterators
from penstock.stream.aggregate import KeyedAggregate
from penstock.stream.chain import Chain, StepContext
from penstock.stream.steps import chain_of, step_of

SCHEMA = pa.schema([("n", pa.int64())])
CONTEXT = StepContext(0, 1, 128, "stage 1, subtask 0")


def batch(*values: int) -> pa.RecordBatch:
    """A batch of these numbers."""
    return pa.record_batch({"n": list(values)}, SCHEMA)


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    """The values of all rows."""
    return [value for found in batches for value in found.column(0).to_pylist()]


def chain(*operators: Operator) -> Chain:
    """An opened chain of these."""
    made = chain_of(JobVertex(1, "stage", 1, SCHEMA, operators=operators))
    made.open(CONTEXT, [])
    return made


def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives each batch twice."""
    for found in batches:
        yield found
        yield found


def held_back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives all of its input at its end."""
    yield from list(batches)


def first_only(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Ends after its first batch."""
    yield next(batches)


def no_odd_ones(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives nothing for some batches."""
    for found in batches:
        if found.column(0)[0].as_py() % 2 == 0:
            yield found


def test_a_function_over_an_iterator_is_pushed_its_batches() -> None:
    """All that it gives for a batch comes out at once: several batches, or none."""
    steps = chain(MapInArrow(twice, SCHEMA), MapInArrow(no_odd_ones, SCHEMA))
    assert numbers(steps.push(batch(2, 3))) == [2, 3, 2, 3]
    assert steps.push(batch(1)) == []
    steps.close()


def test_what_a_function_holds_back_comes_out_at_the_epochs_end() -> None:
    """Its iterator ends there, what it gives goes through the later steps, and the next epoch begins anew."""
    steps = chain(MapInArrow(held_back, SCHEMA), MapInArrow(twice, SCHEMA))
    assert steps.push(batch(1)) == steps.push(batch(2)) == []
    assert numbers(steps.end_epoch()) == [1, 1, 2, 2]
    assert steps.end_epoch() == []
    assert steps.push(batch(3)) == []
    assert numbers(steps.end_input(stopped=False)) == [3, 3]
    steps.close()


def test_what_a_function_made_outside_itself_survives_epochs() -> None:
    """It runs in one thread for its whole life, and only its iterator ends."""
    threads: set[int] = set()
    calls: list[int] = []

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        calls.append(0)
        for found in batches:
            threads.add(threading.get_ident())
            yield found

    steps = chain(MapInArrow(function, SCHEMA))
    for _ in range(3):
        steps.push(batch(1))
        steps.end_epoch()
    steps.close()
    assert len(calls) == 3
    assert len(threads) == 1


class Shifted:
    """Adds what it was set up with, and counts in how many tasks that was."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.shift = 100 * self.made

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Its sums."""
        for found in batches:
            yield batch(*(value + self.shift for value in found.column(0).to_pylist()))


def test_a_class_is_set_up_once_for_the_task_and_serves_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its object is made at the first batch, and called again after each barrier; messages name the class."""
    monkeypatch.setattr(Shifted, "made", 0)
    steps = chain(MapInArrow(Shifted, SCHEMA))
    assert Shifted.made == 0
    for value in (1, 2, 3):
        assert numbers(steps.push(batch(value))) == [100 + value]
        steps.end_epoch()
    steps.close()
    assert Shifted.made == 1
    assert MapInArrow(Shifted, SCHEMA).name == MapInArrow(Shifted, SCHEMA).opened().name == "mapInArrow(Shifted)"


def test_who_sets_up_much_in_each_epoch_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the time it took, and what to write instead; the first call is not held against it."""
    monkeypatch.setattr(iterators, "SLOW_START_SECONDS", -1.0)
    steps = chain(MapInArrow(twice, SCHEMA))
    for epoch, warnings in enumerate([0, 1, 1]):
        steps.push(batch(epoch))
        steps.end_epoch()
        assert len(caplog.messages) == warnings
    steps.close()
    assert "mapInArrow(twice) took 0.0 s before it asked for its first batch" in caplog.text
    assert "give a class that sets things up in __init__" in caplog.text


def test_a_function_that_ends_before_its_iterator_is_an_error() -> None:
    """It would drop rows; the message says what to do instead."""
    steps = chain(MapInArrow(first_only, SCHEMA))
    with pytest.raises(PlanError, match=r"mapInArrow\(first_only\) ended before its iterator did"):
        steps.push(batch(1))
    steps.close()


def test_what_a_function_raises_is_raised_with_its_name() -> None:
    """The note says which operator of which task; the thread of the function ends with its step."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise ZeroDivisionError("of the user")
        yield from ()

    steps = chain(MapInArrow(function, SCHEMA))
    with pytest.raises(ZeroDivisionError) as caught:
        steps.push(batch(1))
    assert "raised in mapInArrow(function) of stage 1, subtask 0" in caught.value.__notes__
    steps.close()


def test_a_function_is_told_when_its_task_ends() -> None:
    """A task that ends in the middle of an epoch lets the function clean up."""
    cleaned = threading.Event()

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        finally:
            cleaned.set()

    steps = chain(MapInArrow(function, SCHEMA))
    steps.push(batch(1))
    steps.close()
    assert cleaned.is_set()


def test_a_function_over_frames_works_the_same() -> None:
    """A function for mapInPandas is an iterator's function too."""

    def function(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            yield frame.assign(n=frame["n"] + 1)

    steps = chain(MapInPandas(function, SCHEMA))
    assert numbers(steps.push(batch(1, 2))) == [2, 3]
    steps.close()


def test_what_needs_its_whole_input_is_refused_by_name() -> None:
    """At plan time, and also where a task would run it."""
    with pytest.raises(PlanError, match=r"^limit\(3\) needs its whole input"):
        check(Limit(3))
    with pytest.raises(PlanError, match="limit"):
        step_of(Limit(3))


def test_state_is_found_where_other_operators_have_come_in_front() -> None:
    """It is named by the kind of its operator; state that is nobody's any more is refused by name."""
    counting = KeyedAggregate(SCHEMA, ("n",), (Aggregation("count", "*", "count"),))
    before = chain(counting)
    before.push(batch(7))
    state = {name: b"".join(pieces_of(make())) for name, make in before.snapshot(1)}
    after = chain_of(JobVertex(1, "stage", 1, SCHEMA, operators=(MapInArrow(twice, SCHEMA), counting)))
    after.open(CONTEXT, [state])
    assert after.push(batch(7))[-1].to_pylist() == [{"n": 7, "count": 3}]
    after.close()
    with pytest.raises(CheckpointError, match="state of 'KeyedAggregate-1', and no operator of that name"):
        chain_of(JobVertex(1, "stage", 1, SCHEMA, operators=(MapInArrow(twice, SCHEMA),))).open(CONTEXT, [state])
