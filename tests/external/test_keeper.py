# SPDX-License-Identifier: Apache-2.0
"""A host service whose index can't be written, or that is killed: its answers and its next start agree."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.external.accounts import Account
from penstock.external.catalogue import Catalogue
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import Keeper, KeeperPolicy
from penstock.external.keys import ApplicationKey
from penstock.external.requests import CommitPartition, FindRange, KeepByName, KeptState
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId

KEY = b"k" * 32
NAME = "numbers"


class Services:
    """The services over a folder, one after the other: each is killed when the next one starts."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._catalogue: Catalogue | None = None

    def start(self) -> tuple[Keeper, Account]:
        """The next one, with an application."""
        self.kill()
        self._catalogue = Catalogue(self._root / "catalogue.db")
        keeper = Keeper(self._catalogue, ServiceFolders([self._root], 0), KeeperPolicy(0, 60.0))
        return keeper, keeper.introduce("app", KEY, 1000)

    def kill(self) -> None:
        """It does nothing more."""
        if self._catalogue is not None:
            self._catalogue.close()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Those of this test."""
    services = Services(tmp_path)
    yield services
    services.kill()


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    """An index without a service."""
    catalogue = Catalogue(tmp_path / "catalogue.db")
    yield catalogue
    catalogue.close()


@contextmanager
def refusing(root: Path, action: str) -> Iterator[None]:
    """Have SQLite refuse this action, as it does on a full disk."""
    base = sqlite3.connect(root / "catalogue.db", isolation_level=None)
    base.execute(f"create trigger full before {action} begin select raise(abort, 'disk is full'); end")
    try:
        yield
    finally:
        base.execute("drop trigger full")
        base.close()


def result(number: int, description: bytes) -> KeepByName:
    """A result, with a key of its own."""
    return KeepByName(NAME, bytes([number]) * 32, description, ())


def test_a_result_that_was_replaced_does_not_come_back(services: Services, tmp_path: Path) -> None:
    """If its rows can't go, the new one is refused, and says so; after the next start it is the same."""
    keeper, account = services.start()
    keeper.keep(account, result(1, b"old"))
    with refusing(tmp_path, "delete on applications"), pytest.raises(StorageError, match="disk is full"):
        keeper.keep(account, result(2, b"new"))
    assert keeper.find_kept(account, NAME).description == b"old"
    keeper, account = services.start()
    assert keeper.find_kept(account, NAME).description == b"old"
    keeper.keep(account, result(2, b"new"))
    keeper, account = services.start()
    assert keeper.find_kept(account, NAME).description == b"new"
    assert [each.description for each in keeper.accounts if each.kept] == [b"new"]


def test_a_result_whose_rows_went_late_does_not_come_back(services: Services, tmp_path: Path) -> None:
    """It was over while the disk was full: the next one of its name takes its place in the index all the same."""
    keeper, account = services.start()
    keeper.keep(account, result(1, b"old"))
    old = keeper.accounts.kept(NAME, 1000)
    assert old is not None
    with refusing(tmp_path, "delete on applications"):
        keeper.end(old)
    keeper.keep(account, result(2, b"new"))
    keeper, _ = services.start()
    assert [each.description for each in keeper.accounts if each.kept] == [b"new"]


def test_the_index_has_one_result_of_a_name(catalogue: Catalogue) -> None:
    """A user's second one is refused; another user's is another result, and nameless ones are many."""
    keys = [ApplicationKey("app", bytes([number]) * 32) for number in range(5)]
    catalogue.add_application(Account(keys[0], 1000, kept=NAME))
    with pytest.raises(StorageError):
        catalogue.add_application(Account(keys[1], 1000, kept=NAME))
    catalogue.add_application(Account(keys[2], 1001, kept=NAME))
    for key in keys[3:]:
        catalogue.add_application(Account(key, 1000))


def test_an_application_goes_whole_or_not_at_all(catalogue: Catalogue, tmp_path: Path) -> None:
    """Its row can't go: then the rows of its partitions are there as well."""
    account = Account(ApplicationKey("app", KEY), 1000)
    catalogue.add_application(account)
    catalogue.add(account, PartitionId(DatasetId("job", 0), 0, 0), 1)
    with refusing(tmp_path, "delete on applications"), pytest.raises(StorageError, match="disk is full"):
        catalogue.remove_application(account)
    assert [len(each.numbers) for each in catalogue.accounts()] == [1]
    catalogue.remove_application(account)
    assert not list(catalogue.accounts())


def test_a_partition_is_there_when_its_row_is(services: Services, tmp_path: Path) -> None:
    """Its row can't be written: the commit says so, and it has failed, with the room and the files that it had."""

    async def run() -> str:
        keeper, account = services.start()
        partition = PartitionId(DatasetId("job", 0), 0, 0)
        begun = await keeper.begin(account, partition, 1)
        os.write(begun.data, bytes(1000))
        begun.close()
        folder, commit = begun.kept.folder, CommitPartition(begun.kept.number, (EndOfPartition(0, 0, 0),))
        with refusing(tmp_path, "update on partitions"), pytest.raises(StorageError, match="disk is full"):
            await keeper.commit(account, commit)
        found = await keeper.find(account, FindRange(partition, 0, 1))
        assert found.state is KeptState.FAILED
        assert "disk is full" in found.cause
        assert account.used == 0
        await keeper.close()
        _, account = services.start()
        assert [each.state for each in account.numbers.values()] == [KeptState.FAILED]
        return folder

    assert not Path(asyncio.run(run())).exists()


def test_a_service_starts_on_a_full_disk(services: Services, tmp_path: Path) -> None:
    """The rows of what its former one was writing follow when there is room."""

    async def run() -> str:
        keeper, account = services.start()
        begun = await keeper.begin(account, PartitionId(DatasetId("job", 0), 0, 0), 1)
        begun.close()
        with refusing(tmp_path, "update on partitions"):
            keeper, account = services.start()
            assert account.numbers[begun.kept.number].state is KeptState.FAILED
        await keeper.close()
        return begun.kept.folder

    assert not Path(asyncio.run(run())).exists()
