# SPDX-License-Identifier: Apache-2.0
"""A read of a worker's file fails once: its reader hears so, no memory stays taken, and the next reader has its rows.

Sessions, holdings and files are the real ones; the system's call fails where the test says so.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StorageError
from penstock.link.control import carried_error, unpack
from penstock.remote import messages as ask
from penstock.remote.blocks import LEAST_CREDIT
from penstock.remote.holdings import WorkerHoldings
from penstock.remote.merged import PLACE, MergedFile, Pushed, Spot
from penstock.remote.merged_disk import WriteJob
from penstock.remote.store import MergedFiles, StoreOptions
from penstock.remote.streams import ReadSession
from penstock.remote.wire import BulkFrame
from penstock.remote.worker_index import CommittedWriter
from penstock.testing.waiting import eventually

DATA = bytes(range(256)) * 4096
WRITER = 7


class Line:
    """A connection that takes everything at once, and what came over it."""

    def __init__(self) -> None:
        self.rows = b""
        self.broken: list[BaseException] = []

    def send_rows(self, _: BulkFrame, __: bytes, parts: tuple[Any, ...], done: Callable[[], None]) -> None:
        """Blocks."""
        self.rows += bytes(parts[0])
        done()

    def send_bulk(self, kind: BulkFrame, body: bytes) -> None:
        """A stream can't go on."""
        assert kind is BulkFrame.BROKEN
        self.broken.append(carried_error(unpack(body[4:])))


@pytest.mark.parametrize("error", [OSError(5, "it fails"), RuntimeError("it fails")], ids=["disk", "fault"])
def test_a_read_that_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """In the loop and in the thread: its stream ends with a StorageError, all others go on."""
    preadv, fails = os.preadv, True

    def failing(*arguments: Any) -> int:
        if fails:
            raise error
        return preadv(*arguments)

    async def run() -> None:
        nonlocal fails
        holdings = WorkerHoldings(MergedFiles(StoreOptions((tmp_path,), reserve=0)), 64 << 20)
        spot = Spot(0, 0, len(DATA))
        written: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        holdings.store.write(WriteJob(spot, memoryview(DATA), written.set_result, lambda: None))
        assert await written is None
        holdings.store.index.add(
            CommittedWriter(
                "app", "rows", WRITER, "p", Pushed(1, b"", PLACE.pack(0, 0, len(DATA)), {0: MergedFile(0)})
            ),
        )
        holdings.restore()
        monkeypatch.setattr(os, "preadv", failing)
        access: Any = None
        session = ReadSession(holdings, "app", access)
        line: Any = Line()
        session.logic = line
        session.open(ask.OpenReader(0, "rows", (WRITER,), struct.pack("<I", 0), LEAST_CREDIT))
        await eventually(lambda: bool(line.broken), "the reader to hear of the failure")
        assert isinstance(line.broken[0], StorageError)
        assert holdings.reading.used == 0
        assert not line.rows
        fails = False
        session.open(ask.OpenReader(0, "rows", (WRITER,), struct.pack("<I", 0), LEAST_CREDIT))
        await eventually(lambda: len(line.rows) == len(DATA), "the rows")
        assert line.rows == DATA
        assert holdings.reading.used == 0
        holdings.store.close()

    asyncio.run(run())
