# SPDX-License-Identifier: Apache-2.0
"""A disk refuses one block and takes the next: both go on at another worker, and no block is promised too early.

Sessions, holdings and writers' queues are the real ones; the disk is one that the test answers for.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Sequence
from typing import Any

import pytest
import xxhash

from penstock.errors import ProtocolError, QuotaError, StorageError
from penstock.remote import messages as ask
from penstock.remote.blocks import HEAD, BlockHead, charge
from penstock.remote.holdings import WorkerHoldings
from penstock.remote.merged import PLACE, BlockFate, MergedDataset
from penstock.remote.merged_disk import WriteJob
from penstock.remote.pushed import DAMAGED, FATES, TAKEN, PushSession
from penstock.remote.wire import ACK, BulkFrame
from penstock.services.remote.push_queue import PushedBlock, PushQueue
from penstock.shuffle import DatasetId, PartitionId

PARTITION = PartitionId(DatasetId("job", 0), 0, 0)
WRITER = 7
LENGTH = 4096
FULL, GAP, REPEAT, STALE = (
    FATES[fate] for fate in (BlockFate.FULL, BlockFate.GAP, BlockFate.REPEAT, BlockFate.STALE)
)


def block(number: int) -> PushedBlock:
    """A block of the writer's only file."""
    data = bytes([number]) * LENGTH
    head = BlockHead(len(data), WRITER, 0, number, xxhash.xxh3_64_intdigest(data))
    return PushedBlock(0, number, len(data), head.packed(), (data,), (1, len(data), number))


class Disk:
    """A store whose writes end when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[WriteJob] = []
        self.removed: list[int] = []

    def write(self, job: WriteJob) -> None:
        """A block waits for the disk."""
        self.jobs.append(job)

    def placed(self, path: int) -> int:
        """A new file lies where its number says."""
        return path

    def remove(self, paths: Sequence[int]) -> None:
        """Files go."""
        self.removed += paths

    def answer(self, *errors: OSError | None) -> None:
        """The next writes are over."""
        for error in errors:
            job = self.jobs.pop(0)
            job.done(error)
            job.let_go()


class Worker:
    """A worker's holdings over such a disk."""

    def __init__(self) -> None:
        self.disk = Disk()
        store: Any = self.disk
        self.holdings = WorkerHoldings(store, 64 << 20)
        self.numbers = itertools.count()

    @property
    def dataset(self) -> MergedDataset:
        """The only one."""
        return self.holdings.dataset("app", str(PARTITION.dataset))

    def connect(self) -> Line:
        """A connection over which the writer pushes."""
        return Line(self, next(self.numbers))


