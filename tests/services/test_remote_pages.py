# SPDX-License-Identifier: Apache-2.0
"""A task and a driver before a `remote` service: questions in pages, within one credit, and releases told again."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash

from penstock.errors import ControlError, ProtocolError
from penstock.remote import messages as ask
from penstock.remote.blocks import HEAD, LEAST_CREDIT, BlockHead
from penstock.remote.wire import PAIR, READ_SUM, BulkFrame, PeerLogic
from penstock.services.remote import service
from penstock.services.remote.fetcher import Fetched, FetchStream, _Source
from penstock.services.remote.service import RemoteMaster
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId

DATA = bytes(8)
LOST = PartitionId(DatasetId("j", 0), 0, 1)
BLOCK = BlockHead(len(DATA), 7, 0, 0, xxhash.xxh3_64_intdigest(DATA)).packed() + DATA


class Worker:
    """A way to a worker that gives one block for each page, and keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[ask.OpenReader] = []
        self.said: list[tuple[int, int]] = []

    async def connect(self, logic: PeerLogic) -> Any:
        """Connect."""
        core: Any = logic

        def answer(asked: ask.OpenReader, answered: Any) -> None:
            self.asked.append(asked)
            answered(ask.Reading(READ_SUM.pack(7, 1, 8, 5), len(BLOCK)))
            body = memoryview(PAIR.pack(asked.stream, 0) + BLOCK)
            asyncio.get_running_loop().call_soon(core._bulk[BulkFrame.DATA], body)

        core.ask = answer
        core.send_bulk = lambda _, body: self.said.append(PAIR.unpack(body))
        return SimpleNamespace(close=lambda: None)


def test_a_wide_reader_asks_page_by_page_within_one_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No question is larger than a worker answers, and what the task has not taken is no credit of the next page."""
    monkeypatch.setattr(ask, "MOST_READ", 4)
    taken: list[Fetched] = []
    worker = Worker()

    async def run() -> _Source:
        source = _Source("w0", "tcp://h:1", list(range(5)), {7: 0, 8: 1}, "d", ask.Located({}, ()))
        way: Any = worker
        await FetchStream(source, taken.append, 10.0).read(way, LEAST_CREDIT + 1000)
        return source

    source = asyncio.run(run())
    files = [struct.unpack(f"<{len(each.files) // 4}I", each.files) for each in worker.asked]
    assert files == [(0, 1), (2, 3), (4,)]
    assert [each.stream for each in worker.asked] == [0, 1, 2]
    size = HEAD.size + len(DATA)
    assert [each.credit for each in worker.asked] == [LEAST_CREDIT + 1000 - number * size for number in range(3)]
    assert source.sums == {0: [EndOfPartition(1, 8, 5)] * 3}
    assert len(taken) == 3


def test_a_release_that_the_manager_has_not_heard_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its next answer, after the losses that this tells; one that it refuses is not told again."""
    monkeypatch.setattr(service, "AGAIN_SECONDS", 0.0)
    told: list[Any] = []

    async def run() -> None:
        is_there, done = False, asyncio.Event()

        async def answer(request: Any, _: float | None = None) -> Any:
            if not is_there:
                raise ControlError("nobody answers")
            if isinstance(request, ask.WatchLosses):
                if request.last == 2:
                    done.set()
                    await asyncio.Event().wait()
                return ask.Losses(request.last + 1, (LOST,), "it went")
            told.append(request)
            if request == ask.EndJob("refused"):
                raise ProtocolError("no such name")
            return None

        master: Any = object.__new__(RemoteMaster)
        master._client = SimpleNamespace(ask=answer)
        master._jobs = {"j": SimpleNamespace(report_lost_partitions=lambda *lost: told.append(lost))}
        master._untold = []
        for request in (ask.EndJob("refused"), ask.EndJob("a"), ask.DropPartitions(())):
            await master._let_go(request)
        assert told == []
        is_there = True
        watching = asyncio.ensure_future(master._watch())
        await done.wait()
        watching.cancel()

    asyncio.run(run())
    lost = [LOST], "it went"
    assert told == [lost, ask.EndJob("refused"), ask.EndJob("a"), ask.DropPartitions(()), lost]
