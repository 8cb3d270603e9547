# SPDX-License-Identifier: Apache-2.0
"""A connection that ends while a thread reads for it: its buffer is nobody's until the thread is done."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from penstock.connection.budgets import UserShare
from penstock.connection.frames import HEADER, OutgoingFrame
from penstock.external.accounts import KeptPartition
from penstock.external.catalogue import Catalogue
from penstock.external.chunk_memory import ChunkMemory
from penstock.external.clients import ClientSession
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import Keeper, KeeperPolicy
from penstock.external.requests import CHUNK_HEAD, FETCH, FETCH_BODY, KeptState, RenewLease
from penstock.link.frames import LinkFrameType, call_frame
from penstock.shuffle import DatasetId, PartitionId
from penstock.testing import DEADLINE

NUMBER = 7


def test_a_buffer_is_free_when_no_thread_writes_into_it_any_more(tmp_path: Path) -> None:
    """The disk hangs (a pipe without a writer), the connection ends, and another reader waits for the buffer."""
    folder = tmp_path / "data"
    catalogue = Catalogue(tmp_path / "catalogue.db")
    keeper = Keeper(catalogue, ServiceFolders([tmp_path], 0), KeeperPolicy(0, 60.0))
    account = asyncio.run(keeper.introduce("app", b"k" * 32, 1000))
    partition = PartitionId(DatasetId("job", 0), 0, 0)
    account.numbers[NUMBER] = KeptPartition(NUMBER, partition, 1, KeptState.THERE, str(folder))
    os.mkfifo(folder / "data.0")
    memory = ChunkMemory(1)

    async def run() -> None:
        unused: Any = None
        session = ClientSession(keeper, unused, account, memory, UserShare(1 << 20))
        session.receive((FETCH, memoryview(FETCH_BODY.pack(1, NUMBER, 0, 100))))
        await asyncio.sleep(0)
        session.connection_lost()
        for _ in range(3):
            await asyncio.sleep(0)
        free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        memory.wait(lambda: free.set_result(None))
        assert memory.take() is None, "the thread may write into it yet"
        writer = os.open(folder / "data.0", os.O_RDWR)
        await asyncio.wait_for(free, DEADLINE)
        os.close(writer)
        assert memory.take() is not None
        assert session.next_frame() is None, "nobody hears of it"
        await keeper.close()

    asyncio.run(run())


def test_a_connection_that_ends_at_once_keeps_no_buffer(tmp_path: Path) -> None:
    """Its question and its end come together, before the read has begun."""
    keeper = Keeper(Catalogue(tmp_path / "catalogue.db"), ServiceFolders([tmp_path], 0), KeeperPolicy(0, 60.0))
    account = asyncio.run(keeper.introduce("app", b"k" * 32, 1000))
    memory = ChunkMemory(1)

    async def run() -> None:
        unused: Any = None
        session = ClientSession(keeper, unused, account, memory, UserShare(1 << 20))
        session.receive((FETCH, memoryview(FETCH_BODY.pack(1, NUMBER, 0, 100))))
        session.connection_lost()
        for _ in range(3):
            await asyncio.sleep(0)
        assert memory.take() is not None
        await keeper.close()

    asyncio.run(run())


def test_a_user_is_told_the_time_that_a_read_took(tmp_path: Path) -> None:
    """From the question until the bytes wait for the network; the disk tells of them too."""
    keeper = Keeper(Catalogue(tmp_path / "catalogue.db"), ServiceFolders([tmp_path], 0), KeeperPolicy(0, 60.0))
    account = asyncio.run(keeper.introduce("app", b"k" * 32, os.getuid()))
    partition = PartitionId(DatasetId("job", 0), 0, 0)
    account.numbers[NUMBER] = KeptPartition(NUMBER, partition, 1, KeptState.THERE, str(tmp_path / "data"))
    (tmp_path / "data" / "data.0").write_bytes(bytes(100))

    async def run() -> None:
        unused: Any = None
        session = ClientSession(keeper, unused, account, ChunkMemory(1), UserShare(1 << 20))
        answered = asyncio.Event()
        session.wake = answered.set
        session.receive((FETCH, memoryview(FETCH_BODY.pack(1, NUMBER, 0, 100))))
        await asyncio.wait_for(answered.wait(), DEADLINE)
        assert session.next_frame() is not None
        session.connection_lost()
        await keeper.close()

    asyncio.run(run())
    (user,) = keeper.users.figures()
    assert (user.name, user.figures["bytes"]) == (str(os.getuid()), 100)
    assert user.figures["waiting_seconds"] > 0


def test_a_reader_whose_user_has_no_memory_left_gets_its_bytes_in_pieces(tmp_path: Path) -> None:
    """Another connection of the user holds all buffers, and nobody reads it: nothing comes between the pieces."""
    keeper = Keeper(Catalogue(tmp_path / "catalogue.db"), ServiceFolders([tmp_path], 0), KeeperPolicy(0, 60.0))
    account = asyncio.run(keeper.introduce("app", b"k" * 32, os.getuid()))
    partition = PartitionId(DatasetId("job", 0), 0, 0)
    account.numbers[NUMBER] = KeptPartition(NUMBER, partition, 1, KeptState.THERE, str(tmp_path / "data"))
    rows = os.urandom(100_000)
    (tmp_path / "data" / "data.0").write_bytes(rows)
    memory, share = ChunkMemory(1), UserShare(1 << 20)

    async def run() -> bytes:
        assert memory.take() is not None
        unused: Any = None
        session = ClientSession(keeper, unused, account, memory, share)
        answered = asyncio.Event()
        session.wake = answered.set
        session.receive((FETCH, memoryview(FETCH_BODY.pack(1, NUMBER, 0, len(rows)))))
        session.receive((LinkFrameType.CALL, memoryview(call_frame(2, RenewLease.METHOD, {}))[HEADER.size :]))
        got, frames = b"", 0
        while len(got) < HEADER.size + CHUNK_HEAD.size + len(rows):
            await asyncio.wait_for(answered.wait(), DEADLINE)
            answered.clear()
            while (frame := session.next_frame()) is not None:
                got += b"".join(frame.parts)
                frames += 1
                assert frame.recycle is not None
                frame.recycle()
        assert frames > 4
        last = session.next_frame() or await _next(session, answered)
        assert bytes(last.parts[0][4:5]) == bytes([LinkFrameType.REPLY])
        session.connection_lost()
        await keeper.close()
        return got

    assert asyncio.run(run()).endswith(rows)
    assert share.questions == 0


async def _next(session: ClientSession, answered: asyncio.Event) -> OutgoingFrame:
    while (frame := session.next_frame()) is None:
        await asyncio.wait_for(answered.wait(), DEADLINE)
        answered.clear()
    return frame
