# SPDX-License-Identifier: Apache-2.0
"""The folders of a worker at its start: what it removes was never anybody's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.errors import PartitionReleasedError, SettingError
from penstock.remote.merged import BUCKET, PLACE, MergedFile, Pushed, Spot
from penstock.remote.merged_disk import WriteJob
from penstock.remote.store import MergedFiles, StoreOptions
from penstock.remote.worker_folders import sweep
from penstock.remote.worker_index import INDEX_NAME, CommittedWriter

SIZE = 100


async def written(files: MergedFiles, path: int, *, commits: bool) -> None:
    """Have a block in a file, and its writer commit."""
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    spot = Spot(path, 0, SIZE)
    files.write(WriteJob(spot, memoryview(bytes(SIZE)), done.set_result, lambda: None))
    assert await done is None
    if commits:
        file = path * BUCKET
        pushed = Pushed(1 << file, b"", PLACE.pack(file, 0, SIZE), {file: MergedFile(path)})
        await files.settle(CommittedWriter("app", "data", path, "p", pushed))


def found(*folders: Path) -> set[str]:
    """The names of files of rows."""
    return {each.name for folder in folders for each in folder.glob("*.merg*")}


def start(*folders: Path, reads: int | None = None) -> set[str]:
    """A worker starts, reads a file, and is killed: what lies there then."""

    async def run() -> None:
        files = MergedFiles(StoreOptions(folders, reserve=0))
        try:
            files.index.begin()
            files.find({path for each in files.index.known() for path in each.paths.values()})
            if reads is not None:
                await files.read(Spot(reads, 0, SIZE), memoryview(bytearray(SIZE)))
        finally:
            files.close()

    asyncio.run(run())
    return found(*folders)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two folders of a worker: two files with rows of a commit, two without."""
    folders = [tmp_path / "a", tmp_path / "b"]
    start(*folders)

    async def run() -> None:
        files = MergedFiles(StoreOptions(tuple(folders), reserve=0))
        for path in range(4):
            await written(files, path, commits=path < 2)
        files.close()

    asyncio.run(run())
    assert found(*folders) == {"0.merged", "1.merged", "2.merging", "3.merging"}
    return folders


def test_what_was_committed_stays_whatever_is_mounted(folders: list[Path], tmp_path: Path) -> None:
    """In another order, without one disk, without the other: rows come back, and are lost meanwhile."""
    a, b = folders
    assert start(b, a, reads=1) == {"0.merged", "1.merged"}
    for away, reads in ((b, 0), (a, None)):
        away.rename(tmp_path / "away")
        start(a, b, reads=reads)
        if away is b:
            with pytest.raises(OSError, match="lies in none of this worker's folders") as lost:
                start(a, b, reads=1)
            assert not isinstance(lost.value, PartitionReleasedError)
        for left in sorted(away.glob("*"), reverse=True):
            left.unlink()
        away.rmdir()
        (tmp_path / "away").rename(away)
    assert start(a, b, reads=0) == {"0.merged", "1.merged"}


def test_no_file_gets_the_number_of_one_whose_disk_is_away(folders: list[Path], tmp_path: Path) -> None:
    """Else two have it when the disk is back, and one is read, or removed, for the other."""
    a, b = folders
    start(a, b)
    b.rename(tmp_path / "away")

    async def run() -> tuple[set[int], int]:
        files = MergedFiles(StoreOptions((a, b), reserve=0))
        named = {path for each in files.index.known() for path in each.paths.values()}
        following, _ = files.find(named)
        files.close()
        return named, following

    named, following = asyncio.run(run())
    assert named == {0, 1}
    assert following == 2


def test_files_that_the_index_does_not_name_stay(folders: list[Path]) -> None:
    """It may be an old copy; where it is gone, nothing starts."""
    a, b = folders
    index = {each: each.read_bytes() for each in a.glob(f"{INDEX_NAME}*")}

    async def run() -> None:
        files = MergedFiles(StoreOptions((a, b), reserve=0))
        await written(files, 5, commits=True)
        files.close()

    asyncio.run(run())
    for each in a.glob(f"{INDEX_NAME}*"):
        each.unlink()
    with pytest.raises(SettingError, match=r"a is a folder of a remote worker whose index.*Nothing was removed"):
        start(a, b)
    for path, data in index.items():
        path.write_bytes(data)
        path.chmod(0o600)
    assert start(a, b) == {"0.merged", "1.merged", "5.merged"}


def test_a_worker_that_leaves_sweeps_its_own_files_alone(tmp_path: Path) -> None:
    """An operator's copies of its index stay, and so do files of other names."""
    others = [tmp_path / f"{INDEX_NAME}.monday", tmp_path / f"{INDEX_NAME}-monday", tmp_path / "notes.merging"]
    start(tmp_path)
    for each in (*others, tmp_path / "7.merging"):
        each.touch()
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) - {tmp_path / "lock"} == set(others)
