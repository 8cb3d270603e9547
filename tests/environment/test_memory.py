# SPDX-License-Identifier: Apache-2.0
"""The shares of an environment's memory, and the cost of one holder's fault for the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock.buffer import SegmentMemory
from penstock.environment.memory import AHEAD_SHARE, LEASE_SHARE, HostMemory, MemoryArbiter

SEGMENTS = 32


class Books:
    """A host's memory, and how often it wanted the end of a turn."""

    def __init__(self, segments: SegmentMemory) -> None:
        self.wakes = 0
        self.memory = HostMemory.of(segments)
        self.arbiter = MemoryArbiter(self.memory, self._wake)

    def _wake(self) -> None:
        self.wakes += 1


@pytest.fixture
def books() -> Iterator[Books]:
    """Memory of 32 small segments."""
    with SegmentMemory.create(SEGMENTS, 4096) as segments:
        yield Books(segments)


@dataclass(eq=False)
class Holder:
    """A partition that holds segments, or can't say how many."""

    held: int = 0
    excess: int = 0
    asked: int = 0
    error: Exception | None = None
    is_broken: bool = False

    def relieve(self, segments: int) -> None:
        """Note what it is asked for."""
        if self.is_broken:
            raise ValueError("broken")
        self.asked += segments

    def give_up(self, error: Exception) -> None:
        """Note it."""
        self.error = error


@dataclass(eq=False)
class Writer:
    """A writer that waits for a segment, or has a fault."""

    relieved: int = 0
    error: Exception | None = None
    is_broken: bool = False

    def relieve(self) -> None:
        """Note it."""
        if self.is_broken:
            raise ValueError("broken")
        self.relieved += 1

    def give_up(self, error: Exception) -> None:
        """Note it."""
        self.error = error


def spend(memory: HostMemory, free: int) -> None:
    """Leave so many segments free."""
    pool = memory.pool.create_local_pool(SEGMENTS - free, SEGMENTS - free, owner="the test")
    while pool.request() is not None:
        pass
    assert memory.pool.free == free


def test_all_readers_together_are_leased_half(books: Books) -> None:
    """And what comes back may be leased again; only who waits is worth a turn."""
    arbiter = books.arbiter
    pool = books.memory.pool.create_local_pool(1, SEGMENTS, owner="the test")
    segment = pool.request()
    assert segment is not None
    books.memory.references.receive(segment, pool)
    for _ in range(SEGMENTS // LEASE_SHARE):
        assert arbiter.may_lease
        arbiter.lease(segment)
    assert not arbiter.may_lease
    arbiter.returned()
    assert arbiter.may_lease
    assert books.wakes == 0
    arbiter.wait(Writer())
    arbiter.returned()
    assert books.wakes == 2


def test_what_is_granted_ahead_is_bounded_for_all_together(books: Books) -> None:
    """The first takes most of it, the second the rest, until the first gives it back."""
    arbiter = books.arbiter
    most = SEGMENTS // AHEAD_SHARE
    assert arbiter.ahead.grant(most - 1) == most - 1
    assert arbiter.ahead.grant(most) == 1
    assert arbiter.ahead.grant(1) == 0
    assert arbiter.ahead.grant(-1) == 0
    arbiter.ahead.take_back(most - 1)
    assert arbiter.ahead.grant(most) == most - 1


def test_holders_are_asked_when_little_is_free_and_no_more_than_is_needed(books: Books) -> None:
    """Those beyond their share, and no holder that has left."""
    arbiter = books.arbiter
    large, small, left = Holder(held=9, excess=9), Holder(held=2, excess=0), Holder(held=3, excess=3)
    for holder in (large, small, left):
        arbiter.hold(holder)
    assert arbiter.held == 14
    arbiter.drop(left)
    arbiter.relieve()
    assert (large.asked, small.asked, left.asked) == (0, 0, 0)
    spend(books.memory, 0)
    arbiter.relieve()
    assert (large.asked, small.asked, left.asked) == (2, 0, 0)


def test_a_fault_of_one_costs_the_others_nothing(books: Books) -> None:
    """Of three writers and three holders the second has a fault: it is given up, and never asked again."""
    arbiter = books.arbiter
    writers = [Writer(), Writer(is_broken=True), Writer()]
    holders = [Holder(excess=1), Holder(excess=1, is_broken=True), Holder(excess=1)]
    for writer in writers:
        arbiter.wait(writer)
    for holder in holders:
        arbiter.hold(holder)
    spend(books.memory, 0)
    arbiter.relieve()
    arbiter.relieve()
    assert [writer.relieved for writer in writers] == [2, 0, 2]
    assert [holder.asked for holder in holders] == [2, 0, 2]
    assert [bool(each.error) for each in (*writers, *holders)] == [False, True, False] * 2
    assert not arbiter.is_waiting(writers[1])
