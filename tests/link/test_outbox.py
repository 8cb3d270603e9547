# SPDX-License-Identifier: Apache-2.0
"""The words of one side to the other: each counts once and in order, even if some are lost on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.link.outbox import Inbox, Outbox


@given(st.lists(st.sampled_from(["put", "send", "question lost", "answer lost"]), max_size=60))
def test_each_report_counts_once_and_in_order(steps: list[str]) -> None:
    """One after the other, each until it is taken, over a line that loses questions and answers."""
    outbox, inbox = Outbox[int](), Inbox()
    heard: list[int] = []
    put = 0
    for step in [*steps, *["send"] * 60]:
        first = outbox.first
        if step == "put":
            outbox.put(put)
            put += 1
        elif first is not None and step != "question lost":
            number, thing = first
            if inbox.take(number):
                heard.append(thing)
            if step != "answer lost":
                outbox.taken(number)
    assert heard == list(range(put))
    assert len(outbox) == 0
    assert outbox.first is None


def test_who_sends_is_woken_when_there_is_something() -> None:
    """With each thing that is put, and with nothing else."""
    outbox = Outbox[str]()
    wakes: list[int] = []
    outbox.wake = lambda: wakes.append(len(outbox))
    outbox.put("a")
    outbox.put("b")
    assert wakes == [1, 2]
    outbox.taken(2)
    outbox.put("c")
    assert wakes == [1, 2, 1]


def test_a_stream_begins_behind_what_was_taken() -> None:
    """It reads on without taking, and never what was taken; what is still to come can't be asked for."""
    outbox = Outbox[str]()
    for thing in "abcd":
        outbox.put(thing)
    outbox.taken(1)
    outbox.taken(0)
    assert [outbox.after(number) for number in range(5)] == [(2, "b"), (2, "b"), (3, "c"), (4, "d"), None]
    assert len(outbox) == 3
    with pytest.raises(ProtocolError, match="number 5 is asked for, but 4 is the last"):
        outbox.after(5)
    with pytest.raises(ProtocolError, match="number 5 is taken, but 4 is the last"):
        outbox.taken(5)
