# SPDX-License-Identifier: Apache-2.0
"""The memory of a connection to a manager or a worker goes with it, before anybody looks for circles of objects.

Python does that when many objects have come, and a service has few: so each connection's 64 KiB would stay for long.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.connection.principals import application_secret, key_line, user_key
from penstock.connection.protection import Protection
from penstock.link.wire import Done
from penstock.remote import messages as ask
from penstock.remote.block_memory import BlockMemory
from penstock.remote.blocks import BLOCK_BYTES, LEAST_CREDIT
from penstock.remote.manager import ManagerOptions, RemoteManager
from penstock.remote.peers import Entrance, PeerEnds, ServiceAccess, Way, application_credentials, asked
from penstock.remote.store import StoreOptions
from penstock.remote.wire import BulkFrame, Guest, PeerLogic
from penstock.remote.worker import RemoteWorker, WorkerOptions
from penstock.shuffle import DatasetId, PartitionId
from penstock.testing.waiting import eventually

PARTITION = PartitionId(DatasetId("job", 0), 0, 0)
LENGTH = BLOCK_BYTES - 1000


@pytest.fixture
def access(tmp_path: Path) -> ServiceAccess:
    """The access of a service with one user."""
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(key_line("alice") + "\n")
    return ServiceAccess.of("the secret of manager and workers", keys, Protection())


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nobody looks for circles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watched:
    """The ends of a process, and a look at each core that it has made."""

    def __init__(self, ends: PeerEnds) -> None:
        self.made: list[weakref.ref[PeerLogic]] = []
        self._ends = ends

    def entered(self, identity: str, guest: Guest | None) -> PeerLogic:
        """Somebody has come in."""
        logic = self._ends.entered(identity, guest)
        self.made.append(weakref.ref(logic))
        return logic


async def come_and_go(ends: PeerEnds, access: ServiceAccess, *, pushes: bool) -> None:
    """Connect as a task, ask, push half a block, hang up: nothing of it is left."""
    watched = Watched(ends)
    entrance = Entrance(access, watched)
    address = await entrance.open("tcp://127.0.0.1:0")
    secret = application_secret(user_key(str(access.keys))[1], "alice", "one")
    way = Way(address, application_credentials("alice", "one", "task", secret), access.protection)
    logic = PeerLogic({}, {int(BulkFrame.PROMISE): lambda _: None}, lambda _: None)
    connection = await way.connect(logic)
    if pushes:
        assert isinstance(await asked(logic, ask.EnterWriter(PARTITION, 1)), ask.Opened)
        logic.send_bulk(BulkFrame.WANT, LENGTH.to_bytes(4, "little"))
    else:
        assert isinstance(await asked(logic, ask.DropPartitions((PARTITION,))), Done)
    connection.close()
    await eventually(lambda: [each() for each in watched.made] == [None], "the connection to be forgotten")
    entrance.close()


@pytest.mark.usefixtures("uncollected")
def test_nothing_of_a_connection_to_a_worker_is_left(access: ServiceAccess, tmp_path: Path) -> None:
    """Not its scratch memory, not what it had been promised."""

    async def run() -> None:
        options = WorkerOptions("tcp://127.0.0.1:0", "tcp://127.0.0.1:1")
        worker = RemoteWorker(options, StoreOptions((tmp_path / "worker",), 0), access)
        await come_and_go(worker, access, pushes=True)
        assert worker.holdings.credit.used == 0
        worker.holdings.store.close()

    asyncio.run(run())


@pytest.mark.usefixtures("uncollected")
def test_nothing_of_a_connection_to_a_manager_is_left(access: ServiceAccess, tmp_path: Path) -> None:
    """A manager's is a process for months, too."""

    async def run() -> None:
        manager = RemoteManager(ManagerOptions("tcp://127.0.0.1:0", tmp_path / "manager"), access)
        running = asyncio.ensure_future(manager.run())
        await come_and_go(manager, access, pushes=False)
        running.cancel()

    asyncio.run(run())


def test_buffers_of_blocks_are_used_again() -> None:
    """The last one that came back goes first; what is small is not kept."""
    memory = BlockMemory(8 * LEAST_CREDIT, lambda: 0)
    taken = [memory.take(length) for length in (LENGTH, LEAST_CREDIT, LENGTH)]
    assert [len(each) for each in taken] == [LENGTH, LEAST_CREDIT, LENGTH]
    whose = [each.obj for each in taken]
    for each in taken:
        memory.give(each)
    assert memory.bytes == 3 * LEAST_CREDIT
    assert [memory.take(length).obj for length in (LEAST_CREDIT, LENGTH, LENGTH)] == whose[::-1]
    assert memory.take(LENGTH).obj not in whose
    memory.give(memory.take(4096))
    assert memory.bytes == 0


def test_buffers_that_nobody_needs_go_back_to_the_system() -> None:
    """A look leaves as many as were in use at once since the one before: the second after a burst leaves none."""
    memory = BlockMemory(8 * LEAST_CREDIT, lambda: 0)
    for each in [memory.take(LENGTH) for _ in range(5)]:
        memory.give(each)
    memory.look()
    assert memory.bytes == 5 * LEAST_CREDIT
    for each in [memory.take(LENGTH) for _ in range(2)]:
        memory.give(each)
    memory.look()
    assert memory.bytes == 2 * LEAST_CREDIT
    memory.look()
    assert memory.bytes == 0


def test_buffers_that_wait_make_room_for_small_blocks() -> None:
    """With what is in use they are never more than the worker may have."""
    used = 0
    memory = BlockMemory(4 * LEAST_CREDIT, lambda: used)
    for each in [memory.take(LENGTH) for _ in range(4)]:
        memory.give(each)
    used = 2 * LEAST_CREDIT + 4096
    memory.take(4096)
    assert memory.bytes == LEAST_CREDIT
    used = 6 * LEAST_CREDIT
    memory.take(4096)
    assert memory.bytes == 0
