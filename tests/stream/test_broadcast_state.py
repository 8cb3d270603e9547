# SPDX-License-Identifier: Apache-2.0
"""A second stream whose rows come to all tasks: through the exchange, into a state that is the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row

from penstock import BatchProcessor
from penstock.api.stateful import row_maker, state_schema
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.storage import pieces_of
from penstock.errors import PlanError
from penstock.record import PartitionerSpec
from penstock.stream.chain import StepContext
from penstock.stream.state.operator import BATCHES, ROWS, Spellings, StatefulOperator
from penstock.stream.state.shared_rows import MARK, BesideShared, ToAll, marked_schema, parts, shared_first
from penstock.stream.state.step import ProcessorStep
from penstock.testing.local_runner import run_local
from penstock.testing.sources import fromBatches

DATA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
RULES = pa.schema([("name", pa.string()), ("least", pa.int64())])
OUTPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def data(*rows: tuple[int, int]) -> pa.RecordBatch:
    """Rows of the first stream."""
    return pa.RecordBatch.from_pylist([{"k": key, "v": value} for key, value in rows], DATA)


def rules(**least: int | None) -> pa.RecordBatch:
    """Rows of the second stream."""
    return pa.RecordBatch.from_pylist([{"name": name, "least": value} for name, value in least.items()], RULES)


def both(*batches: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of both streams as they go through the exchange, in one batch."""
    made = [
        each
        for batch in batches
        for each in (BesideShared(DATA) if batch.schema == DATA else ToAll(DATA)).apply(iter((batch,)))
    ]
    return pa.concat_batches(made)


class Batches(BatchProcessor):
    """Gives the rows that are not less than the greatest rule, and counts a key's rows."""

    def init(self, handle: Any) -> None:
        """A state of each kind."""
        self.rules = handle.getBroadcastState("rules", "name string", "least long")
        self.rows = handle.getValueState("rows", "n long")

    def handleBroadcast(self, rows: pa.RecordBatch, timerValues: Any) -> None:
        """A rule without a number is removed."""
        gone = pc.is_null(rows["least"])
        self.rules.remove(rows.filter(gone).select(["name"]))
        there = rows.filter(pc.invert(gone))
        self.rules.put(there.select(["name"]), there.select(["least"]))

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
        """Look at the rules once for all rows."""
        self.rows.put(keys, {"n": pc.add(pc.fill_null(self.rows.get(keys)["n"], 0), keys.counts())})
        _, values = self.rules.entries()
        least = pc.max(values["least"]).as_py() or 0
        return rows.filter(pc.greater_equal(rows["v"], least)).cast(OUTPUT)


class Rows:
    """The same for one key at a time."""

    def init(self, handle: Any) -> None:
        """A state of each kind."""
        self.rules = handle.getBroadcastState("rules", "name string", "least long")
        self.rows = handle.getValueState("rows", "n long")

    def handleBroadcastRows(self, rows: Iterator[Row], timerValues: Any) -> None:
        """A rule without a number is removed."""
        for row in rows:
            if row.least is None:
                self.rules.removeKey((row.name,))
                assert not self.rules.containsKey((row.name,))
            else:
                self.rules.updateValue((row.name,), (row.least,))
                assert self.rules.getValue((row.name,)) == (row.least,)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Look at the rules for each row."""
        for row in rows:
            if row.v >= max((least for (least,) in self.rules.values()), default=0):
                yield Row(k=row.k, v=row.v)

    def close(self) -> None:
        """Nothing is held."""


FORMS = {BATCHES: Batches(), ROWS: Rows()}


def operator(form: str, **changes: Any) -> StatefulOperator:
    """The operator of a form."""
    spellings = Spellings(state_schema, row_maker)
    made = {"has_shared": True, "processor": FORMS[form], **changes}
    return StatefulOperator(form, input_schema=DATA, keys=("k",), schema=OUTPUT, spellings=spellings, **made)


def opened(made: StatefulOperator, states: Any = (), place: tuple[int, int] = (0, 1)) -> ProcessorStep:
    """A task's step."""
    step = made.step()
    step.open(StepContext(*place, 16, "stage 1"), states)
    return step


def stored(step: ProcessorStep) -> dict[str, bytes]:
    """The state as a checkpoint gives it back."""
    return {name: b"".join(pieces_of(make())) for name, make in step.snapshot(1)}


def given(step: ProcessorStep, batch: pa.RecordBatch) -> list[int]:
    """The values that come out."""
    return [value for each in step.process(batch) for value in each["v"].to_pylist()]


