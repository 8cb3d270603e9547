# SPDX-License-Identifier: Apache-2.0
"""A disk of a worker hangs: what waits for it goes on elsewhere, and a task waits no longer than it is told to."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.connection.frames import HEADER
from penstock.errors import EnvironmentLostError, PartitionLostError, StorageError
from penstock.link.frames import LinkFrameType, reply_frame
from penstock.link.wire import to_wire
from penstock.machine import disk_threads
from penstock.remote import messages as ask
from penstock.remote.blocks import LEAST_CREDIT
from penstock.remote.merged import Spot
from penstock.remote.merged_disk import WriteJob
from penstock.remote.store import MergedFiles, StoreOptions
from penstock.remote.wire import PeerLogic
from penstock.services.remote import pusher
from penstock.services.remote.fetcher import FetchStream
from penstock.services.remote.push_queue import PushedBlock
from penstock.shuffle import DatasetId, PartitionId
from penstock.testing.waiting import eventually

PARTITION = PartitionId(DatasetId("job", 0), 0, 0)
PATIENCE = 0.1


@pytest.fixture
def goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set it, and the calls for files in the folder `hung` come back."""
    event = threading.Event()
    monkeypatch.setattr(disk_threads, "HANGS_SECONDS", 0.05)
    for name in ("pwrite", "preadv"):
        real = getattr(os, name)

        def hanging(file: int, *arguments: Any, real: Any = real) -> int:
            if os.readlink(f"/proc/self/fd/{file}") == str(tmp_path / "hung" / "1.merging"):  # noqa: PTH115
                if len(arguments) > 2:
                    raise BlockingIOError
                event.wait()
            return int(real(file, *arguments))

        monkeypatch.setattr(os, name, hanging)
    yield event
    event.set()


def test_a_disk_that_hangs_has_no_room_and_keeps_nobody(tmp_path: Path, goes_on: threading.Event) -> None:
    """Blocks and reads that wait for it fail, new files lie on the other disk, its threads' memory stays taken."""

    async def run() -> None:
        files = MergedFiles(StoreOptions((tmp_path / "sound", tmp_path / "hung"), reserve=0))
        verdicts: list[tuple[int, Exception | None]] = []
        free: list[int] = []

        def write(path: int, offset: int) -> None:
            done = lambda error: verdicts.append((path, error))  # noqa: E731
            files.write(WriteJob(Spot(path, offset, 8), memoryview(bytes(8)), done, lambda: free.append(path)))

        for offset in (0, 8, 16):
            write(1, offset)
        write(0, 0)
        await eventually(lambda: (files.look(), len(verdicts) == 4)[1], "blocks to be given up")
        assert {path for path, error in verdicts if error is None} == {0}
        assert all("hangs" in str(error) for path, error in verdicts if path == 1)
        assert sorted(free) == [0, 1, 1], "a thread is in one of them"
        assert [files.placed(path) for path in (0, 1, 2, 3)] == [0, 2, 2, 4]
        write(1, 24)
        await eventually(lambda: len(verdicts) == 5, "a block for a disk that hangs to be refused")
        reads = [asyncio.ensure_future(files.read(Spot(1, 0, 8), memoryview(bytearray(8)))) for _ in range(3)]
        await eventually(lambda: (files.look(), reads[2].done())[1], "a read to be given up")
        with pytest.raises(StorageError, match="hangs"):
            await reads[2]
        room = files.free
        goes_on.set()
        await asyncio.wait(reads[:2])
        await eventually(lambda: len(free) == 5, "the thread to come back")
        await eventually(lambda: (files.look(), files.free > room)[1], "the disk to have room again")
        assert len(verdicts) == 5
        await files.finish()
        files.close()

    asyncio.run(run())


class SilentWay:
    """The way to a worker that answers questions, and then says nothing."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def connect(self, logic: PeerLogic) -> Any:
        """Connect."""

        def answer() -> None:
            if logic.next_frame() is not None:
                body = memoryview(reply_frame(1, to_wire(self._answer))[HEADER.size :])
                logic.receive((LinkFrameType.REPLY, body))

        logic.wake = lambda: asyncio.get_running_loop().call_soon(answer) and None
        return SimpleNamespace(close=logic.connection_lost)


def test_a_reader_waits_for_bytes_so_long_as_it_is_told() -> None:
    """The worker has said what will come, and sends nothing of it."""

    async def run() -> None:
        pages = deque([((1,), (0,))])
        source: Any = SimpleNamespace(pages=pages, dataset="d", writers={1: 0}, located=ask.Located({}, ()))
        stream = FetchStream(source, lambda _: None, PATIENCE)
        way: Any = SilentWay(ask.Reading(b"", 100))
        with pytest.raises(EnvironmentLostError, match="sent nothing for"):
            await stream.read(way, LEAST_CREDIT)

    asyncio.run(run())


@pytest.mark.parametrize("has_blocks", [False, True])
def test_a_writer_waits_for_a_word_so_long_as_it_is_told(has_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks go on at another worker; if the silent one has some already, the partition is lost."""
    asked: list[Any] = []
    located = ask.Located({"w0": "tcp://h:1", "w1": "tcp://h:2"}, (("w0",),))

    async def answer(request: Any, _: float | None = None) -> Any:
        asked.append(request)
        return ask.Located(located.addresses, (("w0", "w1"),)) if isinstance(request, ask.MoveFiles) else located

    settings = SimpleNamespace(retry_timeout=PATIENCE, push_window=1 << 20)
    line: Any = SimpleNamespace(ask=answer, access=SimpleNamespace(settings=settings, own=None, protection=None))
    monkeypatch.setattr(pusher, "Way", lambda *_: SilentWay(ask.Opened(0)))

    async def run() -> None:
        pushing = pusher.Pusher(line, ask.StartPartition(PARTITION, "host", 7), lambda: None)
        await pushing.begin()
        pushing.add([PushedBlock(0, 0, 8, b"", (b"12345678",), (1, 8, 1))])
        silent = vars(pushing)["_workers"]["w0"]
        if has_blocks:
            silent.ends[0] = 1
            await eventually(lambda: pushing.error is not None, "the partition to be lost")
            assert isinstance(pushing.error, PartitionLostError)
            assert "it has taken nothing for 0.1 s" in str(pushing.error)
            assert isinstance(asked[-1], ask.Suspect)
        else:
            await eventually(lambda: "w1" in vars(pushing)["_workers"], "the block to move")
            assert isinstance(asked[-1], ask.MoveFiles)
            assert silent.queue.is_empty
        pushing.close()
        keepers = vars(pushing)["_keepers"]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.wait(keepers)

    asyncio.run(run())
