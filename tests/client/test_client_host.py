# SPDX-License-Identifier: Apache-2.0
"""The wait of a client's writer or reader: it ends by descriptors, wakers, alarms, cancellation and time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from penstock.client.host import ClientHost
from penstock.errors import ControlError, TaskCancelledError
from penstock.shuffle.requests import Request


@pytest.fixture
def host() -> Iterator[ClientHost]:
    """One that is closed in the end."""
    host = ClientHost("here-1-client")
    yield host
    host.close()
    host.waker()()  # it wakes nobody, and breaks nothing


def test_a_waker_of_another_thread_ends_the_wait(host: ClientHost) -> None:
    """Also one that came before the wait began, and nobody misses it."""
    seen = host.arrivals
    threading.Thread(target=host.waker()).start()
    host.wait(seen)
    assert host.arrivals == seen + 1
    host.wait(seen)


def test_a_descriptor_that_can_be_read_ends_the_wait(host: ClientHost) -> None:
    """Its callback is called; that of a descriptor that is not watched any more is not."""
    read, write = os.pipe()
    came: list[bytes] = []
    host.watch(read, lambda: came.append(os.read(read, 9)))
    os.write(write, b"x")
    host.wait(host.arrivals)
    assert came == [b"x"]
    host.unwatch(read)
    host.unwatch(read)
    os.write(write, b"y")
    seen = host.arrivals
    host.wait(seen, 0)
    assert host.arrivals == seen
    os.close(read)
    os.close(write)


def test_an_alarm_ends_the_wait_and_a_limit_does_without_news(host: ClientHost) -> None:
    """An alarm counts as something that has come, and goes off once; a limit that is over does not count."""
    seen = host.arrivals
    host.wake_in(0.001)
    host.wait(seen)
    assert host.arrivals == seen + 1
    host.wait(seen + 1, 0.001)
    assert host.arrivals == seen + 1


def test_one_that_is_cancelled_waits_no_more(host: ClientHost) -> None:
    """One that waits and one that looks get the cause."""
    host.check_cancelled()
    threading.Thread(target=host.cancel, args=("enough",)).start()
    with pytest.raises(TaskCancelledError, match="enough"):
        host.wait(host.arrivals)
    with pytest.raises(TaskCancelledError, match="enough"):
        host.check_cancelled()


def test_there_is_no_environment(host: ClientHost) -> None:
    """A service that asks for one is told so."""

    class Question(Request[None]):
        """Anything."""

    with pytest.raises(ControlError, match="no environment process"):
        host.ask(Question())
    with pytest.raises(ControlError, match="no environment process"):
        host.data_plane()
