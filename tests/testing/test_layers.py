# SPDX-License-Identifier: Apache-2.0
"""The order of a run: where each of its processes begins to collect, and which files come first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layers import TESTS, each_another_first, in_order, next_scope


def test_each_process_collects_all_rooms_and_begins_with_another_one() -> None:
    """Four processes have the same rooms, all that have tests, in another order."""
    orders = [each_another_first([str(TESTS)], process, 4) for process in range(4)]
    rooms = {str(room) for room in TESTS.iterdir() if any(room.rglob("test_*.py"))}
    assert all(set(order) == rooms and len(order) == len(rooms) for order in orders)
    assert len({order[0] for order in orders}) == 4


def test_arguments_that_are_no_rooms_stay_as_they_are() -> None:
    """A file, a test and a room are not divided, and a test's name may have slashes."""
    room = str(Path(TESTS, "record"))
    given = [room, "tests/api/test_uids.py", "tests/api/test_uids.py::test_it[a//b]"]
    assert each_another_first(given, 0, 4) == given


def test_the_last_two_layers_take_turns_behind_the_cheap_ones() -> None:
    """Tests of a file stay together; its layer's files are spread over those of the other, long ones first."""

    class Item(SimpleNamespace):
        """Has a place in a dictionary, as pytest's have."""

        __hash__ = object.__hash__

    def item(file: str, *marks: str) -> Any:
        return Item(nodeid=f"{file}::test", iter_markers=lambda: [SimpleNamespace(name=mark) for mark in marks])

    items = [
        *(item(f"tests/processes/test_{name}.py", "processes") for name in "abcd"),
        item("tests/spark/test_a.py", "spark"),
        item("tests/spark/test_kills.py", "spark"),
        item("tests/spark/test_sample.py", "spark", "sample"),
        item("tests/web/test_pure.py"),
    ]
    in_order(items)
    names = [each.nodeid.removesuffix(".py::test").rpartition("/")[2].removeprefix("test_") for each in items]
    assert names == ["pure", "sample", "a", "kills", "b", "c", "a", "d"]


@pytest.mark.parametrize(
    ("scopes", "with_spark", "without"),
    [
        ("web/a spark/b processes/c", "web/a", "web/a"),
        ("spark/b processes/c", "spark/b", "processes/c"),
        ("processes/c spark/b", "spark/b", "processes/c"),
        ("processes/c processes/d", "processes/c", "processes/c"),
        ("spark/b spark/cluster", "spark/b", None),
    ],
)
def test_half_of_the_processes_start_no_java(scopes: str, with_spark: str, without: str | None) -> None:
    """The cheap files come first for all; then each takes its own kind, and who has a Java the other one too."""
    found = [next_scope([f"tests/{name}" for name in scopes.split()], takes_spark=takes) for takes in (True, False)]
    assert found == [f"tests/{with_spark}", without and f"tests/{without}"]
