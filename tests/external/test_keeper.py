# SPDX-License-Identifier: Apache-2.0
"""A host service that is killed, or whose index is lost or can't be written: its answers and next start agree."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from host_services import ENDS, KEY, NAME, Services, begun, found, identity, keep, written
from penstock.connection.descriptors import own_descriptors
from penstock.errors import QuotaError, SettingError, StorageError
from penstock.external.accounts import Account, AccountRole, KeptPartition
from penstock.external.adoption import adopt, rebuild_index
from penstock.external.catalogue import Catalogue
from penstock.external.keys import ApplicationKey
from penstock.external.requests import (
    CommitPartition,
    FindRange,
    KeptState,
)
from penstock.machine.owned_folders import ID_NAME


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Those of this test."""
    services = Services(tmp_path)
    yield services
    services.close()


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


def test_a_result_that_was_replaced_does_not_come_back(services: Services, tmp_path: Path) -> None:
    """If it can't be told in the index, the new one is refused, and says so; after the next start it is the same."""

    async def run() -> None:
        keeper, account = await services.start()
        await keep(keeper, account, 1)
        with refusing(tmp_path, "update on applications"), pytest.raises(StorageError, match="disk is full"):
            await keep(keeper, account, 2)
        assert await found(keeper, account) == b"1"
        keeper, account = await services.start()
        assert await found(keeper, account) == b"1"
        with refusing(tmp_path, "delete on applications"):
            await keep(keeper, account, 3)
        keeper, account = await services.start()
        assert await found(keeper, account) == b"3"
        await keep(keeper, account, 4)
        assert [each.role for each in keeper.accounts if each.kept] == [AccountRole.CURRENT]
        await keeper.close()

    asyncio.run(run())


def test_the_index_has_one_current_result_of_a_name(catalogue: Catalogue) -> None:
    """A user's second one is refused; another user's is another result, and those that are not current are many."""
    keys = [ApplicationKey("app", bytes([number]) * 32) for number in range(5)]
    current = AccountRole.CURRENT
    catalogue.add_application(Account(keys[0], 1000, kept=NAME, role=current))
    with pytest.raises(StorageError):
        catalogue.add_application(Account(keys[1], 1000, kept=NAME, role=current))
    catalogue.add_application(Account(keys[2], 1001, kept=NAME, role=current))
    for key in keys[3:]:
        catalogue.add_application(Account(key, 1000, kept=NAME, role=AccountRole.FORMER))


def test_an_application_goes_whole_or_not_at_all(catalogue: Catalogue, tmp_path: Path) -> None:
    """Its row can't go: then the rows of its partitions are there as well."""
    account = Account(ApplicationKey("app", KEY), 1000)
    catalogue.add_application(account)
    catalogue.add(account, KeptPartition(0, identity(0), 1, KeptState.WRITING))
    with refusing(tmp_path, "delete on applications"), pytest.raises(StorageError, match="disk is full"):
        catalogue.remove_application(account)
    assert [len(each.numbers) for each in catalogue.accounts()] == [1]
    catalogue.remove_application(account)
    assert not list(catalogue.accounts())


def test_a_partition_is_there_when_its_row_is(services: Services, tmp_path: Path) -> None:
    """Its row can't be written: the commit says so, and it has failed, with the room and the files that it had."""

    async def run() -> Path:
        keeper, account = await services.start()
        each = await begun(keeper, account, 0)
        folder, commit = Path(each.kept.folder), CommitPartition(each.kept.number, ENDS)
        with refusing(tmp_path, "update on partitions"), pytest.raises(StorageError, match="disk is full"):
            await keeper.commit(account, commit)
        there = await keeper.find(account, FindRange(identity(0), 0, 1))
        assert there.state is KeptState.FAILED
        assert "disk is full" in there.cause
        assert account.used == 0
        await keeper.close()
        _, account = await services.start()
        assert [kept.state for kept in account.numbers.values()] == [KeptState.FAILED]
        return folder

    assert not asyncio.run(run()).exists()


