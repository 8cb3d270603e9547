# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: DTZ001 - times without a zone are what states give
"""Values out of states of PySpark's processors: the types that PySpark 4.3 gives, in each call the same ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from penstock.stream.state.operator import FRAMES, ROWS
from processor_task import Task, operator

NEW_YORK = ZoneInfo("America/New_York")
FOUR = datetime(2024, 7, 1, 16, 0, 0, 5, tzinfo=UTC)
NOON = datetime(2024, 7, 1, 12, 0, 0, 5)
TWICE = datetime(2024, 11, 3, 5, 30, tzinfo=UTC), datetime(2024, 11, 3, 6, 30, tzinfo=UTC)
"""Instants of one local time in New York."""
NAN = float("nan")


@pytest.fixture(autouse=True)
def _in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process is there."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Calls(StatefulProcessor):
    """Does what a row's number says, with states of one type."""

    def __init__(self, kind: str, calls: list[Any]) -> None:
        self.kind = kind
        self.calls = calls

    def __deepcopy__(self, memo: Any) -> Calls:
        return self

    def init(self, handle: Any) -> None:
        """A state of each kind."""
        self.value = handle.getValueState("value", f"x {self.kind}")
        self.rows = handle.getListState("rows", f"x {self.kind}")
        self.map = handle.getMapState("map", "n int", f"x {self.kind}")
        self.keyed = handle.getMapState("keyed", f"x {self.kind}", "n int") if self.may_be_key else None

    @property
    def may_be_key(self) -> bool:
        """True where a map finds its values by such a type."""
        return not self.kind.startswith(("array", "map", "struct"))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """One call for each batch."""
        list(rows)
        self.calls.pop(0)(self)
        return iter([])

    def close(self) -> None:
        """Nothing is held."""


def called(kind: str, *calls: Any, form: str = ROWS) -> None:
    """Make these calls, one a batch."""
    left = list(calls)
    task = Task(operator(form, Calls(kind, left)))
    for _ in calls:
        task.push(("a", 1))
    assert not left


def same(found: Any, wanted: Any) -> bool:
    """True for equal values of one class, in all their parts; a row is one whatever its class is called."""
    if isinstance(wanted, Row):
        fields = isinstance(found, Row) and list(found.__fields__) == list(wanted.__fields__)
        return fields and all(map(same, found, wanted))
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], value) for key, value in wanted.items())
    return bool(found == wanted or (found != found and wanted != wanted)) and str(found) == str(wanted)


VALUES = [
    ("timestamp", FOUR, NOON),
    ("timestamp", FOUR.astimezone(NEW_YORK), NOON),
    ("timestamp", NOON, NOON),
    ("timestamp", pd.Timestamp(FOUR), NOON),
    ("timestamp", pd.Timestamp(NOON), NOON),
    (
        "timestamp",
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1969, 12, 31, 18, 59, 59, 999_999),
    ),
    ("timestamp_ntz", NOON, NOON),
    ("date", date(2024, 7, 1), date(2024, 7, 1)),
    ("date", NOON, date(2024, 7, 1)),
    ("decimal(10,2)", Decimal("1.1"), Decimal("1.10")),
    ("struct<a:int,b:string>", Row(a=1, b="x"), Row(a=1, b="x")),
    ("struct<a:int,b:string>", {"b": "x", "a": 1}, Row(a=1, b="x")),
    ("struct<a:int,b:string>", (1, None), Row(a=1, b=None)),
    ("struct<t:timestamp,m:map<string,int>>", (FOUR, {"a": 1}), Row(t=NOON, m={"a": 1})),
    ("array<int>", [1, None], [1, None]),
    ("array<int>", (1, 2), [1, 2]),
    ("array<timestamp>", [FOUR, None], [NOON, None]),
    ("array<struct<a:int>>", [(1,), {"a": 2}], [Row(a=1), Row(a=2)]),
    ("map<string,int>", {"a": 1, "b": None}, {"a": 1, "b": None}),
    ("map<string,int>", [("a", 1)], {"a": 1}),
    ("map<string,timestamp>", {"a": FOUR}, {"a": NOON}),
    ("binary", bytearray(b"ab"), b"ab"),
    ("boolean", True, True),
    ("float", 0.1, float(np.float32(0.1))),
    ("double", NAN, NAN),
    ("int", 3, 3),
    ("string", "txt", "txt"),
    ("int", None, None),
    ("struct<a:int>", None, None),
]


