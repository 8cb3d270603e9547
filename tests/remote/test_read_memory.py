# SPDX-License-Identifier: Apache-2.0
"""A worker's memory for readers: one place in the line for each, and bytes in the order of coming.

Streams and the memory are the real ones; the disk answers when the test says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.connection.protection import Protection
from penstock.errors import ForeignError, PartitionReleasedError
from penstock.remote import messages as ask
from penstock.remote.blocks import BLOCK_BYTES, BlockHead
from penstock.remote.holdings import WorkerHoldings
from penstock.remote.peers import ServiceAccess
from penstock.remote.read_memory import ReadMemory
from penstock.remote.read_page import ReadPage, WantedPage, read_page
from penstock.remote.streams import ReadSession
from penstock.remote.wire import PAIR, BulkFrame
from penstock.testing.waiting import eventually

CAP = 4 << 20
ACCESS = ServiceAccess.of("the secret of manager and workers", Path("/dev/null"), Protection())
DATASET = "job-e0"


class Disk:
    """A store that answers when the test says so."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[None]] = []
        self.places = b""

    def placed(self, path: int) -> int:
        """A new file lies where its number says."""
        return path

    async def page(self, wanted: WantedPage) -> ReadPage:
        """The index says where blocks lie."""
        return read_page(wanted, [(1, 0)], (b"", self.places))

    async def read(self, spot: Any, target: memoryview) -> None:
        """A reader waits for the disk."""
        self.reads.append(asyncio.get_running_loop().create_future())
        await self.reads[-1]


class Line:
    """A reader's connection, over which everything goes at once."""

    def __init__(self, holdings: WorkerHoldings, streams: int) -> None:
        self.sent = 0
        self.session = ReadSession(holdings, "app", ACCESS)
        logic: Any = self
        self.session.logic = logic
        for stream in range(streams):
            self.session.open(ask.OpenReader(stream, DATASET, (1,), bytes(4), 64 << 20))

    def send_rows(self, kind: int, vouched: bytes, parts: Any, sent: Any) -> None:
        """The worker sends bytes."""
        assert kind == BulkFrame.DATA
        self.sent += 1
        sent()


def holdings_with_blocks(disk: Any) -> WorkerHoldings:
    """A worker with eight large blocks of one file."""
    holdings = WorkerHoldings(disk, 4 * CAP)
    dataset = holdings.dataset("app", DATASET)
    dataset.enter(1, "p")
    for number in range(8):
        head = BlockHead(BLOCK_BYTES, 1, 0, number, 0)
        _, spot = dataset.offer(head)
        assert spot is not None
        dataset.stored(head, spot)
    pushed = dataset.commit(1, "p", b"", {0: 8})
    assert pushed is not None
    disk.places = pushed.places
    dataset.settled(1, 1)
    return holdings


def nobody() -> None:
    """The test looks at who waits in the line."""


def test_who_waits_is_served_in_the_order_of_coming() -> None:
    """A small read does not overtake a large one, and freed bytes wake as many as they are enough for."""
    memory, served = ReadMemory(CAP, 0), list[str]()
    assert memory.take("first", CAP, nobody, 0.0)
    for name, nbytes in (("large", CAP), ("small", 10), ("left", 10), ("last", 20)):
        assert not memory.take(name, nbytes, lambda name=name: served.append(name), 0.0)  # type: ignore[misc]
    memory.give("first", 100, 0.0)
    assert served == []
    memory.leave("left", 0.0)
    memory.give("first", CAP - 100, 0.0)
    assert served == ["large"]
    memory.give("large", CAP, 0.0)
    assert served == ["large", "small", "last"]
    memory.give("small", 10, 0.0)
    memory.give("last", 20, 0.0)
    assert memory.used == memory.waiting == 0


def test_who_leaves_the_head_of_the_line_lets_others_go() -> None:
    """The first one wanted more than there was; the second one does not."""
    memory, served = ReadMemory(CAP, 0), list[str]()
    assert memory.take("first", 100, nobody, 0.0)
    assert not memory.take("large", CAP, lambda: served.append("large"), 0.0)
    assert not memory.take("small", 10, lambda: served.append("small"), 0.0)
    memory.leave("large", 0.0)
    assert served == ["small"]


def test_who_stands_still_keeps_nobody_waiting() -> None:
    """The bytes of a reader that takes none of them count apart; it gets no more before it has taken some."""
    memory, served = ReadMemory(CAP, CAP), list[str]()
    assert memory.take("still", CAP, nobody, 0.0)
    assert not memory.take("still", CAP, lambda: served.append("still"), 0.0)
    assert not memory.take("other", CAP, lambda: served.append("other"), 0.5)
    memory.look(0.9)
    assert served == []
    memory.look(1.0)
    assert served == ["other"], "the one before it in the line stands still"
    memory.give("other", CAP, 1.1)
    assert memory.take("other", CAP, nobody, 1.2), "again, without a look"
    memory.give("other", CAP, 1.3)
    memory.give("still", CAP, 5.0)
    assert served == ["other", "still"]


