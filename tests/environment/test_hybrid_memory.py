# SPDX-License-Identifier: Apache-2.0
"""Writers of hybrid partitions that are out of memory in the middle of a message: each gets a segment, and goes on.

A real host with its pool, partitions, files and threads, on an event loop; only the task behind a writer is played.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer import DataType
from penstock.environment.host import Host
from penstock.environment.partitions.stored import StoredResult
from penstock.environment.peers.remote import ChannelBuffers, RemoteSource
from penstock.environment.ports.inputs import Channel
from penstock.environment.ports.writer_port import WriterPort
from penstock.link.calls import OpenWriter
from penstock.link.frames import FINISHED
from penstock.network.frames import payload_checksum
from penstock.network.ledger import ReceiverCredit
from penstock.network.messages import BacklogAnnouncement, BufferHeader, BufferResponse
from penstock.network.receiver import ChannelRequest, ConnectionCore
from penstock.partition.stored_cursor import Next
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId, PartitionKind
from penstock.shuffle.events import encode_event
from penstock.testing import eventually
from small_hosts import PRODUCER, SEGMENT, host_of, on_loop

WRITING: list[Task] = []
"""The tasks of a test."""


class Task:
    """A writing task as its environment sees it: what it was granted, and which segment it has open for what."""

    def __init__(self, host: Host, number: int, subpartitions: int) -> None:
        self.host = host
        self.is_gone = self.is_stopped = False
        self.at_hand: list[int] = []
        self.folder = ""
        self._open: dict[int, tuple[int, int]] = {}
        self.holdings = host.memory.references.attach(f"task {number}")
        partition = PartitionId(DatasetId("job", 0), number, 1)
        request = OpenWriter(number, PRODUCER, partition, subpartitions, False, PartitionKind.HYBRID_FULL)
        self.ports: list[WriterPort] = []
        self.to_task: Any = self
        host.writers.open(self, request)
        (self.port,) = self.ports
        result: Any = host.registry.find(partition)
        self.result: StoredResult = result
        WRITING.append(self)

    def opened(self, partition: PartitionId, writer: WriterPort) -> None:
        """The attached task's part: its port."""
        self.ports.append(writer)

    def take_writer(self, partition: PartitionId) -> WriterPort:
        """The attached task's part: its port ends."""
        return self.ports.pop()

    def grant(self, port: int, segment: int) -> None:
        """The line's part: segments to write into."""
        self.at_hand.append(segment)
        self.host.turn.wake()

    def store(self, port: int, folder: str) -> None:
        """The line's part: where to store."""
        self.folder = folder

    def begin(self, subpartition: int) -> None:
        """Open a segment."""
        self._open[subpartition] = (self.at_hand.pop(), 0)

    def ship(self, subpartition: int, length: int = SEGMENT) -> None:
        """Ship so much of the open segment, or of a new one."""
        if subpartition not in self._open:
            self.begin(subpartition)
        segment, offset = self._open.pop(subpartition)
        is_full = offset + length == SEGMENT
        if not is_full:
            self._open[subpartition] = (segment, offset + length)
        self.port.take_slice(subpartition, segment, offset, length | FINISHED if is_full else length)

    def ship_all(self, subpartition: int) -> None:
        """Fill what is at hand, and what comes for it."""
        while self.at_hand:
            self.ship(subpartition)

    async def overdraw(self) -> None:
        """In the middle of a message, with nothing at hand: it is given a segment."""
        assert not self.at_hand
        self.port.overdraw()
        await eventually(lambda: bool(self.at_hand), "a segment for who waits")


def memory(folder: Path, segments: int, test: Callable[[Host], Awaitable[None]]) -> None:
    """Run a test on a host of so many segments; after it the pool's books are straight."""
    folder.mkdir()

    async def run() -> None:
        host = host_of(folder, segments)
        try:
            await test(host)
            while WRITING:
                task = WRITING.pop()
                task.port.fail("the test is over")
                task.result.release()
            host.memory.pool.check()
        finally:
            await host.close()

    on_loop(run)


