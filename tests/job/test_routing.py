# SPDX-License-Identifier: Apache-2.0
"""Every event and decision has a part that takes it, and every instruction somebody who carries it out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import Deadline, DeadlineKind
from penstock.job.core.routing import JobParts, follow, hear, pass_deadline
from penstock.job.shell.driver import JobDriver
from penstock.job.shell.queries import Queries

PARTS = [field.name for field in dataclasses.fields(JobParts)]


class Noted:
    """Takes everything, and notes it under the name of a part."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._noted = name
        self._noted_calls = calls

    def __getattr__(self, _: str) -> Noted:
        return self

    def __getitem__(self, _: object) -> Noted:
        return self

    def __contains__(self, _: object) -> bool:
        return True

    def __call__(self, *_: object) -> Iterator[so.Decision]:
        """Note that the part was called; nothing follows."""
        self._noted_calls.append(self._noted)
        return iter(())


def blank(kind: type[Any]) -> Any:
    """A value of this class with nothing in it."""
    return kind(*(None for _ in dataclasses.fields(kind)))


def taken(work: Any, cause: object) -> list[str]:
    """The parts that hear of it."""
    calls: list[str] = []
    list(work(JobParts(*(Noted(name, calls) for name in PARTS)), cause))  # type: ignore[arg-type]
    return calls


@pytest.mark.parametrize(
    ("group", "part"),
    [
        (so.ForAttempts, "attempts"),
        (so.ForSlots, "slots"),
        (so.ForRecovery, "recovery"),
        (so.ForCheckpoints, "checkpoints"),
        (so.ForEnding, "ending"),
        (so.ForAccounts, "accounts"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_decision_goes_to_the_part_that_it_is_for(group: Any, part: str) -> None:
    """To that one alone."""
    for kind in get_args(group):
        assert taken(follow, blank(kind)) == [part], kind


def test_a_decision_is_for_one_part_or_leaves() -> None:
    """No class stands in two groups; others are events again, an instruction, or for the loop: counts, the end."""
    groups = (so.ForAttempts, so.ForSlots, so.ForRecovery, so.ForCheckpoints, so.ForEnding, so.ForAccounts)
    kinds = [kind for group in groups for kind in get_args(group)]
    assert len(set(kinds)) == len(kinds)
    assert set(get_args(so.ForParts)) == set(kinds)
    others = {so.Conclude, so.NoteCounts, events.TaskRegistered, events.CancelRequested, *get_args(do.Instruction)}
    assert set(get_args(so.Decision)) - set(kinds) == others


@pytest.mark.parametrize("kind", get_args(events.ForParts), ids=lambda kind: kind.__name__)
def test_a_part_hears_of_each_event(kind: type[Any]) -> None:
    """Of a wish to stop two of them do: checkpoints, and what waits for a restart."""
    expected = 2 if kind is events.StopAsked else 1
    assert len(taken(hear, blank(kind))) == expected


def test_a_part_hears_of_each_deadline() -> None:
    """Of all kinds."""
    for kind in DeadlineKind:
        assert len(taken(pass_deadline, Deadline(kind))) == 1


@pytest.mark.parametrize("kind", get_args(do.Instruction), ids=lambda kind: kind.__name__)
def test_each_instruction_is_carried_out(kind: type[Any]) -> None:
    """By the driver, or by those who keep the checkpoints of queries."""
    calls: list[str] = []
    driver: Any = Noted("driver", calls)
    JobDriver._carry_out(driver, blank(kind))
    if kind in get_args(do.ForQuery):
        assert calls == ["driver"]
        Queries.carry_out(driver, blank(kind))
