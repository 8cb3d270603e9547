# SPDX-License-Identifier: Apache-2.0
"""The leak check finds each kind of thing that a test may leave behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdings import MARK, RUN_FOLDER, Holdings, _own, described, first_use, open_descriptors

DETACHED = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0, "
    "stdout=-3, stderr=-3, start_new_session=True); print(p.pid, flush=True)"
)
"""Starts a process in a session of its own, says its number, and ends."""


@pytest.fixture
def leaks() -> Callable[[], list[str]]:
    """The things that have come since the test began, without any grace."""
    before = Holdings.now()
    return lambda: Holdings.now().leaks_since(before)


def test_a_clean_test_has_no_leaks(leaks: Callable[[], list[str]]) -> None:
    """Nothing done, nothing found."""
    assert leaks() == []


def test_it_finds_a_child_and_a_detached_process(leaks: Callable[[], list[str]]) -> None:
    """A child is found, also one in a session of its own whose parent has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert any(f"process {child.pid}" in leak for leak in leaks())
        reading, writing = os.pipe()
        ran = subprocess.run(
            [sys.executable, "-c", DETACHED], stdin=reading, capture_output=True, text=True, check=True
        )
        os.close(reading)
        assert any(f"process {ran.stdout.strip()}" in leak for leak in leaks())
        os.close(writing)
        child.communicate(b"\n")


def test_a_process_of_another_run_is_no_leak(leaks: Callable[[], list[str]]) -> None:
    """It has left its family and carries another mark; one that carries ours is found beside it."""
    reading, writing = os.pipe()
    started = {}
    for mark in ("/another", f"{os.environ[MARK]}/nested"):
        ran = subprocess.run(
            [sys.executable, "-c", DETACHED],
            stdin=reading,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, MARK: mark},
        )
        started[mark] = f"process {ran.stdout.strip()} "
    os.close(reading)
    for _ in range(2):  # what was seen once is not looked at again
        found = [leak for leak in leaks() if leak.startswith("process")]
        assert len(found) == 1
        assert found[0].startswith(started[f"{os.environ[MARK]}/nested"])
    os.close(writing)


def test_it_finds_a_thread(leaks: Callable[[], list[str]]) -> None:
    """A thread that would keep the interpreter alive is found."""
    let_go = threading.Event()
    thread = threading.Thread(target=let_go.wait, name="forgotten")
    thread.start()
    found = leaks()
    let_go.set()
    thread.join()
    assert found == ["thread forgotten"]


def test_it_finds_a_file_descriptor_and_a_memfd(leaks: Callable[[], list[str]], tmp_path: Path) -> None:
    """An open file and an anonymous memory file are found by name."""
    with (tmp_path / "open").open("w"):
        assert any("/open" in leak for leak in leaks())
    fd = os.memfd_create("penstock-test")
    assert any("memfd:penstock-test" in leak for leak in leaks())
    os.close(fd)


def test_it_finds_a_rendezvous_folder(leaks: Callable[[], list[str]]) -> None:
    """A folder of an environment process is found."""
    folder = RUN_FOLDER / f"penstock-{os.getuid()}" / "abandoned"
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir()
    found = leaks()
    folder.rmdir()
    assert "rendezvous folder abandoned" in found


def test_it_says_what_a_socket_is(leaks: Callable[[], list[str]]) -> None:
    """Kind, ends and owner of a socket: who left it is looked for with nothing else."""

    class Forgetful:
        def __init__(self) -> None:
            self.one, self.other = socket.socketpair()

    owner = Forgetful()
    found = described(leaks())
    owner.one.close()
    owner.other.close()
    assert len(found) == 2
    assert all("AF_UNIX SOCK_STREAM, from no name to no name" in leak for leak in found)
    assert all("Forgetful" in leak for leak in found)
    reading, writing = socket.socketpair()
    numbers = [reading.detach(), writing.detach()]
    found = described(leaks())
    for number in numbers:
        os.close(number)
    assert all("held by no Python socket" in leak for leak in found)


def test_a_duplicate_of_what_a_library_keeps_is_no_leak(leaks: Callable[[], list[str]]) -> None:
    """A library may duplicate the socket of its signals long after its first use; another socket is still found."""
    reading, writing = socket.socketpair()
    ends: list[socket.socket] = []
    first_use(lambda: ends.extend([reading.dup(), writing.dup()]))
    duplicate = os.dup(ends[0].fileno())
    found = leaks()
    other = socket.socketpair()
    more = leaks()
    os.close(duplicate)
    for end in (reading, writing, *ends, *other):
        end.close()
    assert found == []
    assert len(more) == 2


def test_who_calls_where_somebody_listened_before_is_no_leak() -> None:
    """A stranger may hold a refused connection to the session's port open; the end of a caller of ours is found."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        before = Holdings.now()
        with socket.create_connection(door.getsockname()) as caller:
            accepted, _ = door.accept()
            found = _own(Holdings.now().leaks_since(before), before)
            accepted.close()
            assert [leak.partition(" -> ")[0] for leak in found] == [f"file descriptor {caller.fileno()}"]


def test_the_list_of_processes_is_no_descriptor_of_a_test() -> None:
    """Who adds up processor seconds looks at it each second, at any moment of a test."""
    before = open_descriptors()
    look = os.open("/proc", os.O_RDONLY)
    found = open_descriptors()
    os.close(look)
    assert found == before


OURS, OTHERS = "python -m penstock.environment app-1 ", "python -m penstock.environment app-2 "
WORKER = "python -m pyspark.daemon "


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ({10: OURS}, {11: OURS}, 0),
        ({10: OURS}, {10: OURS, 11: OURS}, 1),
        ({10: OURS}, {11: OURS, 12: OURS}, 1),
        ({10: OURS}, {11: OTHERS}, 1),
        ({10: OURS, 20: OTHERS}, {11: OURS, 21: OTHERS}, 0),
        ({10: WORKER}, {11: WORKER}, 1),
        ({10: OURS}, {}, 0),
    ],
    ids=["replaced", "beside it", "two for one", "of another application", "two", "a worker", "gone"],
)
def test_an_environment_in_the_place_of_another_is_not_left(
    before: dict[int, str], after: dict[int, str], left: int
) -> None:
    """Tests that share a cluster find its environment replaced where it lost its lease; one more is a leak."""
    then, now = (Holdings(each, frozenset(), frozenset(), 0, frozenset()) for each in (before, after))
    assert len(now.leaks_since(then)) == left
