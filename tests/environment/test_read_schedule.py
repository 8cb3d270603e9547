# SPDX-License-Identifier: Apache-2.0
"""The read schedule: file order, the bound, and that nobody starves, under random arrivals."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.environment.reading.read_schedule import TURN, ReadSchedule


def granted(schedule: ReadSchedule[str]) -> list[str]:
    """All that is granted now, each given back at once."""
    found = []
    while (reader := schedule.next()) is not None:
        found.append(reader)
        schedule.give_back()
    return found


def test_one_file_is_read_in_order() -> None:
    """In any order of the wishes, the offsets ascend; equal offsets go in the order of asking."""
    schedule: ReadSchedule[str] = ReadSchedule(4)
    for reader, offset in (("c", 30), ("a", 10), ("d", 30), ("b", 20)):
        schedule.want(reader, "f", offset)
    assert granted(schedule) == ["a", "b", "c", "d"]


def test_who_comes_behind_the_scan_waits_for_the_next_which_begins_lowest() -> None:
    """Readers in an adverse order do not turn the scan around; the next one begins at the lowest offset wanted."""
    schedule: ReadSchedule[str] = ReadSchedule(4)
    for reader, offset in (("a", 50), ("z", 90)):
        schedule.want(reader, "f", offset)
    assert schedule.next() == "a"
    for reader, offset in (("late", 40), ("early", 10), ("here", 50), ("ahead", 60)):
        schedule.want(reader, "f", offset)
    assert granted(schedule) == ["ahead", "z", "early", "late", "here"]


def test_no_more_chunks_than_permits() -> None:
    """At the bound nothing is granted until a chunk is given back, and no permit comes from nowhere."""
    schedule: ReadSchedule[str] = ReadSchedule(2)
    for number in range(3):
        schedule.want(str(number), "f", number)
    assert [schedule.next(), schedule.next(), schedule.next()] == ["0", "1", None]
    assert (schedule.held, schedule.waiting) == (2, 1)
    schedule.give_back()
    assert schedule.next() == "2"
    schedule.give_back()
    schedule.give_back()
    with pytest.raises(ValueError, match="nobody held"):
        schedule.give_back()


def test_files_take_turns() -> None:
    """One file is read on for a turn, then the others, whatever their offsets."""
    schedule: ReadSchedule[str] = ReadSchedule(1)
    for number in range(2 * TURN):
        schedule.want(f"f{number}", "f", number)
        schedule.want(f"g{number}", "g", number)
    order = granted(schedule)
    assert "".join(reader[0] for reader in order) == "f" * TURN + "g" * TURN + "f" * TURN + "g" * TURN
    assert schedule.waiting == 0


def test_a_reader_that_has_gone_is_not_granted() -> None:
    """Withdrawing is idempotent, takes no permit, and a reader may wish again."""
    schedule: ReadSchedule[str] = ReadSchedule(1)
    schedule.want("a", "f", 5)
    schedule.want("b", "f", 6)
    for _ in range(2):
        schedule.withdraw("a")
    schedule.want("a", "f", 7)
    with pytest.raises(ValueError, match="two chunks"):
        schedule.want("a", "f", 8)
    assert granted(schedule) == ["b", "a"]


@dataclass
class Watched:
    """The property test's knowledge of one file: where the scan stood, and how often it has begun again."""

    position: int = -1
    scans: int = 0
    wished: dict[int, int] = field(default_factory=dict)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(0, 19), st.sampled_from("fg"), st.integers(0, 15)),
        st.tuples(st.just("next"), st.just(0), st.just(""), st.just(0)),
        st.tuples(st.just("back"), st.just(0), st.just(""), st.just(0)),
        st.tuples(st.just("gone"), st.integers(0, 19), st.just(""), st.just(0)),
    ),
    max_size=300,
)


@settings(max_examples=examples(300), deadline=None)
@given(steps=STEPS, permits=st.integers(1, 5))
def test_random_arrivals_are_served_in_order_within_the_bound_and_none_starves(
    steps: list[tuple[str, int, str, int]], permits: int
) -> None:
    """Offsets of a file only fall where a scan begins; a wish sees at most one beginning; the bound holds."""
    schedule: ReadSchedule[int] = ReadSchedule(permits)
    wishes: dict[int, tuple[str, int]] = {}
    files = {"f": Watched(), "g": Watched()}
    held = 0

    def grant() -> bool:
        nonlocal held
        reader = schedule.next()
        if reader is None:
            assert held == permits or not wishes
            return False
        held += 1
        name, offset = wishes.pop(reader)
        file = files[name]
        begun = file.wished.pop(reader)
        if offset < file.position:
            file.scans += 1
            assert offset == min([offset, *(at for each, at in wishes.values() if each == name)])
        file.position = offset
        assert file.scans - begun <= 1
        return True

    for step, reader, name, offset in steps:
        if step == "want" and reader not in wishes:
            wishes[reader] = (name, offset)
            files[name].wished[reader] = files[name].scans
            schedule.want(reader, name, offset)
        elif step == "next":
            grant()
        elif step == "back" and held:
            schedule.give_back()
            held -= 1
        elif step == "gone" and reader in wishes:
            files[wishes.pop(reader)[0]].wished.pop(reader)
            schedule.withdraw(reader)
        assert schedule.held == held <= permits
        assert schedule.waiting == len(wishes)
    for _ in range(held):
        schedule.give_back()
    held = 0
    while grant():
        schedule.give_back()
        held -= 1
    assert not wishes, "somebody starved"