def test_a_service_starts_on_a_full_disk(services: Services, tmp_path: Path) -> None:
    """The rows of what its former one was writing follow when there is room."""

    async def run() -> Path:
        keeper, account = await services.start()
        each = await begun(keeper, account, 0)
        with refusing(tmp_path, "update on partitions"):
            keeper, account = await services.start()
            assert account.numbers[each.kept.number].state is KeptState.FAILED
        await keeper.close()
        return Path(each.kept.folder)

    assert not asyncio.run(run()).exists()


def test_a_start_removes_what_the_index_names_and_nothing_else(services: Services, tmp_path: Path) -> None:
    """Files that were being written, or were to go when the service was killed, go; others stay."""

    async def run() -> tuple[list[Path], list[Path]]:
        keeper, account = await services.start()
        unfinished = Path((await begun(keeper, account, 0)).kept.folder)
        there, doomed = [await written(keeper, account, number) for number in (1, 2)]
        services.kill()
        base = sqlite3.connect(tmp_path / "catalogue.db", isolation_level=None)
        base.execute("insert into doomed values (?)", (str(doomed),))
        base.execute("delete from partitions where place = 2")
        base.close()
        foreign = tmp_path / "data" / there.name[:2] / f"{there.name[:2]}{0:022x}"
        for each in (foreign, there):
            each.mkdir(exist_ok=True)
            (each / "notes").touch()
        keeper, account = await services.start()
        before = [each for each in (unfinished, there, doomed, foreign) if each.exists()]
        await keeper.release(account, [identity(1)])
        await keeper.close()
        return before, [each for each in (there, foreign) if list(each.iterdir()) == [each / "notes"]]

    before, after = asyncio.run(run())
    assert before == after


def test_what_is_complete_stays_whatever_an_old_index_says(services: Services, tmp_path: Path) -> None:
    """It was being written when the copy was made; another one was not there at all."""

    async def run() -> None:
        keeper, account = await services.start()
        old = await begun(keeper, account, 0)
        copies = {each: each.read_bytes() for each in (tmp_path / "catalogue.db", tmp_path / "catalogue.db-wal")}
        await keeper.commit(account, CommitPartition(old.kept.number, ENDS))
        newer = await written(keeper, account, 1)
        services.kill()
        for path, data in copies.items():
            path.write_bytes(data)
            path.chmod(0o600)
        keeper, account = await services.start()
        assert [each.state for each in account.numbers.values()] == [KeptState.THERE]
        assert newer.exists()
        await keeper.close()

    asyncio.run(run())


@pytest.fixture
def pair(services: Services, tmp_path: Path) -> list[Path]:
    """Two folders of a service, with four partitions of which two are kept, and a partition of the application."""
    pair = [tmp_path / "a", tmp_path / "b"]

    async def run() -> None:
        keeper, account = await services.start(*pair)
        for number in range(5):
            await written(keeper, account, number)
        await keep(keeper, account, 1, [0, 1])
        await keep(keeper, account, 2, [2, 3])
        await keeper.close()

    asyncio.run(run())
    services.kill()
    return pair


def held(services: Services, *folders: Path) -> tuple[bytes, int, int]:
    """Start a service: what is kept, the partitions of it that are there, and those of the application."""

    async def run() -> tuple[bytes, int, int]:
        keeper, account = await services.start(*folders)
        described = await found(keeper, account)
        kept = keeper.accounts.kept(NAME, 1000)
        numbers = [] if kept is None else keeper.held(kept).partitions
        answer = described, len(numbers), len(keeper.held(account).partitions)
        await keeper.close()
        return answer

    try:
        return asyncio.run(run())
    finally:
        services.kill()


