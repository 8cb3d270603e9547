# SPDX-License-Identifier: Apache-2.0
"""A disk of the host service that hangs, its index's too, keeps its own threads, and those who need it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.connection.budgets import UserShare
from penstock.connection.frame_connection import FrameConnection
from penstock.connection.frames import HEADER, read_beginning
from penstock.connection.handshake import greeting
from penstock.connection.sockets import SocketEndpoint
from penstock.errors import StorageError
from penstock.external import disks
from penstock.external.accounts import Account
from penstock.external.catalogue import Catalogue
from penstock.external.chunk_memory import ChunkMemory
from penstock.external.clients import ClientSession
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import Keeper, KeeperPolicy
from penstock.external.requests import (
    CommitPartition,
    Introduce,
    KeptState,
    ListHeld,
    PrepareKept,
    RenewLease,
    SwitchKept,
)
from penstock.link.control import raise_for_error
from penstock.link.frames import call_frame, read_reply
from penstock.link.wire import to_wire
from penstock.machine.database import Database
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId

ENDS = (EndOfPartition(0, 0, 0),)
KEY = b"k" * 32
HANGS = "penstock.machine.disk_threads.HANGS_SECONDS"


def identity(number: int) -> PartitionId:
    """A partition."""
    return PartitionId(DatasetId("job", 0), number, 0)


class HeldIndex:
    """The index of a service in this process: no row is read or written while `goes_on` is not set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_waited_for = threading.Event()

    def wait(self) -> None:
        """A row is to be read or written."""
        if not self.goes_on.is_set():
            self.is_waited_for.set()
            self.goes_on.wait()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldIndex:
    """The index of this test."""
    held, run = HeldIndex(), Database.run

    def run_later(base: Database, text: str, *values: object) -> object:
        held.wait()
        return run(base, text, *values)

    monkeypatch.setattr(Database, "run", run_later)
    return held


def test_a_disk_that_hangs_gets_no_partition_and_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`statvfs` and `mkdir` of one disk never return: partitions begin on the other, and it has a problem later."""
    roots, goes_on = [tmp_path / "sound", tmp_path / "hung"], threading.Event()
    for root in roots:
        root.mkdir()
    catalogue = Catalogue(tmp_path / "catalogue.db")
    monkeypatch.setattr(disks, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(disks, "FRESH_SECONDS", 0.0)
    for name in ("statvfs", "mkdir"):
        real = getattr(os, name)

        def hanging(path: str, *arguments: object, real: object = real) -> object:
            if str(path).startswith(str(roots[1])):
                goes_on.wait()
            return real(path, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(os, name, hanging)

    async def run() -> list[str]:
        goes_on.set()
        keeper = Keeper(catalogue, ServiceFolders(roots, 0), KeeperPolicy(0, 60.0))
        account = await keeper.introduce("app", b"k" * 32, 1000)
        goes_on.clear()
        try:
            begun = [await keeper.begin(account, PartitionId(DatasetId("job", 0), n, 0), 1) for n in range(3)]
            monkeypatch.setattr("penstock.machine.disk_threads.HANGS_SECONDS", 0.0)
            problems = [space.problem for space in await keeper.upkeep.disks.spaces()]
        finally:
            goes_on.set()
        for each in begun:
            each.close()
        await keeper.close()
        assert problems == ["", "it hangs"]
        return [Path(each.kept.folder).parents[2].name for each in begun]

    try:
        assert asyncio.run(run()) == ["sound"] * 3
    finally:
        catalogue.close()


def test_files_that_nobody_waits_for_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's connection ends while its files are made: they are closed and removed when they are there."""
    catalogue, goes_on, making = Catalogue(tmp_path / "catalogue.db"), threading.Event(), threading.Event()
    folders = ServiceFolders([tmp_path], 0)
    make = folders.make_files

    def slow(folder: str) -> object:
        making.set()
        goes_on.wait()
        return make(folder)

    monkeypatch.setattr(folders, "make_files", slow)

    async def run() -> None:
        keeper = Keeper(catalogue, folders, KeeperPolicy(0, 60.0))
        account = await keeper.introduce("app", b"k" * 32, 1000)
        begin = asyncio.ensure_future(keeper.begin(account, PartitionId(DatasetId("job", 0), 0, 0), 1))
        await asyncio.to_thread(making.wait)
        begin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begin
        goes_on.set()
        await keeper.close()
        assert not account.partitions

    asyncio.run(run())
    catalogue.close()
    assert not list((tmp_path / "data").glob("*/*"))


async def begun(keeper: Keeper, account: Account, number: int) -> int:
    """A partition that is being written: its number."""
    found = await keeper.begin(account, identity(number), 1)
    os.write(found.data, b"rows")
    found.close()
    return found.kept.number


