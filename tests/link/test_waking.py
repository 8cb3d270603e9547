# SPDX-License-Identifier: Apache-2.0
"""A service ends the one wait of its task: by a socket of its own, from a thread, or after a time; on both hosts."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environment_thread import environment
from penstock.attachment.attachment import Attachment
from penstock.link.calls import ListOccupying
from penstock.testing import DEADLINE, Running
from penstock.testing.memory_host import MemoryHost

Host = Attachment | MemoryHost


@pytest.fixture(params=["environment process", "memory"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """A task's host."""
    if request.param == "memory":
        yield MemoryHost("here")
        return
    with environment(tmp_path) as here:
        attachment = here.attach()
        yield attachment
        attachment.close()


def test_a_socket_of_a_service_ends_the_wait(host: Host) -> None:
    """Its function is called where the task waits, and reads; after `unwatch` it is not called any more."""
    ours, theirs = socket.socketpair()
    came: list[bytes] = []
    host.watch(ours.fileno(), lambda: came.append(ours.recv(10)))
    for word in (b"one", b"two"):
        seen = host.arrivals
        task = Running(lambda seen=seen: host.wait(seen, DEADLINE))  # type: ignore[misc]
        theirs.send(word)
        task.join()
        assert host.arrivals != seen
        assert came[-1] == word
    host.unwatch(ours.fileno())
    host.unwatch(ours.fileno())
    theirs.send(b"three")
    seen = host.arrivals
    host.wait(seen, 0.02)
    assert host.arrivals == seen
    assert came == [b"one", b"two"]
    ours.close()
    theirs.close()


def test_a_thread_of_a_service_ends_the_wait(host: Host) -> None:
    """A word that comes before the wait counts, too; several threads that wait are all woken."""
    wake = host.waker()
    seen = host.arrivals
    wake()
    host.wait(seen, DEADLINE)
    for _ in range(20):
        seen = host.arrivals
        tasks = [Running(lambda seen=seen: host.wait(seen, DEADLINE)) for _ in range(3)]  # type: ignore[misc]
        wake()
        for task in tasks:
            task.join()


def test_a_waker_outlives_its_host(host: Host) -> None:
    """A thread that comes late writes into no descriptor that is another's by now."""
    wake = host.waker()
    if isinstance(host, Attachment):
        host.close()
    read, write = os.pipe()
    wake()
    os.set_blocking(read, False)
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    os.close(read)
    os.close(write)


def test_a_service_is_looked_at_again(host: Host) -> None:
    """The earliest of several times counts, once."""
    seen, began = host.arrivals, time.monotonic()
    host.wake_in(DEADLINE)
    host.wake_in(0.02)
    host.wait(seen, DEADLINE)
    assert host.arrivals == seen + 1
    assert time.monotonic() - began < DEADLINE
    seen = host.arrivals
    host.wait(seen, 0.03)
    assert host.arrivals == seen


def test_waking_goes_on_beside_frames(tmp_path: Path) -> None:
    """A socket that is always readable starves no question, and no question starves it."""
    with environment(tmp_path) as here:
        attachment = here.attach()
        ours, theirs = socket.socketpair()
        count = 0

        def arrived() -> None:
            nonlocal count
            ours.recv(1)
            count += 1
            theirs.send(b"x")

        attachment.watch(ours.fileno(), arrived)
        theirs.send(b"x")
        done = threading.Event()

        def wait() -> None:
            while not done.is_set():
                attachment.wait(attachment.arrivals, 0.05)

        waiting = Running(wait)
        for _ in range(50):
            assert attachment.ask(ListOccupying(), DEADLINE).partitions == ()
        done.set()
        waiting.join()
        assert count > 0
        attachment.unwatch(ours.fileno())
        attachment.close()
        ours.close()
        theirs.close()
