# SPDX-License-Identifier: Apache-2.0
"""The index of a worker in the world: a full disk, another version, a file that is damaged."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.remote.merged import Spot
from penstock.remote.worker_index import INDEX_NAME, CommittedWriter, WorkerIndex
from small_disks import small_disk
from underway import listed


def committed(writer: int, spots: int = 1) -> CommittedWriter:
    """A writer with so many blocks in one file."""
    places = [Spot(7, number * 100, 100) for number in range(spots)]
    return CommittedWriter("app", "data", writer, f"p{writer}", {0: (10, 100, 5)}, {0: places})


def kept(folder: Path) -> list[CommittedWriter]:
    """The writers that a worker finds when it is started again."""
    index = WorkerIndex(folder)
    try:
        return list(index.writers())
    finally:
        index.close()


def fill(path: Path) -> None:
    """Take all the room of a disk."""
    with path.open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)):
            pass


def test_a_commit_that_the_disk_has_no_room_for_is_refused_and_leaves_the_others(tmp_path: Path) -> None:
    """After a start the commits that were taken are there, and the refused one is not; with room others are taken."""
    with small_disk(tmp_path / "disk", 1) as disk:
        index = WorkerIndex(disk)
        index.add(committed(1))
        fill(disk / "ballast")
        with pytest.raises(StorageError, match="See that its disk has room"):
            index.add(committed(2, 20_000))
        index.close()
        (disk / "ballast").unlink()
        assert [each.writer for each in kept(disk)] == [1]
        index = WorkerIndex(disk)
        index.add(committed(3))
        index.close()
        assert kept(disk) == [committed(1), committed(3)]


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
