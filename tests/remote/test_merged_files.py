# SPDX-License-Identifier: Apache-2.0
"""A worker's files: what lies in memory is read without a thread, and all else by one, to the same bytes."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PartitionReleasedError
from penstock.remote.merged import PLACE, Held, MergedFile, Pushed, Spot
from penstock.remote.merged_disk import WriteJob
from penstock.remote.store import MergedFiles, StoreOptions
from penstock.remote.wire import SUM
from penstock.remote.worker_index import CommittedWriter

SIZE = 300_001


def with_files(folder: Path, use: Callable[[MergedFiles], Coroutine[Any, Any, None]]) -> None:
    """Use the files of a worker in this folder, in a loop."""

    async def run() -> None:
        files = MergedFiles(StoreOptions((folder,), reserve=0))
        try:
            await use(files)
        finally:
            files.close()

    asyncio.run(run())


async def write(files: MergedFiles, path: int, data: bytes) -> None:
    """Have a block written, and wait for it."""
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    files.write(WriteJob(Spot(path, 0, len(data)), memoryview(data), done.set_result, lambda: None))
    assert await done is None


async def read(files: MergedFiles, spot: Spot) -> bytes:
    """The bytes of a run."""
    target = memoryview(bytearray(b"x" * spot.size))
    await files.read(spot, target)
    return bytes(target)


@pytest.mark.parametrize("is_cached", [True, False])
def test_bytes_are_those_that_were_written(tmp_path: Path, is_cached: bool) -> None:
    """From memory and from the disk, from any place, in one run of neighbours."""
    data = random.Random(7).randbytes(SIZE)

    async def use(files: MergedFiles) -> None:
        await write(files, 3, data)
        if not is_cached:
            forget(tmp_path / "3.merging")
        assert await read(files, Spot(3, 0, SIZE)) == data
        assert await read(files, Spot(3, 4097, 70_000)) == data[4097:74_097]

    with_files(tmp_path, use)


def test_bytes_in_memory_need_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were just written are read in the loop, by one call."""
    at_once = noted_reads(monkeypatch)

    async def use(files: MergedFiles) -> None:
        await write(files, 3, bytes(SIZE))
        await read(files, Spot(3, 0, SIZE))

    with_files(tmp_path, use)
    if not at_once[0]:
        pytest.skip("this file system can't say what is in memory")
    assert at_once == [SIZE]


@pytest.mark.parametrize("error", [NotImplementedError, OSError])
def test_where_nobody_can_tell_what_is_in_memory_a_thread_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A C library without the call and a file system without the flag give the same bytes."""
    preadv = os.preadv

    def older(*arguments: Any) -> int:
        if len(arguments) > 3:
            raise error
        return preadv(*arguments)

    async def use(files: MergedFiles) -> None:
        await write(files, 3, bytes(SIZE))
        monkeypatch.setattr(os, "preadv", older)
        assert await read(files, Spot(3, 0, SIZE)) == bytes(SIZE)

    with_files(tmp_path, use)


def test_one_turn_of_the_loop_reads_a_few_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many that read at once most are served by threads; what comes in the next turn is read at once again."""
    at_once = noted_reads(monkeypatch)

    async def use(files: MergedFiles) -> None:
        data = random.Random(7).randbytes(1 << 20)
        await write(files, 3, data)
        for _ in range(2):
            at_once.clear()
            found = await asyncio.gather(*(read(files, Spot(3, 0, len(data))) for _ in range(20)))
            assert found == [data] * 20
            if not any(at_once):
                pytest.skip("this file system can't say what is in memory")
            assert sum(at_once) == 4 << 20
            await asyncio.sleep(0)

    with_files(tmp_path, use)


def noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read that succeeds from now on, or 0 for one in a thread."""
    found: list[int] = []
    preadv = os.preadv

    def noted(*arguments: Any) -> int:
        count = preadv(*arguments)
        found.append(count if threading.current_thread() is threading.main_thread() else 0)
        return count

    monkeypatch.setattr(os, "preadv", noted)
    return found


def forget(path: Path) -> None:
    """Have the system read this from the disk the next time."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def test_bytes_that_are_missing_are_nobody_elses(tmp_path: Path) -> None:
    """A file that was cut gives zeroes, which no checksum fits, and not what the memory held before."""

    async def use(files: MergedFiles) -> None:
        await write(files, 1, b"y" * SIZE)
        os.truncate(tmp_path / "1.merging", 100)
        assert await read(files, Spot(1, 0, 400)) == b"y" * 100 + bytes(300)

    with_files(tmp_path, use)


def test_a_commit_after_a_removal_of_its_dataset_stays(tmp_path: Path) -> None:
    """Also one that begins while the removal is under way: the rows that go are those that were there before."""

    def committed(writer: int, path: int) -> CommittedWriter:
        pushed = Pushed(1, SUM.pack(0, 1, 2, 3), PLACE.pack(0, 0, 2), {0: MergedFile(path)})
        return CommittedWriter("app", "data", writer, f"p{writer}", pushed)

    async def use(files: MergedFiles) -> None:
        await write(files, 3, b"ab")
        await files.settle(committed(1, 3))
        files.remove([3], ("app", "data"))
        await files.settle(committed(2, 4))
        await files.finish()
        known = list(files.index.known())
        assert [(each.writers, each.paths) for each in known] == [([(2, "p2", Held(1, 2))], {0: 4})]

    with_files(tmp_path, use)


def test_a_file_that_is_gone_was_released(tmp_path: Path) -> None:
    """Its reader hears so; other files are read on."""

    async def use(files: MergedFiles) -> None:
        await write(files, 1, b"a" * 10)
        await write(files, 2, b"b" * 10)
        files.remove([1], ("application", "dataset"))
        for _ in range(2):
            await write(files, 2, b"b" * 10)  # the thread that writes has removed the file by then
        with pytest.raises(PartitionReleasedError, match="file 1 was removed"):
            await read(files, Spot(1, 0, 10))
        assert await read(files, Spot(2, 0, 10)) == b"b" * 10

    with_files(tmp_path, use)