NEED_THE_INDEX: dict[str, Callable[[Keeper, Account, int], Coroutine[Any, Any, object]]] = {
    "introduce": lambda keeper, account, number: keeper.introduce("new", b"n" * 32, 1000),
    "begin": lambda keeper, account, number: keeper.begin(account, identity(2), 1),
    "commit": lambda keeper, account, number: keeper.commit(account, CommitPartition(number, ENDS)),
    "release": lambda keeper, account, number: keeper.release(account, [identity(1)]),
    "forget": lambda keeper, account, number: keeper.forget_job(account, "job"),
    "end": lambda keeper, account, number: keeper.end(account),
    "prepare": lambda keeper, account, number: keeper.results.prepare(
        account, PrepareKept("more", b"m" * 32, b"", partitions=(identity(0),))
    ),
    "switch": lambda keeper, account, number: keeper.results.switch(account, SwitchKept("name", b"p" * 32)),
}


@pytest.mark.parametrize("asks", NEED_THE_INDEX.values(), ids=NEED_THE_INDEX.keys())
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "has gone"])
def test_who_needs_an_index_that_hangs_hears_so_and_others_go_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: HeldIndex,
    asks: Callable[[Keeper, Account, int], Coroutine[Any, Any, object]],
    waits: bool,
) -> None:
    """Another application is known and reads meanwhile. What was asked has an error, and so has the next one.

    Nothing of it stays: the index says the same as the service, also where whoever asked has gone.
    """
    folders = ServiceFolders([tmp_path], 0)

    async def started() -> Keeper:
        return Keeper(Catalogue(tmp_path / "catalogue.db"), folders, KeeperPolicy(0, 60.0))

    async def run() -> None:
        keeper = await started()
        account, other = [await keeper.introduce(each, each.encode() * 8, 1000) for each in ("mine", "hers")]
        for each in (account, other):
            last = await begun(keeper, each, 0)
            await keeper.commit(each, CommitPartition(last, ENDS))
        number = await begun(keeper, account, 1)
        await keeper.results.prepare(account, PrepareKept("name", b"p" * 32, b""))
        monkeypatch.setattr(HANGS, 0.01 if waits else 60.0)
        held.goes_on.clear()
        try:
            asked = asyncio.ensure_future(asks(keeper, account, number))
            got = memoryview(bytearray(4))
            await keeper.read(other, last, 0, got)
            assert bytes(got) == b"rows"
            assert await keeper.introduce("hers", b"hers" * 8, 1000) is other
            if waits:
                for each in (asked, keeper.introduce("another", b"a" * 32, 1000)):
                    with pytest.raises(StorageError, match=r"catalogue\.db hangs"):
                        await each
            else:
                asked.cancel()
                await asyncio.wait([asked])
        finally:
            monkeypatch.setattr(HANGS, 60.0)
            held.goes_on.set()
        keeper.give_up(account, number, "its writer has gone")
        await keeper.close()
        after = await started()
        await after.close()
        assert known_to(after) == known_to(keeper)

    asyncio.run(run())


def known_to(keeper: Keeper) -> dict[str, tuple[str, dict[int, KeptState]]]:
    """The applications and results that a service knows, each with its partitions."""
    return {
        each.key.title: (each.role, {kept.partition.index: kept.state for kept in each.numbers.values()})
        for each in keeper.accounts
    }


def test_a_first_word_that_waits_for_the_index_holds_the_words_that_follow_it(
    tmp_path: Path, held: HeldIndex
) -> None:
    """A task asks before it has heard that it is known: it is answered in that order, and not refused."""
    keeper = Keeper(Catalogue(tmp_path / "catalogue.db"), ServiceFolders([tmp_path], 0), KeeperPolicy(0, 60.0))
    ours, its = socket.socketpair()
    requests = (Introduce("app", KEY), RenewLease(), ListHeld())

    async def run() -> list[int]:
        loop, endpoint = asyncio.get_running_loop(), SocketEndpoint(ours, "a task")
        session = ClientSession(keeper, endpoint, None, ChunkMemory(1), UserShare(1 << 20))
        session.connection = connection = FrameConnection(endpoint, session, lambda *_: None)
        held.goes_on.clear()
        its.sendall(greeting() + b"".join(call_frame(n, type(r).METHOD, to_wire(r)) for n, r in enumerate(requests)))
        its.setblocking(False)

        async def received(size: int) -> bytes:
            data = b""
            while len(data) < size:
                data += await loop.sock_recv(its, size - len(data))
            return data

        await received(len(greeting()))
        await asyncio.to_thread(held.is_waited_for.wait)
        held.goes_on.set()
        answered = []
        for _ in requests:
            length, *_rest = read_beginning(await received(HEADER.size))
            number, plain = read_reply(memoryview(await received(length - HEADER.size)))
            raise_for_error(plain)
            answered.append(number)
        connection.close()
        await keeper.close()
        return answered

    try:
        assert asyncio.run(run()) == [0, 1, 2]
    finally:
        its.close()
