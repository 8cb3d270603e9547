# SPDX-License-Identifier: Apache-2.0
"""A worker's memory for readers: one place in the line for each, and bytes in the order of coming.

Streams and the budget are the real ones; the disk answers when the test says so.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.connection.protection import Protection
from penstock.errors import ForeignError, PartitionReleasedError
from penstock.remote import messages as ask
from penstock.remote.blocks import BLOCK_BYTES, BlockHead
from penstock.remote.holdings import ReadBudget, WorkerHoldings
from penstock.remote.peers import ServiceAccess
from penstock.remote.streams import ReadSession
from penstock.remote.wire import PAIR, BulkFrame

CAP = 4 << 20
ACCESS = ServiceAccess.of("the secret of manager and workers", Path("/dev/null"), Protection())
DATASET = "job-e0"


class Disk:
    """A store that answers when the test says so."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[None]] = []

    async def read(self, spots: Any, target: memoryview) -> None:
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

    def send_parts(self, kind: int, parts: Any, sent: Any) -> None:
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
    dataset.commit(1, "p", {}, {0: 8})
    return holdings


def test_who_waits_is_served_in_the_order_of_coming() -> None:
    """A small read does not overtake a large one, and freed bytes wake as many as they are enough for."""
    budget, served = ReadBudget(CAP), list[str]()
    assert budget.take("first", CAP, lambda: None)
    for name, nbytes in (("large", CAP), ("small", 10), ("left", 10), ("last", 20)):
        assert not budget.take(name, nbytes, lambda name=name: served.append(name))  # type: ignore[misc]
    budget.give(100)
    assert served == []
    budget.leave("left")
    budget.give(CAP - 100)
    assert served == ["large"]
    budget.give(CAP)
    assert served == ["large", "small", "last"]
    budget.give(30)
    assert budget.used == budget.waiting == 0


def test_who_leaves_the_head_of_the_line_lets_others_go() -> None:
    """The first one wanted more than there was; the second one does not."""
    budget, served = ReadBudget(CAP), list[str]()
    assert budget.take("first", 100, lambda: None)
    assert not budget.take("large", CAP, lambda: served.append("large"))
    assert not budget.take("small", 10, lambda: served.append("small"))
    budget.leave("large")
    assert served == ["small"]


def test_a_stream_waits_for_memory_once_however_often_credit_comes() -> None:
    """A thousand words of credit are one place in the line; what ends leaves it, and the others get all blocks."""

    async def run() -> None:
        disk = Disk()
        holdings = holdings_with_blocks(disk)
        assert holdings.reading.take("test", CAP, lambda: None)
        line, other = Line(holdings, 2), Line(holdings, 1)
        await asyncio.sleep(0)
        for _ in range(1000):
            line.session.credit(memoryview(PAIR.pack(0, 100)))
        assert holdings.reading.waiting == 3
        other.session.close()
        assert holdings.reading.waiting == 2
        holdings.reading.give(CAP)
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
