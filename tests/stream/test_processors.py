# SPDX-License-Identifier: Apache-2.0
"""Processors with state, in all three forms: their calls, times and states, over snapshots and moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from penstock import BatchProcessor
from penstock.checkpoint.errors import CheckpointError
from penstock.errors import PlanError, SchemaError
from penstock.record.key_groups import GroupOwners
from penstock.stream.chain import Chain
from penstock.stream.state.operator import BATCHES, FRAMES, ROWS
from penstock.stream.watermark import MOST
from processor_task import GROUPS, OUTPUT, Task, flat, operator

ROWS_OF_KEYS = [("a", 1), ("b", 2), ("a", 3), (None, 4), ("b", 5), ("a", 6)]


class Sums(StatefulProcessor):
    """Keeps a sum, the values, and how often each was there, and gives the sum at once and after a second."""

    def init(self, handle: Any) -> None:
        """Declare one state of each kind."""
        self.handle = handle
        self.total = handle.getValueState("total", "total long")
        self.values = handle.getListState("values", "v long")
        self.seen = handle.getMapState("seen", "v long", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows up."""
        total = self.total.get()[0] if self.total.exists() else 0
        for row in rows:
            total += row.v
            self.values.appendValue((row.v,))
            before = self.seen.getValue((row.v,))
            self.seen.updateValue((row.v,), ((before[0] if before else 0) + 1,))
        self.total.update((total,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1000)
        assert sum(value for (value,) in self.values.get()) == total
        assert sum(v * n for (v,), (n,) in self.seen.iterator()) == total
        yield Row(k=key[0], what="rows", n=total)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Give the sum, and forget the key."""
        waiting = list(self.handle.listTimers())
        yield Row(k=key[0], what=f"timer, {len(waiting)} wait", n=self.total.get()[0])
        if not waiting:
            self.total.clear()
            self.values.clear()
            self.seen.clear()

    def close(self) -> None:
        """Nothing is held."""


def with_frames(processor: type[StatefulProcessor]) -> StatefulProcessor:
    """The same processor over frames."""

    class OfFrames(processor):  # type: ignore[valid-type, misc]
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            flat_rows = (Row(**row) for frame in rows for row in frame.to_dict("records"))
            for row in super().handleInputRows(key, flat_rows, timerValues):
                yield pd.DataFrame([row.asDict()])

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
                yield pd.DataFrame([row.asDict()])

    return OfFrames()


class BatchSums(BatchProcessor):
    """The same for whole batches."""

    def init(self, handle: Any) -> None:
        """Declare one state of each kind."""
        self.handle = handle
        self.total = handle.getValueState("total", "total long")
        self.values = handle.getListState("values", "v long")
        self.seen = handle.getMapState("seen", "v long", "n int")

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
        """Add the rows up."""
        total = pc.add(pc.fill_null(self.total.get(keys)["total"], 0), keys.sum(rows["v"]))
        self.total.put(keys, {"total": total})
        self.values.append(keys, keys.groups, {"v": rows["v"]})
        for value in pc.unique(rows["v"]).to_pylist():  # a few
            here = pc.filter(pa.array(keys.groups), pc.equal(rows["v"], value))
            own = {"v": [value] * len(here)}
            before = self.seen.get(keys, here, own)["n"]
            assert len(here) == 1, "the test's rows have each value once"
            self.seen.put(keys, here, own, {"n": pc.add(pc.fill_null(before, 0), pa.scalar(1, pa.int32()))})
        now = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimers(keys, range(len(keys)), [now + 1000] * len(keys))
        owned = self.values.get(keys)
        assert pc.sum(owned.rows["v"]).as_py() == pc.sum(total).as_py()
        return self._given(keys, "rows", total)

    def handleExpiredTimers(self, keys: Any, expiryTimesInMs: pa.Array, timerValues: Any) -> Any:
        """Give the sums, and forget the keys that nothing waits for."""
        waiting = self.handle.listTimers(keys).groups
        counts = [int((waiting == at).sum()) for at in range(len(keys))]
        total = self.total.get(keys)["total"]
        texts = pa.array([f"timer, {counts[at]} wait" for at in keys.groups])
        at = pa.array(keys.groups)
        given = pa.RecordBatch.from_arrays([keys.table["k"].take(at), texts, total.take(at)], schema=OUTPUT)
        idle = keys.where(pa.array([count == 0 for count in counts]))
        for state in (self.total, self.values, self.seen):
            state.clear(idle)
        return [given]

    def _given(self, keys: Any, what: str, total: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([keys.table["k"], pa.array([what] * len(keys)), total], schema=OUTPUT)


FORMS = {ROWS: Sums(), FRAMES: with_frames(Sums), BATCHES: BatchSums()}


@pytest.mark.parametrize("form", FORMS)
def test_all_kinds_of_state_and_timers(form: str) -> None:
    """Each form gives the same rows at once, when timers fire, and after all is forgotten; null is a key."""
    task = Task(operator(form, FORMS[form], time_mode="processingtime"))
    assert sorted(task.push(*ROWS_OF_KEYS), key=str) == [("a", "rows", 10), ("b", "rows", 7), (None, "rows", 4)]
    task.clock.advance(0.5)
    assert task.push(("a", 7)) == [("a", "rows", 17)]
    assert task.wait(0.4) == []
    fired = sorted(task.wait(0.1), key=str)
    assert fired == [("a", "timer, 1 wait", 17), ("b", "timer, 0 wait", 7), (None, "timer, 0 wait", 4)]
    assert task.wait(10) == [("a", "timer, 0 wait", 17)]
    assert task.push(("a", 1)) == [("a", "rows", 1)]
    task.chain.close()


@pytest.mark.parametrize("form", FORMS)
def test_states_and_timers_go_on_with_another_number_of_tasks(form: str) -> None:
    """Each timer fires once, in the task that has its key now, and sums go on."""
    made = operator(form, FORMS[form], time_mode="processingtime")
    first = Task(made)
    first.push(*ROWS_OF_KEYS)
    state = first.stored()
    first.push(("a", 100))  # after the snapshot
    tasks = [Task(made, [state], (n, 3)) for n in range(3)]
    more = [("a", 10), ("b", 10)]
    owners = GroupOwners(GROUPS, 3).of([pa.array([key for key, _ in more])])
    given = [row for (key, value), at in zip(more, owners, strict=True) for row in tasks[at].push((key, value))]
    assert given == [("a", "rows", 20), ("b", "rows", 17)]
    fired = sorted((row for task in tasks for row in task.wait(1.0)), key=str)
    # The clocks of all tasks stand where the first one's stood, so a key's two timers are one.
    assert fired == [("a", "timer, 0 wait", 20), ("b", "timer, 0 wait", 17), (None, "timer, 0 wait", 4)]


@pytest.mark.parametrize("form", FORMS)
def test_timers_fire_when_the_data_has_ended(form: str) -> None:
    """Those that wait then do, once; if the query is only stopped they stay."""
    task = Task(operator(form, FORMS[form], time_mode="processingtime"))
    task.push(("a", 1))
    assert task.chain.end_input(stopped=True) == []
    assert flat(task.chain.end_input(stopped=False)) == [("a", "timer, 0 wait", 1)]
    assert task.chain.wake_in is None


class Periodic(StatefulProcessor):
    """Has a timer that registers itself again."""

    def init(self, handle: Any) -> None:
        """No state."""
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        """Begin."""
        list(rows)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 100)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 150)
        self.handle.deleteTimer(timerValues.getCurrentProcessingTimeInMs() + 150)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        """Go on."""
        self.handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 100)
        yield Row(k=key[0], what="tick", n=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Nothing is held."""


def test_a_timer_that_registers_itself_again_ends_with_the_data() -> None:
    """While time passes it fires each time, also where time jumps; at the end of the data once more."""
    task = Task(operator(ROWS, Periodic(), time_mode="processingtime"))
    task.push(("a", 1))
    assert [n for *_, n in task.wait(0.35)] == [1_000_100, 1_000_200, 1_000_300]
    assert [n for *_, n in flat(task.chain.end_input(stopped=False))] == [1_000_400]


def test_a_run_that_stops_fires_the_timers_that_have_expired() -> None:
    """As Spark's last batch does, whose rows register times that have passed; what is still to come waits."""
    task = Task(operator(ROWS, Periodic(), time_mode="processingtime"))
    task.push(("a", 1))
    task.clock.advance(0.25)
    assert [n for *_, n in flat(task.chain.end_input(stopped=True))] == [1_000_100, 1_000_200]
    again = Task(operator(ROWS, Periodic(), time_mode="processingtime"), [task.stored()])
    assert [n for *_, n in again.wait(0.35)] == [1_000_300]


class EventTicks(Periodic):
    """The same by the watermark."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        """Begin at the rows' times, and say the watermark."""
        for row in rows:
            self.handle.registerTimer(row.v)
        yield Row(k=key[0], what="watermark", n=timerValues.getCurrentWatermarkInMs())


def test_timers_of_event_time_fire_by_the_watermark() -> None:
    """Each once, those too that a timer registers in front of it; after a restore; at the end all that wait."""
    made = operator(ROWS, EventTicks(), time_mode="eventtime")
    task = Task(made)
    assert task.push(("a", 1000)) == [("a", "watermark", 0)]
    assert task.wait(10_000) == []
    assert [n for *_, n in task.reach(999_999)] == []
    assert [n for *_, n in task.reach(1_250_000)] == [1000, 1100, 1200]
    assert task.push(("b", 5000)) == [("b", "watermark", 1250)]
    again = Task(made, [task.stored()])
    assert again.push(("c", 1250)) == [("c", "watermark", 1250), ("c", "tick", 1250)], "what is over is known"
    assert again.reach(1_000_000) == []
    assert again.push(("d", 9000)) == [("d", "watermark", 1250)], "no watermark goes back"
    assert [n for *_, n in again.reach(1_400_000)] == [1300, 1350, 1400]
    assert flat(again.chain.end_input(stopped=False)) == []
    assert again.reach(MOST) == [("c", "tick", 1450), ("a", "tick", 1500), ("b", "tick", 5000), ("d", "tick", 9000)]


def test_a_timer_of_a_time_that_is_over_fires_with_its_rows() -> None:
    """No later watermark is needed for it, as in PySpark's batch; nor for those that it registers in turn."""
    task = Task(operator(ROWS, EventTicks(), time_mode="eventtime"))
    task.reach(1_250_000)
    assert task.push(("c", 1100)) == [("c", "watermark", 1250), ("c", "tick", 1100), ("c", "tick", 1200)]


class Dying(StatefulProcessor):
    """Counts rows in states that live for a second."""

    def init(self, handle: Any) -> None:
        """Declare one of each kind."""
        self.value = handle.getValueState("value", "n long", 1000)
        self.rows = handle.getListState("rows", "n long", 1000)
        self.map = handle.getMapState("map", "v long", "n long", 1000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Say what is there, and add to it."""
        there = (self.value.get(), list(self.rows.get()), sorted(self.map.keys()))
        exists = (self.value.exists(), self.rows.exists(), self.map.exists())
        for row in rows:
            self.value.update((row.v,))
            self.rows.appendValue((row.v,))
            self.map.updateValue((row.v,), (1,))
        yield Row(k=key[0], what=f"{there} {exists}", n=0)

    def close(self) -> None:
        """Nothing is held."""


def test_states_die() -> None:
    """A value that is set again lives on, elements of a list and entries of a map die one by one."""
    made = operator(ROWS, Dying(), time_mode="processingtime")
    task = Task(made)
    task.push(("a", 1))
    task.clock.advance(0.6)
    assert task.push(("a", 2))[0][1] == "((1,), [(1,)], [(1,)]) (True, True, True)"
    task.clock.advance(0.4)
    assert task.push(("a", 3))[0][1] == "((2,), [(2,)], [(2,)]) (True, True, True)"
    task = Task(made, [task.stored()])  # its clock stands a second before
    task.clock.advance(1.6)
    assert task.push(("a", 4))[0][1] == "((3,), [(3,)], [(3,)]) (True, True, True)"
    task.clock.advance(1.0)
    assert task.push(("a", 5))[0][1] == "(None, [], []) (False, False, False)"


class Initial(Sums):
    """Begins with given sums."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Take one row."""
        self.total.update((initialState.n,))
        self.values.put([(initialState.n,)])
        self.seen.updateValue((initialState.n,), (1,))


def test_an_initial_state_is_given_once_to_the_task_that_has_the_key() -> None:
    """Not after a restore, and to no other task."""
    initial = pa.table({"k": ["a", "b", "c"], "n": [10, 20, 30]})
    made = operator(ROWS, Initial(), time_mode="processingtime", initial=initial)
    tasks = [Task(made, (), (n, 2)) for n in range(2)]
    owners = GroupOwners(GROUPS, 2).of([pa.array(["a", "b", "c"])])
    given = [tasks[at].push((key, 1)) for key, at in zip("abc", owners, strict=True)]
    assert given == [[("a", "rows", 11)], [("b", "rows", 21)], [("c", "rows", 31)]]
    assert sum(task.step._moment.store.keys for task in tasks) == 3
    again = Task(made, [task.stored() for task in tasks])
    assert again.push(("b", 1)) == [("b", "rows", 22)]


class Wrong(StatefulProcessor):
    """Does what its function says."""

    def __init__(self, handles: Any, inits: Any = lambda _: None) -> None:
        self.handles = handles
        self.inits = inits

    def init(self, handle: Any) -> None:
        """As told."""
        self.state = handle.getValueState("it", "n int")
        self.rows = handle.getListState("rows", "n int not null")
        self.handle = handle
        self.inits(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        """As told."""
        return self.handles(self)

    def close(self) -> None:
        """Nothing is held."""


def first_of(values: list[Row]) -> Row:
    """Raises StopIteration where there is none."""
    return next(iter(values))


@pytest.mark.parametrize(
    ("handles", "error", "words"),
    [
        (lambda p: p.state.update(("text",)), SchemaError, r"state 'it': column 'n' is declared int32"),
        (lambda p: p.state.update((1, 2)), SchemaError, r"state 'it' has the columns n, and was given \(1, 2\)"),
        (lambda p: p.rows.put([(None,)]), SchemaError, r"state 'rows': column 'n' is declared NOT NULL"),
        (lambda p: p.handle.registerTimer(1), PlanError, r"timers need a time: say timeMode='ProcessingTime' or"),
        (lambda p: p.handle.getValueState("b", "n int"), PlanError, r"'b' is declared after init\(\)"),
        (lambda _: iter([("a",)]), SchemaError, r"gives an iterator of Row, not of tuple: yield Row\(k=\.\.\., what"),
        (lambda _: map(first_of, [[]]), RuntimeError, r"\(Wrong\) by k: first_of raised StopIteration, which would"),
        (lambda _: iter([Row(k="a", what=1, n=1)]), SchemaError, r"\(Wrong\) by k: column 'what' is declared string"),
    ],
)
def test_mistakes_in_rows_say_what_and_where(handles: Any, error: type[Exception], words: str) -> None:
    """With the state's name and its column."""
    with pytest.raises(error, match=words):
        Task(operator(ROWS, Wrong(handles))).push(("a", 1))


@pytest.mark.parametrize(
    ("inits", "words"),
    [
        (lambda h: h.getValueState("it", "n int"), "the state 'it' is declared twice"),
        (lambda h: h.getListState("x", "n int", 5), "a time to live.*say timeMode='ProcessingTime'"),
        (lambda h: h.getMapState("x", "n array<int>", "n int"), "cannot be grouped by"),
        (lambda h: h.getValueState("x", "n thing"), "thing"),
    ],
)
def test_mistakes_in_declarations_are_refused(inits: Any, words: str) -> None:
    """When the task begins, before any row."""
    with pytest.raises((PlanError, SchemaError), match=words):
        Task(operator(ROWS, Wrong(None, inits)))


def test_state_of_another_processor_is_refused_before_the_query_starts() -> None:
    """By the driver, which asks the processor what it declares."""
    state = Task(operator(ROWS, Sums(), time_mode="processingtime")).stored()
    chain = Chain([("it", operator(ROWS, Wrong(None)).step())])
    with pytest.raises(CheckpointError, match=r"holds the state 'total', and the processor has none of that name"):
        chain.refuse_others("stage 1", [f"it/{name}" for name in state], lambda name: [state[name.partition("/")[2]]])


def test_a_state_may_be_dropped_and_declared_anew() -> None:
    """The first run that says so has none of the former one, and its restarts have its own."""

    def inits(handle: Any) -> None:
        handle.deleteIfExists("it")
        processor_states.append(handle.getValueState("it", "n string"))

    processor_states: list[Any] = []
    first = Task(operator(ROWS, Wrong(lambda p: p.state.update((1,)))))
    first.push(("a", 1))
    found: list[Any] = []

    def handles(_: Any) -> None:
        found.append(processor_states[-1].get())
        processor_states[-1].update(("x",))

    anew = operator(ROWS, Wrong(handles, inits))
    second = Task(anew, [first.stored()])
    second.push(("a", 1))
    Task(anew, [second.stored()]).push(("a", 1))
    assert found == [None, ("x",)]


def test_each_task_has_a_processor_of_its_own() -> None:
    """One's attributes are not the other's, and a processor that can't be copied is refused by name."""
    made = operator(ROWS, Sums(), time_mode="processingtime")
    one, other = Task(made), Task(made)
    assert one.push(("a", 1)) == other.push(("a", 1)) == [("a", "rows", 1)]
    with pytest.raises(PlanError, match=r"transformWithState\(Wrong\).*open what can't be copied in init"):
        Task(operator(ROWS, Wrong(iter([]).__next__, (n for n in ()))))


def test_rows_of_nested_types_and_instants() -> None:
    """States and rows hold what PySpark's do: lists, maps, structs, instants in the session's zone."""

    class Nested(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("s", "a array<int>, s struct<x int, y string>, t timestamp, b boolean")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            before = self.state.get()
            (row,) = rows
            self.state.update(([row.v], {"x": row.v, "y": "z"}, pd.Timestamp("2026-01-01", tz="UTC"), row.v > 1))
            yield Row(k=key[0], what=str(before and (*before[:2], before[2].isoformat(), before[3])), n=row.v)

        def close(self) -> None:
            pass

    task = Task(operator(ROWS, Nested(), timezone="Europe/Berlin"))
    assert task.push(("a", 1)) == [("a", "None", 1)]
    ((_, text, _),) = task.push(("a", 2))
    assert text.startswith("([1], Row(x=1, y='z'), '202")
    assert Task(operator(ROWS, Nested()), [task.stored()]).push(("a", 3))[0][1].startswith("([2], Row(x=2")