def test_an_index_is_made_again_out_of_the_folders(services: Services, pair: list[Path]) -> None:
    """When an operator says so, and not before: what was kept is found by its name, and rows by their application."""
    for left in pair[0].glob("catalogue.db*"):
        left.unlink()
    with pytest.raises(SettingError, match=r"catalogue\.db.*--rebuild-index\. Nothing was removed"):
        asyncio.run(services.start(*pair))
    assert "with 3 partitions of 2 applications" in rebuild_index(pair)
    assert held(services, *pair) == (b"2", 2, 1)
    with pytest.raises(SettingError, match="no index is rebuilt"):
        rebuild_index(pair)


def test_folders_come_and_go_and_nothing_is_lost(services: Services, pair: list[Path], tmp_path: Path) -> None:
    """In another order all is there; without the first one nobody is told that nothing is kept."""
    a, b = pair
    assert held(services, b, a) == (b"2", 2, 1)
    a.rename(tmp_path / "away")
    with pytest.raises(StorageError, match="a folder of another index"):
        held(services, a, b)
    shutil.rmtree(a)
    (tmp_path / "away").rename(a)
    b.rename(tmp_path / "away")
    assert held(services, a, b)[0] == b"2", "those at the other disk are lost until it is back"
    shutil.rmtree(b)
    (tmp_path / "away").rename(b)
    assert held(services, a, b) == (b"2", 2, 1)


def test_a_disk_that_is_unmounted_while_the_service_runs_gets_nothing(services: Services, tmp_path: Path) -> None:
    """Its mount point is on another disk: partitions begin elsewhere, or are refused."""
    a, b = tmp_path / "a", tmp_path / "b"

    async def run() -> None:
        keeper, account = await services.start(a, b)
        b.rename(tmp_path / "away")
        b.mkdir()
        for number in range(4):
            with suppress(StorageError):
                assert (await written(keeper, account, number)).is_relative_to(a)
        await keeper.close()

    asyncio.run(run())
    assert list(a.glob("data/*/*"))
    assert not list(b.iterdir())


def test_folders_of_a_version_without_ids_are_adopted(services: Services, pair: list[Path]) -> None:
    """By a command alone; then all is there as it was, and the index could be made again."""
    a, b = pair
    held(services, a, b)
    for each in (*a.glob(f"**/{ID_NAME}"), *b.glob(f"**/{ID_NAME}"), *a.glob("data/*/*/about"), *b.glob("**/about")):
        each.unlink()
    with sqlite3.connect(a / "catalogue.db") as base:
        for statement in (
            "drop table service",
            "drop table doomed",
            "drop index results",
            "alter table applications add column description blob",
            "update applications set description = x'32' where kept <> ''",
            "alter table applications drop column role",
            "alter table applications drop column folder",
            "alter table applications drop column made",
            "create unique index results on applications (user, kept) where kept <> ''",
            "pragma user_version = 3",
        ):
            base.execute(statement)
    base.close()
    with pytest.raises(StorageError, match="--adopt"):
        asyncio.run(services.start(a, b))
    assert "4 words were written" in adopt([a, b])
    assert held(services, a, b) == (b"2", 2, 1)
    for left in a.glob("catalogue.db*"):
        left.unlink()
    rebuild_index(pair)
    assert held(services, a, b) == (b"2", 2, 1)


