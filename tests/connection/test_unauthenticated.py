# SPDX-License-Identifier: Apache-2.0
"""Connections that have proved nothing: few, few of one source, and for a new one the first of too many goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.connection.unauthenticated import Unauthenticated


def test_the_source_with_most_gives_way() -> None:
    """Its first one goes when the door is full, whoever comes; one that has left counts no more."""
    strangers = Unauthenticated[int](most=4, most_of_one=3)
    assert [strangers.enter(number, "a") for number in (1, 2, 3)] == [None, None, None]
    assert strangers.enter(4, "a") == 1
    assert strangers.enter(5, "b") is None
    assert strangers.enter(6, "c") == 2
    strangers.leave(3)
    strangers.leave(3)
    assert strangers.enter(7, "b") is None
    assert len(strangers) == 4


@given(st.lists(st.tuples(st.sampled_from("aaaab"), st.booleans()), max_size=60))
def test_never_too_many(steps: list[tuple[str, bool]]) -> None:
    """In any order of coming and leaving; who goes for another one is not known any more."""
    strangers = Unauthenticated[int](most=6, most_of_one=4)
    known: dict[int, str] = {}
    for number, (source, leaves) in enumerate(steps):
        gone = strangers.enter(number, source)
        known[number] = source
        if gone is not None:
            del known[gone]
        if leaves:
            first = next(iter(known))
            strangers.leave(first)
            del known[first]
        assert len(strangers) == len(known) <= 6
        assert max(Counter(known.values()).values(), default=0) <= 4
