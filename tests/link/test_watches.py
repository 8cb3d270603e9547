# SPDX-License-Identifier: Apache-2.0
"""The poll of a task's wait: descriptors end it, be it short or long, and whatever their numbers are."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from penstock.attachment.watches import Watches

HIGH = 1500
"""More than `select` can be asked about."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("seconds", [0.0, 0.003, 5.0], ids=["none", "short", "long"])
@pytest.mark.parametrize("is_high", [False, True], ids=["low number", "high number"])
def test_what_can_be_read_ends_the_wait(pipe: tuple[int, int], seconds: float, is_high: bool) -> None:
    """However long the wait may be; who watches is called, and one who is not watched any more is not."""
    if is_high and resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= HIGH:
        pytest.skip(f"descriptors end below {HIGH} here")
    reading = fcntl.fcntl(pipe[0], fcntl.F_DUPFD, HIGH if is_high else 0)
    watches = Watches()
    arrived: list[bytes] = []
    try:
        watches.watch(reading, lambda: arrived.append(os.read(reading, 8)))
        assert not watches.poll(min(seconds, 0.003))
        assert watches.take() == 0
        os.write(pipe[1], b"here")
        assert watches.poll(seconds)
        assert watches.take() == 1
        assert arrived == [b"here"]
        watches.unwatch(reading)
        os.write(pipe[1], b"again")
        assert not watches.poll(min(seconds, 0.003))
    finally:
        watches.close()
        os.close(reading)


@pytest.mark.parametrize("seconds", [0.003, 0.01], ids=["short", "long"])
def test_a_descriptor_that_was_closed_breaks_no_wait(pipe: tuple[int, int], seconds: float) -> None:
    """Another thread may close one between two polls: that is no loss of the connection that is polled too."""
    closed = os.dup(pipe[0])
    watches = Watches(pipe[0])
    watches.watch(closed, lambda: None)
    os.close(closed)
    watches.poll(seconds)
    watches.unwatch(closed)
    os.write(pipe[1], b"here")
    assert watches.poll(seconds)
    watches.close()


def test_one_who_waits_for_room_no_more_is_not_woken_by_it(pipe: tuple[int, int]) -> None:
    """A descriptor that is watched anew, for reading alone, ends no wait by its room: else the task would spin."""
    watches = Watches()
    watches.watch(pipe[1], lambda: None, writes=True)
    assert watches.poll(0.001)
    watches.take()
    watches.watch(pipe[1], lambda: None)
    assert not watches.poll(0.001)
    assert not watches.poll(0.01)
    watches.close()


def test_room_for_writing_ends_a_short_wait(pipe: tuple[int, int]) -> None:
    """Only of a descriptor that is watched for it."""
    watches = Watches()
    arrived: list[int] = []
    watches.watch(pipe[1], lambda: arrived.append(1))
    assert not watches.poll(0.001)
    watches.unwatch(pipe[1])
    watches.watch(pipe[1], lambda: arrived.append(2), writes=True)
    assert watches.poll(0.001)
    assert watches.take() == 1
    assert arrived == [2]
    watches.close()