class Line:
    """One connection, and what the worker has said over it."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.acks: dict[int, int] = {}
        self._worker = worker
        self._number = number
        self.session = PushSession(worker.holdings, "app", number)
        logic: Any = self
        self.session.logic = logic
        worker.holdings.enter(number, logic, "app")
        self.session.open(ask.EnterWriter(PARTITION, WRITER))
        self.ended = ""
        self.decoder = self
        self.filled = 0

    def hang_up(self, error: BaseException | None) -> None:
        """The worker ends it."""
        self.ended = str(error)

    def send_bulk(self, kind: int, body: bytes) -> None:
        """The worker says something."""
        if kind == BulkFrame.ACK:
            self.acks |= {number: verdict for _, _, number, verdict in ACK.iter_unpack(body)}

    def push(self, *numbers: int) -> None:
        """Push blocks within what is promised."""
        for made in map(block, numbers):
            data = made.head + bytes(made.parts[0])
            self._worker.holdings.credit.want(self._number, charge(made.length))
            self._worker.holdings.promise()
            memory = self.session.allocate(BulkFrame.PUSH, len(data))
            memory[:] = data
            self.session.push(memory)

    async def told(self) -> dict[int, int]:
        """Tell the verdicts since the last time, by number."""
        await asyncio.sleep(0)
        told, self.acks = self.acks, {}
        return told


FAILED = OSError(28, "No space left on device")


def test_blocks_after_one_that_failed_go_on_with_it_at_another_worker() -> None:
    """They were on their way to the disk when it failed, and were written: the worker does not take them."""

    async def run() -> None:
        first, second = Worker(), Worker()
        line, queue = first.connect(), PushQueue(1 << 20)
        queue.add([block(number) for number in range(10)])
        assert len(queue.promised(len(queue.announce()))) == 10
        line.push(*range(7))
        first.disk.answer(None, None, FAILED, None, None, None, None)
        line.push(7, 8, 9)
        told = await line.told()
        assert told == {0: TAKEN, 1: TAKEN} | dict.fromkeys(range(2, 10), FULL)
        for number, verdict in told.items():
            queue.acknowledged(0, number, verdict)
        moved = queue.take_full()[0]
        assert [each.number for each in moved] == list(range(2, 10))
        pushed = first.dataset.commit(WRITER, str(PARTITION), b"", {0: 2})
        assert pushed is not None
        assert [number for _, number, _ in PLACE.iter_unpack(pushed.places)] == [0, HEAD.size + LENGTH]
        other = second.connect()
        second.dataset.enter(WRITER, str(PARTITION), {0: 2})
        other.push(*(each.number for each in moved))
        second.disk.answer(*[None] * 8)
        assert await other.told() == dict.fromkeys(range(2, 10), TAKEN)
        assert first.holdings.credit.used == second.holdings.credit.used == 0

    asyncio.run(run())


def test_a_gap_that_sending_again_can_not_close_is_an_error() -> None:
    """A worker that lacks what it had taken refuses the first block for ever; gaps after a damaged one close."""
    queue = PushQueue(1 << 20)
    queue.add([block(number) for number in range(5, 10)])
    for _ in range(8):
        for each in queue.promised(len(queue.announce())):
            queue.acknowledged(0, each.number, GAP)
    assert [each.number for each in queue.promised(len(queue.announce()))] == [5, 6, 7, 8, 9]
    with pytest.raises(StorageError, match=r"block 5 of file 0 9 times.*recomputed"):
        queue.acknowledged(0, 5, GAP)


def test_gaps_after_a_damaged_block_are_counted_with_it() -> None:
    """One damaged block in a window of many is one damage, however many were refused for it."""
    queue = PushQueue(1 << 20)
    queue.add([block(number) for number in range(60)])
    for _ in range(8):
        first, *others = queue.promised(len(queue.announce()))
        queue.acknowledged(0, first.number, DAMAGED)
        for each in others:
            queue.acknowledged(0, each.number, GAP)
    for each in queue.promised(len(queue.announce())):
        assert queue.acknowledged(0, each.number, TAKEN) is each
    assert queue.is_empty


def test_a_repeat_is_acknowledged_when_the_block_is_stored() -> None:
    """Its first copy waits for the disk when a new connection sends it again; it may fail yet."""

    async def run() -> None:
        worker = Worker()
        old = worker.connect()
        old.push(0, 1, 2)
        old.session.close()
        line = worker.connect()
        line.push(0, 1, 2)
        assert await line.told() == {}
        worker.disk.answer(None)
        assert await line.told() == {0: REPEAT}
        line.push(0)
        assert await line.told() == {0: REPEAT}
        worker.disk.answer(FAILED, None)
        assert await line.told() == {1: FULL, 2: FULL}
        assert not worker.disk.jobs
        assert worker.holdings.credit.used == 0
        assert worker.dataset.commit(WRITER, str(PARTITION), b"", {0: 1})
        line.push(0, 1)
        assert await line.told() == {0: REPEAT, 1: REPEAT}, "of a writer that has committed nothing is wanted"

    asyncio.run(run())


def test_a_repeat_of_a_writer_that_is_given_up_is_stale() -> None:
    """Its pusher waits for an answer, and gets one."""

    async def run() -> None:
        worker = Worker()
        worker.connect().push(0)
        line = worker.connect()
        line.push(0)
        worker.dataset.discard(WRITER)
        assert await line.told() == {0: STALE}
        worker.disk.answer(None)
        assert await line.told() == {}

    asyncio.run(run())


def test_a_writer_that_uses_no_promise_is_sent_away() -> None:
    """After ten seconds in which nothing has come; one that sends slowly stays, and so does one that owes nothing."""
    worker = Worker()
    idle, slow, silent = (worker.connect() for _ in range(3))
    for line in (slow, silent):
        line.session.want(memoryview(struct.pack("<I", LENGTH)))
    slow.session.allocate(BulkFrame.PUSH, HEAD.size + LENGTH)
    for second in range(0, 22, 2):
        slow.filled += 32 << 10
        for line in (idle, slow, silent):
            line.session.look(100.0 + second)
    assert (idle.ended, slow.ended) == ("", "")
    assert silent.ended == "memory for its blocks was promised, and none has come for 20 s"
    silent.session.close()
    idle.session.close()
    assert worker.holdings.credit.used == charge(LENGTH)


def test_the_names_of_writers_are_within_what_a_beat_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count by their bytes: letters have up to four, and a beat with all of them is one frame."""
    monkeypatch.setattr("penstock.remote.holdings.MOST_ENTERED", 200)
    worker = Worker()
    session = PushSession(worker.holdings, "app", 0)

    def enter(job: str, writer: int) -> None:
        session.open(ask.EnterWriter(PartitionId(DatasetId(job, 0), 0, 0), writer))

    with pytest.raises(ProtocolError, match=r"with 0 files and a name of 1,2\d\d bytes"):
        enter("\N{GRINNING FACE}" * 300, 1)
    for writer in range(3):
        enter("\N{GRINNING FACE}" * 240, writer)
    with pytest.raises(QuotaError, match="200 is the limit"):
        enter("\N{GRINNING FACE}" * 240, 4)
    enter("short", 5)