def test_readers_that_stand_still_keep_nobody_from_what_is_free(tmp_path: Path) -> None:
    """Much is leased when the writer's share shrinks to less than that: it gets a segment beyond its share."""

    async def test(host: Host) -> None:
        task = Task(host, 1, 4)
        cursor = task.result.open(0, 1, lambda: None)
        while task.result.core.readers.leased < 24:
            task.ship(0)
            assert task.result.look(cursor) is Next.MEMORY
            task.result.take(cursor)
        for subpartition in (1, 2, 3):
            task.begin(subpartition)
        for guaranteed in (25, 25, 8):
            host.memory.pool.reserve_exclusive(guaranteed)
        task.ship_all(0)
        await task.overdraw()
        assert task.result.core.readers.leased == 24

    memory(tmp_path / "host", 64, test)


def test_what_writers_hold_beyond_a_share_of_nothing_is_given_up(tmp_path: Path) -> None:
    """Four hold what the guarantees of four more need: all eight shares are spent, and the last gets its segment."""

    async def test(host: Host) -> None:
        first = [Task(host, number, 2) for number in range(4)]
        for task in first:
            task.ship(0)
        later = [Task(host, number, 2) for number in range(4, 8)]
        assert host.memory.pool.free == 0
        for task in later:
            task.ship_all(0)
            await task.overdraw()

    memory(tmp_path / "host", 16, test)


def test_what_another_writer_ships_is_taken_for_who_waits(tmp_path: Path) -> None:
    """Nothing is free and nobody has too much; then a writer ships more than its share, which goes to who waits."""

    async def test(host: Host) -> None:
        giving = Task(host, 1, 4)
        rest = host.memory.pool.reserve_exclusive(52)
        while rest.request() is not None:
            pass
        waiting = Task(host, 2, 4)
        while host.memory.pool.free:
            host.memory.pool.create_local_pool(1, 1, owner="the rest").request()
        subpartition = 0
        while waiting.at_hand:
            waiting.begin(subpartition)
            subpartition += 1
        waiting.port.overdraw()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.at_hand
        assert giving.result.excess <= 0
        for number in range(4):
            giving.ship(number)
        await eventually(lambda: bool(waiting.at_hand), "a segment for who waits")

    memory(tmp_path / "host", 64, test)


class Gate:
    """A gate that stays open while its channels end."""

    def __init__(self) -> None:
        self.at_end: list[Callable[[], None]] = []
        self.queued = 0

    def on_close(self, action: Callable[[], None]) -> None:
        """Note an action to be done when the gate closes."""
        self.at_end.append(action)

    def available(self, channel: object) -> None:
        """Something is there."""


@pytest.mark.parametrize("exclusive", [0, 2])
def test_an_ended_channel_leaves_its_credit_to_the_others(tmp_path: Path, exclusive: int) -> None:
    """It was told of eight buffers, which then came as one. When it has ended, its gate's floating ones are free."""

    async def test(host: Host) -> None:
        floating = host.memory.pool.create_local_pool(1, 8, owner="the gate")
        own = host.memory.pool.reserve_exclusive(exclusive) if exclusive else None
        gate: Any = Gate()
        descriptor: Any = None
        channel = Channel(0, descriptor, 0, 1)
        buffers = ChannelBuffers(floating, own)
        source = RemoteSource(host.memory, gate, channel, ReceiverCredit(buffers.exclusive, buffers))
        request = ChannelRequest(PartitionId(DatasetId("job", 0), 0, 1), 0, 0)
        connection = ConnectionCore("a server")
        source.remote = connection.open_channel(request, source, source.credit)
        connection.receive(BacklogAnnouncement(source.remote.receiver, 8))
        assert floating.requested == 8
        end = encode_event(EndOfPartition(0, 0, 0))
        header = BufferHeader(source.remote.receiver, 0, 0, 0, DataType.EVENT, payload_checksum(end), len(end))
        connection.receive(BufferResponse(header, end))
        assert source.is_available
        assert source.failure is None
        source.release()
        assert floating.requested == 0
        for action in gate.at_end:
            action()
        assert host.memory.pool.free == 32
        floating.lazy_destroy()

    memory(tmp_path / "host", 32, test)