class Readers(RuleBasedStateMachine):
    """Readers that take, give, leave, and stand still, in any order, beside a clock."""

    SIZES = st.integers(1, 10)
    NAMES = st.integers(0, 5)

    def __init__(self) -> None:
        super().__init__()
        self.memory = ReadMemory(20, 10)
        self.now = 0.0
        self.held = [deque[int]() for _ in range(6)]
        self.line: dict[int, int] = {}

    @rule(name=NAMES, nbytes=SIZES)
    def take(self, name: int, nbytes: int) -> None:
        """A reader that does not wait wants bytes."""
        if name in self.line:
            return
        self.line[name] = nbytes
        if self.memory.take(name, nbytes, lambda: self.taken(name), self.now):
            self.taken(name)

    def taken(self, name: int) -> None:
        """It has them."""
        self.held[name].append(self.line.pop(name))

    @rule(name=NAMES)
    def give(self, name: int) -> None:
        """A reader's first bytes have gone."""
        if self.held[name]:
            self.memory.give(name, self.held[name].popleft(), self.now)

    @rule(name=NAMES)
    def leave(self, name: int) -> None:
        """A reader wants no more."""
        self.line.pop(name, None)
        self.memory.leave(name, self.now)

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0]))
    def look(self, seconds: float) -> None:
        """Time passes, and somebody looks; who has nothing waits for those alone that are before him, and move."""
        self.now += seconds
        self.memory.look(self.now)
        if seconds == 1.0 and any(not self.held[name] for name in self.line):
            assert self.memory.used > 20, "all that was held stands still, and there is room beside it"

    @invariant()
    def adds_up(self) -> None:
        """All is within both limits, and counted."""
        assert self.memory.used == sum(map(sum, self.held)) <= 30
        assert self.memory.waiting == len(self.line)

    def teardown(self) -> None:
        """All that is given back is free."""
        for name, held in enumerate(self.held):
            while held:
                self.give(name)
            self.leave(name)
        while any(self.held):
            for name in range(6):
                self.give(name)
        assert self.memory.used == self.memory.waiting == 0


TestReaders = Readers.TestCase


def test_a_stream_waits_for_memory_once_however_often_credit_comes() -> None:
    """A thousand words of credit are one place in the line; what ends leaves it, and the others get all blocks."""

    async def run() -> None:
        disk = Disk()
        holdings = holdings_with_blocks(disk)
        assert holdings.reading.take("test", CAP, nobody, 0.0)
        line, other = Line(holdings, 2), Line(holdings, 1)
        await eventually(lambda: holdings.reading.waiting == 3, "the streams to be opened")
        for _ in range(1000):
            line.session.credit(memoryview(PAIR.pack(0, 100)))
        assert holdings.reading.waiting == 3
        other.session.close()
        assert holdings.reading.waiting == 2
        holdings.reading.give("test", CAP, 0.0)
        answered = 0
        for _ in range(200):
            await asyncio.sleep(0)
            for each in disk.reads[answered:]:
                answered += 1
                each.set_result(None)
        assert (line.sent, other.sent) == (16, 0)
        assert holdings.reading.used == holdings.reading.waiting == 0
        assert 0 < holdings.memory.bytes <= 4 * CAP, "buffers come back, to be used again"
        (user,) = holdings.users.figures()
        assert (user.name, user.figures["bytes"] // BLOCK_BYTES) == ("app", 16)
        assert user.figures["waiting_seconds"] > 0

    asyncio.run(run())


def test_rows_of_another_application_need_the_managers_word() -> None:
    """It is for a user, an owner and a dataset; any other one is refused before anything is looked for."""
    holdings = WorkerHoldings(Disk(), CAP)  # type: ignore[arg-type]
    grant = ACCESS.grant("alice/one", "alice/two", DATASET)

    def opened(application: str, owner: str, dataset: str, word: bytes) -> None:
        session = ReadSession(holdings, application, ACCESS)
        session.open(ask.OpenReader(0, dataset, (1,), b"", CAP, owner, word))

    for wrong in (
        ("bob/one", "alice/two", DATASET, grant),
        ("alice/one", "alice/three", DATASET, grant),
        ("alice/one", "alice/two", "job-e1", grant),
        ("alice/one", "alice/two", DATASET, b""),
    ):
        with pytest.raises(ForeignError, match="may not read"):
            opened(*wrong)
    assert not holdings.datasets
    with pytest.raises(PartitionReleasedError, match="holds nothing here"):
        opened("alice/three", "alice/two", DATASET, grant)


def test_readers_of_one_user_that_stand_still_leave_room_for_others() -> None:
    """However many they are: another user's reader has its bytes at once."""
    memory = ReadMemory(8, 4)
    taken = [memory.take(number, 1, nobody, 0.0, "enemy") for number in range(20)]
    memory.look(10.0)
    assert taken.count(True) == 8
    assert memory.used == 12
    assert memory.take("mine", 2, nobody, 11.0, "bob")
    assert not memory.take("mine", 2, nobody, 11.0, "bob"), "a read at a time, as long as there is no room"
