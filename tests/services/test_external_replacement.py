# SPDX-License-Identifier: Apache-2.0
"""A result of two hosts that is replaced: whatever fails, and whoever is killed, each host's name has whole rows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from penstock.errors import PartitionError
from penstock.external.accounts import Account, AccountRole
from penstock.external.catalogue import Catalogue
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import Keeper, KeeperPolicy
from penstock.external.keys import KEY_BYTES, name_of_key
from penstock.external.requests import (
    CommitPartition,
    FindByName,
    ForgetFormer,
    KeptState,
    PrepareKept,
    SwitchBack,
    SwitchKept,
    UndoKept,
)
from penstock.services.external.kept_results import Asking, Replacement
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId

NAME = "trips"
HOSTS = ("a", "b")
OWN = ""
"""The service of the driver's host, which is that of `a`, over its socket."""


class Killed(BaseException):
    """The driver is no more."""


class World:
    """The services of two hosts, and the driver that replaces a result there."""

    def __init__(self, root: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._root = root
        self.accounts: dict[str, Account] = {}
        self.keepers: dict[str, Keeper] = {}
        self.start()

    def start(self) -> None:
        """Start the services; those that were there end. Requests come of the application `app`."""
        self.kill()
        for host in HOSTS:
            folder = self._root / host
            folder.mkdir(exist_ok=True)
            index = Catalogue(folder / "catalogue.db")
            self.keepers[host] = Keeper(index, ServiceFolders([folder], 0), KeeperPolicy(0, 60.0))
        self.come("app")

    def come(self, application: str) -> None:
        """Requests come of this application from now on."""
        for host, keeper in self.keepers.items():
            introduced = keeper.introduce(application, application.encode().ljust(KEY_BYTES), 1000)
            self.accounts[host] = self.loop.run_until_complete(introduced)

    def close(self) -> None:
        """End it."""
        self.kill()
        self.loop.close()

    def kill(self) -> None:
        """End the services, which have nothing left to write: it is written before anybody is told."""
        for keeper in self.keepers.values():
            self.loop.run_until_complete(keeper.close())

    def write(self, job: str, text: str) -> dict[str, list[PartitionId]]:
        """A partition at each host, with this text."""
        parts: dict[str, list[PartitionId]] = {}
        for number, host in enumerate(HOSTS):
            partition = PartitionId(DatasetId(job, 0), number, 0)
            begun = self.loop.run_until_complete(self.keepers[host].begin(self.accounts[host], partition, 1))
            os.write(begun.data, text.encode())
            begun.close()
            commit = CommitPartition(begun.kept.number, (EndOfPartition(0, 0, 0),))
            self.loop.run_until_complete(self.keepers[host].commit(self.accounts[host], commit))
            parts[host] = [partition]
        return {**parts, OWN: []}

    def ask(self, address: str, requests: Sequence[Any]) -> list[Any]:
        """Ask a service, as over a connection."""
        host = address or "a"
        results, account = self.keepers[host].results, self.accounts[host]
        for request in requests:
            match request:
                case PrepareKept():
                    self.loop.run_until_complete(results.prepare(account, request))
                case SwitchKept():
                    self.loop.run_until_complete(results.switch(account, request))
                case SwitchBack():
                    self.loop.run_until_complete(results.switch_back(account, request))
                case ForgetFormer():
                    self.loop.run_until_complete(results.forget_former(account, request))
                case UndoKept():
                    self.loop.run_until_complete(results.undo(account, request))
        return []

    def whole(self) -> dict[str, bytes]:
        """The key of the result that each host's name has; each part of it is there, at each host."""
        found = {}
        for host in HOSTS:
            answer = self.loop.run_until_complete(
                self.keepers[host].results.find(self.accounts[host], FindByName(NAME))
            )
            found[host] = answer.key
            for at, job in msgpack.unpackb(answer.description):
                account = self.keepers[at].accounts.find(name_of_key(answer.key))
                assert account is not None, (host, at)
                rows = [Path(each.folder, "data.0").read_bytes() for each in account.numbers.values() if each.folder]
                assert rows == [job.encode()], (host, at)
                assert all(each.state is KeptState.THERE for each in account.numbers.values())
        return found


def described(job: str) -> bytes:
    """The description of a result: where its parts are, and what they hold."""
    data: bytes = msgpack.packb([(host, job) for host in HOSTS])
    return data


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two services."""
    world = World(tmp_path)
    yield world
    world.close()


class Steps:
    """The questions of a replacement; one of them goes wrong."""

    def __init__(self, world: World, how: str, step: int) -> None:
        self.asked = 0
        self._world = world
        self._how = how
        self._step = step

    def ask(self, address: str, requests: Sequence[Any]) -> list[Any]:
        """Ask, if nothing is in the way."""
        at, self.asked = self.asked, self.asked + 1
        if at > self._step and self._how.startswith("driver"):
            raise Killed
        if at == self._step and self._how == "driver killed":
            raise Killed
        if self._how == "host lost" and at > self._step and address == "b":
            raise ConnectionError("refused")
        if (at == self._step and self._how == "refused") or (
            at >= self._step and self._how == "host down" and address == "b"
        ):
            raise ConnectionError("refused")
        self._world.ask(address, requests)
        if at == self._step and self._how == "driver killed after it":
            raise Killed
        if at == self._step and self._how in ("answer lost", "host lost"):
            raise ConnectionError("lost")
        return []


@pytest.mark.parametrize("how", ["refused", "answer lost", "host down", "driver killed", "driver killed after it"])
def test_a_name_means_whole_rows_at_every_step(world: World, how: str) -> None:
    """One step fails, or is the last one; then all services are killed, and started again."""
    for step in range(100):
        old, new, third = ((b"%d-%d" % (number, step)).ljust(KEY_BYTES) for number in range(3))
        Replacement(NAME, old, described("old"), world.ask).run(world.write(f"old{step}", "old"))
        steps = Steps(world, how, step)
        is_told = False
        try:
            Replacement(NAME, new, described("new"), steps.ask).run(world.write(f"new{step}", "new"))
        except PartitionError:
            is_told = True
        except Killed:
            pass
        else:
            assert set(world.whole().values()) == {new}
        world.start()
        assert set(world.whole().values()) <= {old, new}
        if is_told and how != "host down":
            assert set(world.whole().values()) == {old}
            back = [each.partition.job for each in world.accounts["a"].numbers.values()]
            assert back.count(f"new{step}") == 1, "the application has its rows again"
        Replacement(NAME, third, described("third"), world.ask).run(world.write(f"third{step}", "third"))
        assert set(world.whole().values()) == {third}
        for keeper in world.keepers.values():
            assert [each.role for each in keeper.accounts if each.kept] == [AccountRole.CURRENT], "nothing is left"
        if steps.asked <= step:
            break
    assert step > 10, "so many steps"


def keep(world: World, application: str, number: int, ask: Asking | None = None) -> bytes:
    """Keep a result of an application, which comes for it; its key."""
    world.come(application)
    name = f"{application}{number}"
    key = name.encode().ljust(KEY_BYTES)
    Replacement(NAME, key, described(name), ask or world.ask).run(world.write(name, name))
    return key


class Beside:
    """The questions of a replacement, with another driver's between two of them."""

    def __init__(self, world: World, step: int) -> None:
        self.asked = 0
        self.other: bytes | None = None
        """The key of the other result, if it was kept."""
        self._world = world
        self._step = step

    def ask(self, address: str, requests: Sequence[Any]) -> list[Any]:
        """Ask, at this step after the other driver has had its turn."""
        at, self.asked = self.asked, self.asked + 1
        if at == self._step:
            with suppress(PartitionError):
                self.other = keep(self._world, "other", at)
            self._world.come("one")
        return self._world.ask(address, requests)


def test_of_two_drivers_at_once_one_is_refused(world: World) -> None:
    """Another one keeps a result between two steps: the last that hears "kept" has the name, whole, at all hosts."""
    outcomes = []
    for step in range(100):
        keep(world, "before", step)
        beside, one = Beside(world, step), None
        with suppress(PartitionError):
            one = keep(world, "one", step, beside.ask)
        kept = set(world.whole().values())
        if beside.asked <= step:
            break
        outcomes.append((one is not None, beside.other is not None))
        assert kept == {one if beside.other is None or not step else beside.other}
    refused = [outcome for outcome in outcomes if not all(outcome)]
    assert len(outcomes) == 11
    assert refused == [(False, True)] * 5 + [(True, False)] * 4, "while one has prepared, and while one switches"


def test_a_driver_keeps_again_at_once_after_a_try_that_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host did not hear that it is to switch back. Another driver waits a minute: the first may be at it yet."""
    keep(world, "app", 0)
    with pytest.raises(PartitionError):
        keep(world, "app", 1, Steps(world, "host lost", 6).ask)
    assert len(set(world.whole().values())) == 2
    with pytest.raises(PartitionError, match="keep yours again in 60 seconds"):
        keep(world, "other", 2)
    key = keep(world, "app", 3)
    assert set(world.whole().values()) == {key}
    key = keep(world, "other", 4)
    assert set(world.whole().values()) == {key}, "the last one was told to all"
    with pytest.raises(PartitionError):
        keep(world, "app", 5, Steps(world, "host lost", 6).ask)
    monkeypatch.setattr("penstock.external.results.DOUBT_SECONDS", 0.0)
    key = keep(world, "other", 6)
    assert set(world.whole().values()) == {key}
