# SPDX-License-Identifier: Apache-2.0
"""Host services of this process, over the same folders one after the other, and what applications have there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.external.accounts import Account
from penstock.external.adoption import open_service_folders
from penstock.external.catalogue import Catalogue
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import BegunFiles, Keeper, KeeperPolicy
from penstock.external.requests import CommitPartition, FindByName, ForgetFormer, PrepareKept, SwitchKept
from penstock.machine.owned_folders import OpenFolders
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId

KEY = b"k" * 32
NAME = "numbers"
ENDS = (EndOfPartition(0, 0, 0),)


class Services:
    """The services over folders, one after the other: each is killed when the next one starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: OpenFolders[Catalogue] | None = None
        self._keeper: Keeper | None = None

    async def start(self, *folders: Path) -> tuple[Keeper, Account]:
        """The next one, with an application."""
        self.kill()
        self._opened = opened = open_service_folders(folders or [self.root])
        found = ServiceFolders(opened.sorted.ours, 0, hides_another=opened.sorted.hides_another)
        self._keeper = keeper = Keeper(opened.index, found, KeeperPolicy(0, 60.0))
        return keeper, await keeper.introduce("app", KEY, 1000)

    def kill(self) -> None:
        """It does nothing more."""
        if self._opened is not None:
            if self._keeper is not None:
                self._keeper.upkeep.let_go()
            self._opened.index.close()
            self._opened.let_go()
            self._opened = None

    def close(self) -> None:
        """None is left."""
        self.kill()


def identity(number: int) -> PartitionId:
    """A partition."""
    return PartitionId(DatasetId("job", 0), number, 0)


async def begun(keeper: Keeper, account: Account, number: int) -> BegunFiles:
    """A partition that is being written."""
    found = await keeper.begin(account, identity(number), 1)
    os.write(found.data, bytes(1000))
    found.close()
    return found


async def written(keeper: Keeper, account: Account, number: int) -> Path:
    """A partition that is there: its folder."""
    found = await begun(keeper, account, number)
    await keeper.commit(account, CommitPartition(found.kept.number, ENDS))
    return Path(found.kept.folder)


async def keep(keeper: Keeper, account: Account, number: int, partitions: Sequence[int] = ()) -> None:
    """Keep a result, with a key of its own, in all steps."""
    key, there = bytes([number]) * 32, tuple(map(identity, partitions))
    await keeper.results.prepare(account, PrepareKept(NAME, key, b"%d" % number, partitions=there))
    await keeper.results.switch(account, SwitchKept(NAME, key))
    await keeper.results.forget_former(account, ForgetFormer(NAME, key))


async def found(keeper: Keeper, account: Account) -> bytes:
    """The description of what is kept."""
    return (await keeper.results.find(account, FindByName(NAME))).description
