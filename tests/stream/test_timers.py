# SPDX-License-Identifier: Apache-2.0
"""Timers of processors: each fires once, in its turn, however many one watermark makes due."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from penstock import BatchProcessor
from penstock.stream.state import store as store_module
from penstock.stream.state.calls import BatchCalls
from penstock.stream.state.operator import BATCHES, ROWS
from penstock.stream.state.row_calls import KeyByKeyCalls
from penstock.stream.watermark import MOST
from processor_task import OUTPUT, Task, operator

Deeds = dict[int, list[tuple[str, int]]]
"""The deeds of the call of a timer, by its time: timers that it registers or deletes."""
Fired = list[tuple[str, str, int]]
"""Of timers their keys, the times that are listed in their calls, and their times."""


class Rows(StatefulProcessor):
    """Does with timers as it is told, the first time that each fires."""

    def __init__(self, deeds: Deeds) -> None:
        self.deeds = deeds
        self.done: set[tuple[str, int]] = set()

    def init(self, handle: Any) -> None:
        """No state."""
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Register a timer for each row."""
        for row in rows:
            self.handle.registerTimer(row.v)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Say what waits, and do the deeds."""
        time = expiredTimerInfo.getExpiryTimeInMs()
        listed = str(list(self.handle.listTimers()))
        for verb, other in self.deeds.get(time, []) if (key[0], time) not in self.done else []:
            getattr(self.handle, f"{verb}Timer")(other)
        self.done.add((key[0], time))
        yield Row(k=key[0], what=listed, n=time)

    def close(self) -> None:
        """Nothing is held."""


class Batches(BatchProcessor):
    """The same for whole batches."""

    def __init__(self, deeds: Deeds) -> None:
        self.deeds = deeds
        self.done: set[tuple[str, int]] = set()

    def init(self, handle: Any) -> None:
        """No state."""
        self.handle = handle

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> None:
        """Register a timer for each row."""
        self.handle.registerTimers(keys, keys.groups, rows["v"])

    def handleExpiredTimers(self, keys: Any, expiryTimesInMs: pa.Array, timerValues: Any) -> pa.RecordBatch:
        """Say what waits, and do the deeds."""
        names = keys.table["k"].take(pa.array(keys.groups)).to_pylist()
        listed = self.handle.listTimers(keys)
        waiting: dict[int, list[int]] = {}
        for at, time in zip(listed.groups.tolist(), listed.rows["expiryTimeInMs"].to_pylist(), strict=True):
            waiting.setdefault(at, []).append(time)
        rows = []
        for at, name, time in zip(keys.groups.tolist(), names, expiryTimesInMs.to_pylist(), strict=True):
            for verb, other in self.deeds.get(time, []) if (name, time) not in self.done else []:
                getattr(self.handle, f"{verb}Timers")(keys, [at], [other])
            self.done.add((name, time))
            rows.append({"k": name, "what": str(waiting.get(at, [])), "n": time})
        return pa.RecordBatch.from_pylist(rows, OUTPUT)


FORMS: dict[str, Any] = {ROWS: Rows, BATCHES: Batches}


def expected(deeds: Deeds, registered: list[int], now: int, *, is_end: bool = False) -> list[tuple[str, int]]:
    """The timers of one key up to a time, one after the other: those that are listed, and the time of each."""
    waiting, later, done, fired = set(registered), set(), set(), []
    while due := [time for time in waiting if time <= now]:
        time = min(due)
        waiting.remove(time)
        fired.append((str(sorted(waiting | later)), time))
        for verb, other in deeds.get(time, []) if time not in done else []:
            if verb == "delete":
                waiting.discard(other)
                later.discard(other)
            elif other not in (time, *waiting):  # its own time again is nothing
                (later if is_end else waiting).add(other)
        done.add(time)
    return fired


def fired_by(form: str, deeds: Deeds, registered: dict[str, list[int]], watermarks: list[int]) -> Fired:
    """The timers that fire when the watermark reaches one time after the other, in milliseconds."""
    task = Task(operator(form, FORMS[form](deeds), time_mode="eventtime"))
    task.push(*[(key, time) for key, times in registered.items() for time in times])
    return [row for now in watermarks for row in task.reach(now if now == MOST else now * 1000)]


CASES: dict[str, tuple[Deeds, list[int]]] = {
    "one that is due is registered again": ({10: [("register", 20)]}, [10, 20]),
    "one that is due is deleted": ({10: [("delete", 20)]}, [10, 20, 30]),
    "one is deleted and is there again": ({10: [("delete", 20), ("register", 20)]}, [10, 20, 30]),
    "its own time": ({10: [("register", 10)]}, [10, 20]),
    "one between two that are due": ({10: [("register", 15)]}, [10, 20]),
    "one in the past": ({20: [("register", 5)], 5: [("register", 20)]}, [10, 20, 30]),
    "one that has fired": ({20: [("register", 10)], 10: [("register", 40)]}, [10, 20, 30]),
    "one after the watermark": ({10: [("register", 2000), ("delete", 30)], 20: [("register", 30)]}, [10, 20, 30]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_timers_that_are_due_together_fire_one_after_the_other(form: str, case: str) -> None:
    """One watermark gives what many give: each call sees, and may delete, those that have not fired."""
    deeds, registered = CASES[case]
    wanted = [("a", *each) for each in expected(deeds, registered, 1000)]
    for watermarks in ([1000], [10, 1000], list(range(0, 1001, 5))):
        assert fired_by(form, deeds, {"a": registered}, watermarks) == wanted, watermarks


@pytest.mark.parametrize("form", FORMS)
def test_random_deeds_of_many_keys(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some keys' timers, few of which fire at once, by watermarks and at the end of the data: as the model says."""
    monkeypatch.setattr(KeyByKeyCalls, "most_timers", 5)
    monkeypatch.setattr(BatchCalls, "most_timers", 5)
    chance = random.Random(7)
    for _ in range(60):
        deeds = {
            time: [(chance.choice(("register", "delete")), chance.randrange(0, 40, 2)) for _ in range(2)]
            for time in chance.sample(range(0, 40, 2), 6)
        }
        registered = {key: chance.sample(range(0, 40, 2), chance.randint(1, 8)) for key in "abcd"}
        is_end = chance.random() < 0.3
        found = fired_by(form, deeds, registered, [MOST] if is_end else chance.choice(([100], [7, 23, 100])))
        for key, times in registered.items():
            wanted = [(key, *each) for each in expected(deeds, times, 100, is_end=is_end)]
            assert [row for row in found if row[0] == key] == wanted