@pytest.mark.parametrize("form", FORMS)
def test_rules_count_from_their_place_among_the_rows(form: str) -> None:
    """Rows in front of a rule are not seen by it, those after it are, also within one batch."""
    step = opened(operator(form))
    assert given(step, both(data((1, 5)), rules(a=10), data((1, 9), (2, 10)), rules(a=3, b=4), data((1, 4)))) == [
        5,
        10,
        4,
    ]
    assert given(step, both(data((1, 3), (1, 4)))) == [4]
    assert given(step, both(rules(b=None), data((1, 3)))) == [3]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_all_tasks_go_on_with_the_rules(form: str, width: int) -> None:
    """At any number of them after a restore; the next rule replaces one that was restored."""
    made = operator(form)
    states = []
    for subtask in range(2):
        step = opened(made, (), (subtask, 2))
        assert given(step, both(rules(a=10, b=20))) == []
        states.append(stored(step))
    for subtask in range(width):
        own = [states[subtask]] if width == 2 else states
        step = opened(made, own, (subtask, width))
        assert given(step, both(data((1, 19), (1, 20)))) == [20]
        assert given(step, both(rules(b=None), data((1, 9), (1, 10)))) == [10]


def test_only_rows_that_come_to_all_may_change_it() -> None:
    """A task that wrote it for a key's rows would differ from the others."""

    class Wrong(Batches):
        def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> None:
            self.rules.put({"name": ["a"]}, {"least": [1]})

    with pytest.raises(PlanError, match="'rules' is the same in all tasks, so only the rows that come to all"):
        given(opened(operator(BATCHES, processor=Wrong())), both(data((1, 1))))


def test_mistakes_are_refused_by_name() -> None:
    """A broadcast state without a second stream, one nobody handles, and a state that is kept by key now."""
    with pytest.raises(PlanError, match="a broadcast state needs a second stream: give it as broadcastStream"):
        opened(operator(BATCHES, has_shared=False))

    class Deaf(Rows):
        handleBroadcastRows = None  # type: ignore[assignment]

    stream = fromBatches([data((1, 1))]).keyBy("k")
    with pytest.raises(TypeError, match=r"come to handleBroadcastRows\(rows, timerValues\): write it"):
        stream.transformWithState(Deaf(), OUTPUT, broadcastStream=stream)

    class Others(Batches):
        def init(self, handle: Any) -> None:
            self.rules = handle.getBroadcastState("others", "name string", "least long")
            self.rows = handle.getValueState("rows", "n long")

    state = stored(opened(operator(BATCHES)))
    with pytest.raises(CheckpointError, match="holds the state 'rules', and the processor has none of that name"):
        operator(BATCHES, processor=Others()).step().check(list(state), lambda name: [state[name]])


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_the_exchange_gives_marked_rows_to_all_in_order(tasks: int) -> None:
    """Rows of keys go where they would go without the others."""
    chance = np.random.default_rng(1)
    batches = []
    for number in range(30):
        keys = chance.integers(0, 50, 6).tolist()
        batches.append(data(*[(key, 100 * number + n) for n, key in enumerate(keys)]))
        if number % 3 == 0:
            batches.append(rules(a=number))
    spec = PartitionerSpec("hash", ("k",), groups=16, to_all=MARK)
    plain = PartitionerSpec("hash", ("k",), groups=16)
    found: dict[int, list[Any]] = {number: [] for number in range(tasks)}
    for number, part in spec.build(tasks, 0).split(both(*batches)):
        for is_shared, rows in parts(part, DATA):
            assert rows.schema == (RULES if is_shared else DATA)
            found[number] += [(is_shared, value) for value in rows.column(1).to_pylist()]
    whole = pa.concat_batches([batch for batch in batches if batch.schema == DATA])
    owners = {number: part["v"].to_pylist() for number, part in plain.build(tasks, 0).split(whole)}
    for number, seen in found.items():
        assert [value for is_shared, value in seen if not is_shared] == owners[number]
        assert [value for is_shared, value in seen if is_shared] == list(range(0, 30, 3))
        last = 0
        for is_shared, value in seen:  # a rule of number n comes after the rows of n, and in front of later ones
            assert value * 100 >= last if is_shared else value >= last
            last = max(last, value * 100 if is_shared else value // 100 * 100)
    assert spec.build(tasks, 0).split(both(rules(a=1))).counts.tolist() == [1] * tasks


@pytest.mark.parametrize("form", ["transformWithState", "transformWithStateInArrow"])
def test_a_batch_job_has_all_rules_first(form: str) -> None:
    """In the local runner too, so a unit test of a processor needs no order of its streams."""
    rows = fromBatches([data(*[(n % 7, n) for n in range(start, start + 50)]) for start in (0, 50)], 2)
    beside = fromBatches([rules(a=90), rules(b=95, a=None)])
    keyed = rows.keyBy("k", numPartitions=3)
    processor = Batches() if form.endswith("Arrow") else Rows()
    found = run_local(getattr(keyed, form)(processor, OUTPUT, broadcastStream=beside))
    assert sorted(found["v"].to_pylist()) == list(range(95, 100))


def test_rows_without_a_mark_are_not_copied() -> None:
    """A batch of the first stream alone is the batch that it was, but for the mark."""
    batch = data((1, 1), (2, 2))
    ((is_shared, rows),) = parts(both(batch), DATA)
    assert not is_shared
    assert rows == batch
    assert both(batch).schema == marked_schema(DATA)
    assert [each.num_rows for each in shared_first(iter([both(rules(a=1), batch, rules(b=1))]))] == [2, 2]
