# SPDX-License-Identifier: Apache-2.0
"""Reports to the JobMaster: whatever is lost on the way, each counts once and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.environment.outbox import Outbox
from penstock.link.master import TaskLost
from penstock.shuffle import AttemptId


def report(number: int) -> TaskLost:
    """A report that can be told from others."""
    return TaskLost(AttemptId("job", 0, number, number), "gone")


@given(st.lists(st.sampled_from(["put", "send", "question lost", "answer lost"]), max_size=60))
def test_each_report_counts_once_and_in_order(steps: list[str]) -> None:
    """A receiver that drops what it has had, and a line that loses questions and answers."""
    outbox = Outbox()
    heard: list[int] = []
    last = put = 0
    for step in [*steps, *["send"] * 60]:
        first = outbox.first
        if step == "put":
            outbox.put(report(put))
            put += 1
        elif first is not None and step != "question lost":
            if first.number > last:
                last = first.number
                heard.append(first.attempt.subtask if isinstance(first, TaskLost) else -1)
            if step != "answer lost":
                outbox.taken(first.number)
    assert heard == list(range(put))
    assert len(outbox) == 0
    assert outbox.first is None


def test_who_sends_is_woken_when_there_is_something() -> None:
    """Once, until nothing is left."""
    outbox = Outbox()
    wakes: list[int] = []
    outbox.wake = lambda: wakes.append(len(outbox))
    outbox.put(report(1))
    outbox.put(report(2))
    assert wakes == [1]
    outbox.taken(2)
    outbox.put(report(3))
    assert wakes == [1, 1]