class InBulk(BatchProcessor):
    """Keeps each key's number until its timer fires, and says how many."""

    def init(self, handle: Any) -> None:
        """Declare the number."""
        self.handle = handle
        self.number = handle.getValueState("number", "n long")

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> None:
        """Keep it."""
        self.number.put(keys, {"n": rows["v"]})
        self.handle.registerTimers(keys, keys.groups, rows["v"])

    def handleExpiredTimers(self, keys: Any, expiryTimesInMs: pa.Array, timerValues: Any) -> pa.RecordBatch:
        """Give it and forget it."""
        at = pa.array(keys.groups)
        number = self.number.get(keys)["n"].take(at)
        what = pa.array([str(time) for time in expiryTimesInMs.to_pylist()])
        given = pa.RecordBatch.from_arrays([keys.table["k"].take(at), what, number], schema=OUTPUT)
        self.number.clear(keys)
        return given


def test_the_store_tidies_itself_while_very_many_timers_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fires once and finds the state of its key, while slots and timers get other numbers in between."""
    monkeypatch.setattr(store_module, "SPARE", 10)
    monkeypatch.setattr(BatchCalls, "most_timers", 300)
    task = Task(operator(BATCHES, InBulk(), time_mode="eventtime"))
    task.push(*[(f"k{n}", n + 1) for n in range(3000)])
    fired = task.reach(2_990_000) + task.reach(MOST)
    assert Counter(fired) == Counter((f"k{n}", str(n + 1), n + 1) for n in range(3000))
    assert task.step._moment.store.keys < 1000


def test_a_timer_that_is_put_off_again_and_again_takes_one_place() -> None:
    """Deleting and registering one holds no more due times, and it still fires once."""
    deeds: Deeds = {}
    task = Task(operator(BATCHES, Batches(deeds), time_mode="eventtime"))
    timers = task.step._moment.store.timers
    task.push(("a", 50))
    slots = task.step._moment.store.slots([pa.array(["a"])], 1)
    for _ in range(100):
        timers.delete(slots, pa.array([50]).to_numpy())
        timers.register(slots, pa.array([50]).to_numpy())
    assert len(timers._due) == 1
    assert task.reach(1_000_000) == [("a", "[]", 50)]


def test_the_last_timers_see_that_all_times_have_passed() -> None:
    """No call has a watermark before the time of its own timer."""

    class Watermarks(Rows):
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            yield Row(
                k=key[0], what=str(timerValues.getCurrentWatermarkInMs()), n=expiredTimerInfo.getExpiryTimeInMs()
            )

    task = Task(operator(ROWS, Watermarks({}), time_mode="eventtime"))
    task.push(("a", 10), ("a", 5000))
    assert task.reach(1_000_000) == [("a", "1000", 10)]
    assert task.reach(MOST) == [("a", str(MOST // 1000), 5000)]
