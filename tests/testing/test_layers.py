# SPDX-License-Identifier: Apache-2.0
"""Each process of a run collects all tests, and begins to collect them elsewhere."""

from __future__ import annotations

from pathlib import Path

from layers import TESTS, each_another_first


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
