# SPDX-License-Identifier: Apache-2.0
"""The index of a worker in the world: a full disk, another version, a file that is damaged."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import IncompleteDataError, StorageError
from penstock.remote.merged import PLACE, Held, MergedFile, Pushed
from penstock.remote.read_page import ReadPage, WantedPage, read_page
from penstock.remote.wire import READ_SUM, SUM
from penstock.remote.worker_index import INDEX_NAME, CommittedWriter, KnownWriters, WorkerIndex
from small_disks import small_disk
from underway import listed


def add(index: WorkerIndex, writer: int, blocks: int = 1, files: tuple[int, ...] = (0,), at: int = 0) -> int:
    """A writer commits so many blocks of a hundred bytes in each of these files; its first row in the index."""
    sums = b"".join(SUM.pack(file, 10, 100, 5) for file in files)
    places = b"".join(PLACE.pack(file, at + number * 100, 100) for number in range(blocks) for file in files)
    held = sum(1 << file for file in files)
    pushed = Pushed(held, sums, places, {file: MergedFile(file + 7) for file in files})
    begin = index.add(CommittedWriter("app", "data", writer, f"p{writer}", pushed))
    assert begin == index.add(CommittedWriter("app", "data", writer, f"p{writer}", pushed)), "one comes again"
    return begin


def kept(folder: Path) -> list[KnownWriters]:
    """The writers that a worker finds when it is started again."""
    index = WorkerIndex(folder)
    try:
        return list(index.known())
    finally:
        index.close()


def read(index: WorkerIndex, writers: dict[int, Held], *files: int) -> ReadPage:
    """A page of these writers."""
    return index.read(WantedPage(writers, {file: file + 7 for file in files}))


def fill(path: Path) -> None:
    """Take all the room of a disk."""
    with path.open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)):
            pass


def test_a_commit_that_the_disk_has_no_room_for_is_refused_and_leaves_the_others(tmp_path: Path) -> None:
    """After a start the commits that were taken are there, and the refused one is not; with room others are taken."""
    with small_disk(tmp_path / "disk", 1) as disk:
        index = WorkerIndex(disk)
        add(index, 1)
        fill(disk / "ballast")
        with pytest.raises(StorageError, match="See that its disk has room"):
            add(index, 2, 20_000)
        index.close()
        (disk / "ballast").unlink()
        assert [writer for writer, _, _ in kept(disk)[0].writers] == [1]
        index = WorkerIndex(disk)
        add(index, 3)
        index.close()
        writers = [(1, "p1", Held(1, 1)), (3, "p3", Held(1, 2))]
        assert kept(disk) == [KnownWriters("app", "data", writers, {0: 7})]


def test_a_reader_gets_the_blocks_of_its_writers_and_files_and_each_writers_sums(tmp_path: Path) -> None:
    """In the order in which they lie, neighbours together, whatever lies between; an error where a row is gone."""
    index = WorkerIndex(tmp_path)
    held = 1 | 2 | 1 << 15 | 1 << 16 | 1 << 40
    added = {
        writer: Held(held, add(index, writer, 2, (0, 1, 15, 16, 40), at * 200))
        for at, writer in enumerate((5, 7, 2**62))
    }
    all_files = {writer: added[writer] for writer in (5, 2**62)}
    page = read(index, all_files, 16, 1, 3)
    assert sorted(READ_SUM.iter_unpack(page.sums)) == [(5, 20, 200, 10), (2**62, 20, 200, 10)]
    assert page.size == 2 * 2 * 2 * 100
    assert [(spot.path, spot.offset, spot.size) for spot in page.runs()] == [
        *[(8, 0, 200), (8, 400, 200)],
        *[(23, 0, 200), (23, 400, 200)],
    ]
    places = b"".join(PLACE.pack(0, number << 20, 1 << 20) for number in range(5))
    long = read_page(WantedPage({1: Held(1, 1)}, {0: 7}), [(1, 0)], (b"", places))
    assert [spot.size >> 20 for spot in long.runs()] == [2, 2, 1], "a run is no longer than the largest block"
    assert read(index, {5: added[5]}, 2).size == 0
    index.drop_writer("app", "data", 5)
    assert not index.clean()
    with pytest.raises(IncompleteDataError, match="has lost blocks of writer 5"):
        read(index, {5: added[5]}, 0)
    assert read(index, {7: added[7]}, 0, 16).size == 2 * 2 * 100
    index.drop("app", "data")
    assert not list(index.known())
    assert not index.clean()
    index.close()
    assert kept(tmp_path) == []


def test_a_start_takes_no_longer_and_no_more_memory_with_more_blocks(tmp_path: Path) -> None:
    """A start finds as much of a writer with many blocks as of one with few: a name and a bit for each file."""
    found = []
    for blocks in (1, 500):
        folder = tmp_path / str(blocks)
        folder.mkdir()
        index = WorkerIndex(folder)
        add(index, 1, blocks, tuple(range(100)))
        index.close()
        (known,) = kept(folder)
        found.append((known.writers, known.paths))
    assert found[0] == found[1] == ([(1, "p1", Held((1 << 100) - 1, 1))], {file: file + 7 for file in range(100)})


def test_an_index_of_another_version_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """With its path and what to do; nothing of it is changed."""
    WorkerIndex(tmp_path).close()
    path = tmp_path / INDEX_NAME
    base = sqlite3.connect(path)
    base.execute("pragma user_version = 99")
    base.close()
    with pytest.raises(StorageError, match="is of version 99"):
        WorkerIndex(tmp_path)
    for left in listed(tmp_path, f"{INDEX_NAME}*"):
        left.unlink()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match="can't be used"):
        WorkerIndex(tmp_path)
    assert path.read_bytes() == b"no database" * 1000
