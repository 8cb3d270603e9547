# SPDX-License-Identifier: Apache-2.0
"""Numbers that are given, used and given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.link.numbers import Numbered


@given(steps=st.lists(st.integers(-8, 2), max_size=200))
def test_no_number_is_given_twice_while_it_is_in_use(steps: list[int]) -> None:
    """Eleven numbers, given out and back in any order, around their end and again."""
    numbered: Numbered[object] = Numbered(limit=12)
    mine: dict[int, object] = {}
    for step in steps:
        if step < 0 and mine:
            number = sorted(mine)[step % len(mine)]
            numbered.remove(number)
            del mine[number]
            assert numbered.get(number) is None
        elif len(mine) < 11:
            thing = object()
            number = numbered.add(thing)
            assert 0 < number < 12
            assert number not in mine
            mine[number] = thing
        assert {number: numbered.get(number) for number in mine} == mine


def test_all_in_use() -> None:
    """The next one is refused; when one was given back there is one."""
    numbered: Numbered[str] = Numbered(limit=4)
    assert [numbered.add(name) for name in "abc"] == [1, 2, 3]
    with pytest.raises(ProtocolError, match="all 3 numbers"):
        numbered.add("d")
    numbered.remove(2)
    assert numbered.add("d") == 2


def test_what_was_never_given_is_no_number() -> None:
    """One that was given back is: somebody may still use it without knowing."""
    numbered: Numbered[str] = Numbered()
    number = numbered.add("a")
    numbered.remove(number)
    assert numbered.get(number) is None
    for wrong in (0, number + 1):
        with pytest.raises(ProtocolError, match=f"number {wrong} is used"):
            numbered.get(wrong)
