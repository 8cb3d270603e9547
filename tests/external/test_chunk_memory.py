# SPDX-License-Identifier: Apache-2.0
"""The memory of a user at the host service: a limit, and a line."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from penstock.connection.budgets import UserBudgets
from penstock.connection.frames import frame
from penstock.connection.sockets import SocketEndpoint
from penstock.external.accounts import KeptPartition
from penstock.external.catalogue import Catalogue
from penstock.external.chunk_memory import ChunkMemory
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import Keeper, KeeperPolicy
from penstock.external.requests import CHUNK_BYTES, FETCH, FETCH_BODY, KeptState
from penstock.external.server import ServiceServer
from penstock.shuffle import DatasetId, PartitionId
from penstock.testing import wait_until


def test_there_are_so_many_buffers_and_no_more() -> None:
    """One that comes back is used again."""
    memory = ChunkMemory(2)
    first, second = memory.take(), memory.take()
    assert memory.take() is None
    assert first is not None
    assert second is not None
    assert memory.bytes == 2 * CHUNK_BYTES
    memory.give_back(first)
    assert memory.take() is first


def test_those_who_wait_are_told_once_in_the_order_of_coming() -> None:
    """One free buffer is one word; one that has left is not told, and the next one is."""
    memory, told = ChunkMemory(1), []
    held = memory.take()
    assert held is not None

    def one() -> None:
        told.append(1)

    def two() -> None:
        told.append(2)

    for wake in (one, one, two):
        memory.wait(wake)
    memory.give_back(held)
    assert told == [1]
    memory.take()
    memory.wait(one)
    memory.leave(two)
    memory.give_back(held)
    assert told == [1, 1]


def test_the_memory_of_a_user_goes_when_no_disk_has_any_of_it(tmp_path: Path) -> None:
    """A disk hangs (a pipe without a writer) and the reader hangs up: one who comes again has the rest only."""
    keeper = Keeper(Catalogue(tmp_path / "catalogue.db"), ServiceFolders([tmp_path], 0), KeeperPolicy(0, 60.0))
    account = asyncio.run(keeper.introduce("app", b"k" * 32, 1000))
    partition = PartitionId(DatasetId("job", 0), 0, 0)
    account.numbers[7] = KeptPartition(7, partition, 1, KeptState.THERE, str(tmp_path / "data"))
    os.mkfifo(tmp_path / "data" / "data.0")
    hung = {1000: 2 * CHUNK_BYTES}

    async def run() -> list[dict[int, int]]:
        server = ServiceServer(keeper, 2 * CHUNK_BYTES, UserBudgets(64 << 20, 1000))
        found = []
        for asked in (2, 0, 0):
            near, far = socket.socketpair()
            with far:
                far.sendall(b"".join(frame(FETCH, FETCH_BODY.pack(call, 7, 0, 100)) for call in range(asked)))
                connection = server._serve(SocketEndpoint(near, "a reader"), account, 1000)
                await until(lambda: server.memory_bytes() == hung)
                connection.close()
                await until(lambda: not server._sessions)
            found.append(server.memory_bytes())
        writer = os.open(tmp_path / "data" / "data.0", os.O_RDWR)
        await until(lambda: server._memories[1000].is_idle)
        server._look()
        found.append(server.memory_bytes())
        os.close(writer)
        server.close()
        await keeper.close()
        return found

    assert asyncio.run(run()) == [hung] * 3 + [{}]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something of this process."""
    await asyncio.to_thread(wait_until, is_so, "the service to come so far")
