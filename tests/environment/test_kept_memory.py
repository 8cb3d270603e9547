# SPDX-License-Identifier: Apache-2.0
"""The memory that a process keeps mapped between its tasks, with real descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdings import maps_of, open_descriptors
from penstock.attachment.kept_memory import KeptMemory
from penstock.buffer import SegmentMemory
from penstock.link.welcome import Welcome

SIZE = 8192


@pytest.fixture
def memory() -> Iterator[SegmentMemory]:
    """The memory of an environment."""
    with SegmentMemory.create(2, SIZE) as created:
        yield created


def welcome(memory: SegmentMemory, environment: str = "first") -> tuple[Welcome, int]:
    """The welcome of an environment to a task, with a descriptor of its own."""
    return Welcome(environment, "", memory.count, memory.segment_size), os.dup(memory.fd)


def test_the_next_task_gets_the_same_map(memory: SegmentMemory) -> None:
    """The second welcome's descriptor is closed, and what the map shows is the environment's memory."""
    kept = KeptMemory()
    kept.keep()
    first = kept.take(*welcome(memory))
    stale = first.view(0)
    kept.give_back("first", first)
    with pytest.raises(ValueError, match="released"):
        stale[0] = 1
    before = open_descriptors()
    second = kept.take(*welcome(memory))
    assert second is first
    assert open_descriptors() <= before
    memory.view(1)[:3] = b"abc"
    assert bytes(second.view(1, 0, 3)) == b"abc"
    second.close()


def test_nothing_is_kept_unless_that_was_asked_for(memory: SegmentMemory) -> None:
    """A process that is no worker of Spark's unmaps at the end of its task."""
    kept = KeptMemory()
    before = open_descriptors()
    first = kept.take(*welcome(memory))
    kept.give_back("first", first)
    assert first.closed
    assert open_descriptors() <= before


def test_another_environments_memory_takes_the_place(memory: SegmentMemory) -> None:
    """An application whose environment was lost: the old memory goes as soon as the new one is mapped."""
    kept = KeptMemory()
    kept.keep()
    old = kept.take(*welcome(memory))
    kept.give_back("first", old)
    with SegmentMemory.create(1, SIZE) as other:
        new = kept.take(*welcome(other, "second"))
        assert old.closed
        assert new.count == 1
        kept.give_back("second", new)
        assert kept.take(*welcome(other, "second")) is new
        new.close()


def test_two_tasks_at_a_time_have_maps_of_their_own(memory: SegmentMemory) -> None:
    """A map that is lent is not lent twice, and one of the two is kept."""
    kept = KeptMemory()
    kept.keep()
    before = open_descriptors()
    first, second = kept.take(*welcome(memory)), kept.take(*welcome(memory))
    assert first is not second
    kept.give_back("first", first)
    kept.give_back("first", second)
    assert (first.closed, second.closed) == (True, False)
    kept.take(*welcome(memory)).close()
    assert open_descriptors() <= before


def test_memory_that_nobody_asks_for_is_not_mapped(memory: SegmentMemory) -> None:
    """A task whose service has its data elsewhere closes the descriptor, and what was kept stays for the next one."""
    kept = KeptMemory()
    kept.keep()
    first = kept.offer(*welcome(memory)).map()
    kept.give_back("first", first)
    before, maps = open_descriptors(), maps_of(memory.fd)
    offered = kept.offer(*welcome(memory))
    assert maps_of(memory.fd) == maps
    offered.close(is_lost=False)
    assert open_descriptors() <= before
    assert kept.offer(*welcome(memory)).map() is first
    first.close()


def test_another_environments_memory_goes_although_nobody_asks(memory: SegmentMemory) -> None:
    """Memory of a lost environment is not kept by a worker whose services need none."""
    kept = KeptMemory()
    kept.keep()
    old = kept.offer(*welcome(memory))
    mapped = old.map()
    old.close(is_lost=False)
    kept.offer(*welcome(memory, "second")).close(is_lost=False)
    assert mapped.closed


def test_memory_of_a_lost_environment_is_not_kept(memory: SegmentMemory) -> None:
    """It is unmapped at the end of the task that has seen it go."""
    kept = KeptMemory()
    kept.keep()
    offered = kept.offer(*welcome(memory))
    mapped = offered.map()
    offered.close(is_lost=True)
    assert mapped.closed