def test_a_user_has_so_many_applications_and_partitions(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with nothing here goes for the next one; where all have something, that one is refused. Others go on."""
    monkeypatch.setattr("penstock.external.keeper.MOST_APPLICATIONS", 3)

    async def run() -> None:
        keeper, first = await services.start()
        await written(keeper, first, 0)
        keys = [bytes([number]) * 32 for number in range(10)]
        for key in keys:
            last = await keeper.introduce("idle", key, 1000)
        assert len(keeper.accounts) == 3
        assert keeper.accounts.find(first.key.name) is first
        first.connections = last.connections = 1
        await keep(keeper, first, 11, [0])
        (await keeper.introduce("other", b"o" * 32, 1000)).connections = 1
        with pytest.raises(QuotaError, match="user 1000 has 3 applications"):
            await keeper.introduce("idle", keys[0], 1000)
        await keeper.introduce("idle", keys[0], 1001)
        known = 1 + 1 + 3  # a result with a partition, and applications
        keeper.accounts.refuse_too_many(1000, known + 1)
        with pytest.raises(QuotaError, match=f"{known} partitions and results"):
            keeper.accounts.refuse_too_many(1000, known)
        await keeper.close()

    asyncio.run(run())


def test_a_commit_comes_in_pieces_and_partitions_are_listed_in_pages(services: Services) -> None:
    """Many subpartitions, and many partitions."""

    async def run() -> None:
        keeper, account = await services.start()
        made = await keeper.begin(account, identity(0), 5)
        made.close()
        for piece in (2, 2, 1):
            done = await keeper.commit(account, CommitPartition(made.kept.number, ENDS * piece, piece == 2))
            assert done == (piece == 1)
        await written(keeper, account, 1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("penstock.external.keeper.PIECE_PARTITIONS", 1)
            pages = [keeper.held(account, after) for after in (0, 1, 2)]
        assert [[each.index for each in page.partitions] for page in pages] == [[0], [1], []]
        assert [page.last for page in pages] == [1, 2, 0]
        await keeper.close()

    asyncio.run(run())


def test_bytes_that_are_written_after_the_end_are_nobodys_and_are_cut_off(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that has kept its descriptors writes into a file that is no partition's, as long as it has it open."""
    monkeypatch.setattr("penstock.external.left_open.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("penstock.external.left_open.MOST_OPEN", 2)
    looked = asyncio.Event()

    async def run() -> None:
        keeper, account = await services.start()
        left_open = keeper.upkeep.left_open
        look = left_open.looked
        monkeypatch.setattr(left_open, "looked", lambda *found: (look(*found), looked.set()))
        made = await keeper.begin(account, identity(0), 1)
        os.write(made.data, b"rows")
        os.close(made.index)
        await keeper.commit(account, CommitPartition(made.kept.number, ENDS))
        got = memoryview(bytearray(4))
        await keeper.read(account, made.kept.number, 0, got)
        assert bytes(got) == b"rows"
        failed = await keeper.begin(account, identity(1), 1)
        os.close(failed.index)
        keeper.give_up(account, failed.kept.number, "it says so")
        for data in (made.data, failed.data):
            os.pwrite(data, bytes(1 << 20), 0)
            while os.fstat(data).st_size:
                looked.clear()
                await looked.wait()
        with pytest.raises(QuotaError, match="have 2 files of this host's shuffle service open"):
            await keeper.begin(account, identity(2), 1)
        for data in (made.data, failed.data):
            os.close(data)
        while left_open._counts:
            looked.clear()
            await looked.wait()
        await written(keeper, account, 2)
        assert (Path(made.kept.folder) / "data.0").stat().st_size == 4
        assert account.used < 10_000
        await keeper.close()

    asyncio.run(run())


def test_a_question_about_many_is_answered_in_turns_with_others(services: Services) -> None:
    """Others have their turns while 1,000 partitions are released, and while an application ends."""

    async def run() -> list[int]:
        keeper, account = await services.start()
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        going = asyncio.ensure_future(others())
        await keeper.release(account, map(identity, range(1000)))
        found = [turns]
        for number in range(1, 1001):
            account.add(KeptPartition(number, identity(number), 1, KeptState.RELEASED))
        await keeper.end(account)
        found.append(turns - found[0])
        going.cancel()
        await keeper.close()
        return found

    assert min(asyncio.run(run())) >= 4


@pytest.mark.parametrize(("most", "told"), [(200, "needs 256"), (1000, ""), (65536, "")])
def test_a_service_takes_the_descriptors_that_it_may_have(
    monkeypatch: pytest.MonkeyPatch, most: int, told: str
) -> None:
    """It raises its own limit up to the operator's, and says so where that is too low to serve anybody."""
    taken = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, most))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: taken.append(limits))
    if told:
        with pytest.raises(SettingError, match=f"{told}.*LimitNOFILE"):
            own_descriptors()
    else:
        assert own_descriptors() == most
    assert taken == [(most, most)]