@pytest.mark.parametrize(("kind", "given", "wanted"), VALUES, ids=[f"{kind}: {given}" for kind, given, _ in VALUES])
def test_a_value_is_the_same_in_each_call(kind: str, given: Any, wanted: Any) -> None:
    """In the call that puts it and in later ones; values of maps are rows with their names."""

    def put(p: Calls) -> None:
        p.value.update((given,))
        p.rows.appendValue((given,))
        p.map.updateValue((1,), (given,))
        look(p)

    def look(p: Calls) -> None:
        assert same(p.value.get(), (wanted,))
        assert same(list(p.rows.get()), [(wanted,)])
        assert same(p.map.getValue((1,)), Row(x=wanted))
        assert same(list(p.map.iterator()), [((1,), (wanted,))])
        assert same(list(p.map.values()), [(wanted,)])

    called(kind, put, look, look)


KEYS = [
    ("double", NAN, float("nan")),
    ("double", -0.0, 0.0),
    ("double", 1, 1.0),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", NAN, float("nan")),
    ("timestamp", NOON, FOUR),
    ("timestamp", pd.Timestamp(FOUR), NOON),
    ("date", NOON, date(2024, 7, 1)),
    ("binary", bytearray(b"ab"), b"ab"),
    ("decimal(10,2)", Decimal("1.1"), Decimal("1.10")),
]


@pytest.mark.parametrize(("kind", "put", "other"), KEYS, ids=[f"{kind}: {given}" for kind, given, _ in KEYS])
def test_a_key_of_a_map_is_found_again(kind: str, put: Any, other: Any) -> None:
    """By itself and by what is equal to it for the state, in the call that puts it and later; then it is removed."""

    def begin(p: Calls) -> None:
        p.keyed.updateValue((put,), (1,))
        look(p)

    def look(p: Calls) -> None:
        for key in (put, other):
            assert p.keyed.containsKey((key,))
            assert p.keyed.getValue((key,)).n == 1
        assert len(list(p.keyed.keys())) == 1

    def again(p: Calls) -> None:
        p.keyed.updateValue((other,), (1,))
        look(p)
        p.keyed.removeKey((put,))
        assert not p.keyed.exists()

    called(kind, begin, look, again, lambda p: pytest.fail("is there") if p.keyed.exists() else None)


def test_two_instants_of_one_local_time_are_two_keys() -> None:
    """In the hour that comes twice no entry is lost; the local times tell them apart by their fold."""

    def put(p: Calls) -> None:
        for n, instant in enumerate(TWICE):
            p.keyed.updateValue((instant,), (n,))
        look(p)

    def look(p: Calls) -> None:
        assert [p.keyed.getValue((instant,)).n for instant in TWICE] == [0, 1]
        found = sorted((n, key.fold) for (key,), (n,) in p.keyed.iterator())
        assert found == [(0, 0), (1, 1)]
        for n, fold in found:
            assert p.keyed.getValue((datetime(2024, 11, 3, 1, 30, fold=fold),)).n == n

    called("timestamp", put, look)


def test_what_a_processor_was_given_is_its_own() -> None:
    """Changing a list or a dictionary that a state gave changes no state, as in PySpark."""

    def put(p: Calls) -> None:
        p.value.update(({"a": [1]},))
        look(p)

    def look(p: Calls) -> None:
        p.rows.put([({"a": [1]},)])
        for found in (p.value.get()[0], next(p.rows.get())[0]):
            found["a"].append(2)
            found["b"] = [3]
        assert p.value.get()[0] == next(p.rows.get())[0] == {"a": [1]}

    called("map<string,array<int>>", put, look, look)


def test_states_of_frames_give_the_same() -> None:
    """A processor over frames has the same states."""

    def put(p: Calls) -> None:
        p.value.update(((FOUR, {"a": 1}),))
        look(p)

    def look(p: Calls) -> None:
        assert same(p.value.get(), (Row(t=NOON, m={"a": 1}),))

    called("struct<t:timestamp,m:map<string,int>>", put, look, form=FRAMES)
