# SPDX-License-Identifier: Apache-2.0
"""A disk of the host service that hangs keeps its own threads, and nobody else."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from penstock.external import disks
from penstock.external.catalogue import Catalogue
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import Keeper, KeeperPolicy
from penstock.shuffle import DatasetId, PartitionId


def test_a_disk_that_hangs_gets_no_partition_and_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`statvfs` and `mkdir` of one disk never return: partitions begin on the other, and it has a problem later."""
    roots, goes_on = [tmp_path / "sound", tmp_path / "hung"], threading.Event()
    for root in roots:
        root.mkdir()
    catalogue = Catalogue(tmp_path / "catalogue.db")
    monkeypatch.setattr(disks, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(disks, "FRESH_SECONDS", 0.0)
    for name in ("statvfs", "mkdir"):
        real = getattr(os, name)

        def hanging(path: str, *arguments: object, real: object = real) -> object:
            if str(path).startswith(str(roots[1])):
                goes_on.wait()
            return real(path, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(os, name, hanging)

    async def run() -> list[str]:
        goes_on.set()
        keeper = Keeper(catalogue, ServiceFolders(roots, 0), KeeperPolicy(0, 60.0))
        account = keeper.introduce("app", b"k" * 32, 1000)
        goes_on.clear()
        try:
            begun = [await keeper.begin(account, PartitionId(DatasetId("job", 0), n, 0), 1) for n in range(3)]
            monkeypatch.setattr("penstock.machine.disk_threads.HANGS_SECONDS", 0.0)
            problems = [space.problem for space in await keeper.upkeep.disks.spaces()]
        finally:
            goes_on.set()
        for each in begun:
            each.close()
        await keeper.close()
        assert problems == ["", "it hangs"]
        return [Path(each.kept.folder).parents[2].name for each in begun]

    try:
        assert asyncio.run(run()) == ["sound"] * 3
    finally:
        catalogue.close()


def test_files_that_nobody_waits_for_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's connection ends while its files are made: they are closed and removed when they are there."""
    catalogue, goes_on, making = Catalogue(tmp_path / "catalogue.db"), threading.Event(), threading.Event()
    folders = ServiceFolders([tmp_path], 0)
    make = folders.make_files

    def slow(folder: str) -> object:
        making.set()
        goes_on.wait()
        return make(folder)

    monkeypatch.setattr(folders, "make_files", slow)

    async def run() -> None:
        keeper = Keeper(catalogue, folders, KeeperPolicy(0, 60.0))
        account = keeper.introduce("app", b"k" * 32, 1000)
        begin = asyncio.ensure_future(keeper.begin(account, PartitionId(DatasetId("job", 0), 0, 0), 1))
        await asyncio.to_thread(making.wait)
        begin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begin
        goes_on.set()
        await keeper.close()
        assert not account.partitions

    asyncio.run(run())
    catalogue.close()
    assert not list((tmp_path / "data").glob("*/*"))
