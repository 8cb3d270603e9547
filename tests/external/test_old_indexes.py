# SPDX-License-Identifier: Apache-2.0
"""An index that is an old copy, or was lost, and a clock that was put back: no row of a result goes by that."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from host_services import NAME, Services, found, identity, keep, written
from penstock.errors import PartitionLostError
from penstock.external.accounts import AccountRole
from penstock.external.adoption import rebuild_index
from penstock.external.keys import name_of_key
from penstock.external.requests import FindRange, KeptState, PrepareKept, SwitchBack, SwitchKept, UndoKept

INDEX = "catalogue.db"
RESULT = b"r" * 32
BESIDE = (f"{INDEX}-wal", f"{INDEX}-shm")


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Those of this test."""
    services = Services(tmp_path / "host")
    (tmp_path / "host").mkdir()
    yield services
    services.close()


def put_back(folder: Path, about: bytes, index: Path) -> None:
    """Have a folder that is to go, as a kill leaves it."""
    folder.mkdir(parents=True)
    (folder / "about").write_bytes(about)
    with sqlite3.connect(index) as base:
        base.execute("insert into doomed values (?)", (str(folder),))
    base.close()


def test_an_old_index_removes_no_rows_of_a_result(services: Services, tmp_path: Path) -> None:
    """The application that has them in the copy ends: with the right index the result is whole again."""

    async def run() -> None:
        keeper, account = await services.start()
        folders = [await written(keeper, account, number) for number in range(2)]
        await keeper.close()
        services.kill()
        shutil.copy(services.root / INDEX, tmp_path / "old")
        keeper, account = await services.start()
        await keep(keeper, account, 1, [0])
        await keeper.close()
        services.kill()
        shutil.copy(services.root / INDEX, tmp_path / "right")
        shutil.copy(tmp_path / "old", services.root / INDEX)
        keeper, account = await services.start()
        assert account.used == account.partitions[identity(1)].bytes
        with pytest.raises(PartitionLostError):
            await keeper.find(account, FindRange(identity(0), 0, 1))
        await keeper.expire(inf)
        await keeper.close()
        assert [each.exists() for each in folders] == [True, False]
        services.kill()
        shutil.copy(tmp_path / "right", services.root / INDEX)
        keeper, account = await services.start()
        result = keeper.accounts.find(name_of_key(bytes([1]) * 32))
        assert result is not None
        assert [each.state for each in result.numbers.values()] == [KeptState.THERE]
        await keeper.close()

    asyncio.run(run())


def test_what_an_application_got_back_is_its_own(services: Services) -> None:
    """The folder of a result that was undone is to go when the service is killed: its word counts no more."""

    async def run() -> None:
        keeper, account = await services.start()
        folder = await written(keeper, account, 0)
        await keeper.results.prepare(account, PrepareKept(NAME, RESULT, b"0", partitions=(identity(0),)))
        result = keeper.accounts.find(name_of_key(RESULT))
        assert result is not None
        left = Path(result.folder)
        about = (left / "about").read_bytes()
        await keeper.results.undo(account, UndoKept(NAME, RESULT))
        await keeper.close()
        services.kill()
        put_back(left, about, services.root / INDEX)
        keeper, account = await services.start()
        assert [Path(each.folder) for each in account.numbers.values()] == [folder]
        await keeper.close()

    asyncio.run(run())


def test_an_index_is_rebuilt_beside_what_a_killed_service_has_left(services: Services) -> None:
    """SQLite's files of the lost index are put aside: written into the new one they would damage it."""

    async def run() -> None:
        keeper, account = await services.start()
        for number in range(3):
            await written(keeper, account, number)
        copies = {each: (services.root / each).read_bytes() for each in BESIDE}
        await keeper.close()
        services.kill()
        (services.root / INDEX).unlink()
        for name, data in copies.items():
            (services.root / name).write_bytes(data)
            (services.root / name).chmod(0o600)
        rebuild_index([services.root])
        assert not any((services.root / name).exists() for name in BESIDE)
        assert [(services.root / f"lost-{name}").read_bytes() for name in BESIDE] == list(copies.values())
        keeper, account = await services.start()
        assert len(keeper.held(account).partitions) == 3
        await keeper.close()

    asyncio.run(run())


def test_a_replacement_that_was_taken_back_has_no_name_in_an_index_that_is_rebuilt(services: Services) -> None:
    """Nor has it one after the next start: the name means the one that all hosts have."""

    async def run() -> None:
        keeper, account = await services.start()
        await keep(keeper, account, 1)
        await keeper.results.prepare(account, PrepareKept(NAME, RESULT, b"2"))
        await keeper.results.switch(account, SwitchKept(NAME, RESULT))
        for _ in range(2):
            await keeper.results.switch_back(account, SwitchBack(NAME, RESULT))
        await keeper.close()
        services.kill()
        (services.root / INDEX).unlink()
        rebuild_index([services.root])
        keeper, account = await services.start()
        assert await found(keeper, account) == b"1"
        await keeper.close()

    asyncio.run(run())


def test_a_result_is_newer_than_the_former_one_whatever_the_clock_says(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put back by an hour between two results: the former one goes, and a rebuilt index has the new one."""
    now = time.time_ns()

    async def run() -> None:
        keeper, account = await services.start()
        for number, clock in ((1, now), (2, now - 3600 * 10**9)):
            monkeypatch.setattr("penstock.external.results.time.time_ns", lambda clock=clock: clock)
            await keeper.results.prepare(account, PrepareKept(NAME, bytes([number]) * 32, b"%d" % number))
            await keeper.results.switch(account, SwitchKept(NAME, bytes([number]) * 32))
        roles = [each.role for each in sorted(keeper.accounts, key=lambda each: each.made) if each.kept]
        assert roles == [AccountRole.FORMER, AccountRole.CURRENT]
        await keeper.close()
        services.kill()
        (services.root / INDEX).unlink()
        rebuild_index([services.root])
        keeper, account = await services.start()
        assert await found(keeper, account) == b"2"
        await keeper.close()

    asyncio.run(run())


def test_an_application_that_comes_while_another_one_ends_stays(services: Services) -> None:
    """Both were over when the look began, and it takes its time for the first."""

    async def run() -> None:
        keeper, first = await services.start()
        second = await keeper.introduce("second", b"s" * 32, 1000)
        ended = keeper.upkeep.end

        async def end(account: object) -> None:
            second.connections = 1
            await ended(first)

        keeper.upkeep.end = end  # type: ignore[method-assign]
        await keeper.expire(inf)
        assert list(keeper.accounts) == [second]
        await keeper.close()

    asyncio.run(run())
