# SPDX-License-Identifier: Apache-2.0
"""The upkeep of a host service: what is done at its disks and in its index, in threads, and what goes there.

Rules: files are looked at in threads, a few for each disk, so that a slow one holds up its own readers only. The
index has a thread too (`index_thread`). A change of the index and of what is known here is one: it is seen through,
though the request that waits for it is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from penstock.connection.turns import Turns
from penstock.external.accounts import Account, KeptPartition, KnownApplications
from penstock.external.catalogue import Catalogue
from penstock.external.disks import ServiceDisks
from penstock.external.folders import Removal, ServiceFolders, remove
from penstock.external.index_thread import IndexThread, heard
from penstock.external.left_open import LeftOpen
from penstock.external.requests import KeptState

log = logging.getLogger("penstock.external")

T = TypeVar("T")
TURN_PARTITIONS: Final = 250
"""Partitions that are dealt with before others have their turn: some ten milliseconds."""


class Upkeep:
    """The accounts of a service, its index and its folders, and the work for them that takes time."""

    def __init__(self, accounts: KnownApplications, catalogue: Catalogue, folders: ServiceFolders) -> None:
        self.accounts = accounts
        self.catalogue = catalogue
        self.index = IndexThread(catalogue.path, catalogue.close)
        self.folders = folders
        self.disks = ServiceDisks(folders.places, folders.reserve)
        self.left_open = LeftOpen(self.disks)
        self.turns = Turns()
        self._watched: set[asyncio.Future[Any]] = set()
        self._removals: dict[str, asyncio.Future[Removal]] = {}
        self._leaving: dict[int, str] = {}
        """The folders of partitions that have a row and are being removed."""
        self._doomed: set[str] = set()

    async def at_disk(self, folder: str, action: Callable[[], T]) -> T:
        """Do this in a thread of the disk."""
        return await self.disks.run(folder, action)

    async def new_folder(self) -> str:
        """The name of a new folder, on the disk whose turn it is; NoStorageError where none has room."""
        return self.folders.choose(await self.disks.spaces())

    def watch(self, work: asyncio.Future[Any], done: Callable[[asyncio.Future[Any]], object]) -> None:
        """Have `close` wait for this work at a disk, and call `done` after it."""
        self._watched.add(work)
        work.add_done_callback(self._watched.discard)
        work.add_done_callback(done)

    async def see_through(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change whole, though its caller is cancelled."""
        making = asyncio.ensure_future(change)
        self.watch(making, heard)
        return await asyncio.shield(making)

    def discard(self, account: Account, folder: str) -> None:
        """Remove a folder that no row names any more."""
        self._remove(account, folder)

    def drop(self, account: Account, kept: KeptPartition, state: KeptState, cause: str) -> None:
        """A partition goes; its row goes on saying how it went, and that its folder is to go."""
        folder, kept.folder, kept.cause = kept.folder, "", cause
        account.settle(kept, 0)
        kept.state = state
        self._leaving[kept.number] = folder
        self._remove(account, folder, kept.number)
        row = replace(kept)
        self.index.write_later(lambda: self.catalogue.write(row))

    def forget(self, account: Account, partitions: Iterable[KeptPartition]) -> None:
        """Nothing is said of partitions any more, and nothing is kept of them."""
        found = list(partitions)
        doomed = self._doom(account, found)
        for kept in found:
            kept.folder, kept.state = "", KeptState.RELEASED
            account.remove(kept)
        self.index.write_later(lambda: self.catalogue.remove(found, doomed))

    async def forget_all(self, account: Account, partitions: Sequence[KeptPartition]) -> None:
        """Forget many, in turns with what others ask."""
        for at in range(0, len(partitions), TURN_PARTITIONS):
            self.forget(
                account, [each for each in partitions[at : at + TURN_PARTITIONS] if each.number in account.numbers]
            )
            await self.turns.wait(account.user)

    async def end(self, account: Account) -> None:
        """An application is over, or a result: all of it goes. It can't be found from now on."""
        await self.see_through(self._ended(account))

    async def _ended(self, account: Account) -> None:
        self.accounts.remove(account)
        await self.forget_all(account, list(account.numbers.values()))
        doomed = self._doom(account, account.numbers.values(), account.folder)
        self.index.write_later(lambda: self.catalogue.remove_application(account, doomed))

    async def close(self) -> None:
        """Wait for what is being removed, and close the index."""
        while self._removals or self._watched:
            await asyncio.wait([*self._removals.values(), *self._watched])
            await asyncio.sleep(0)  # what is done then
        await self.index.close()
        self.let_go()

    def let_go(self) -> None:
        """End the threads; idempotent."""
        self.left_open.close()
        self.disks.close()
        self.index.let_go()

    def _doom(self, account: Account, partitions: Iterable[KeptPartition], *folders: str) -> list[str]:
        """Remove folders whose rows go: those that are not gone yet, to be named among the doomed."""
        found = {each.folder or self._leaving.get(each.number, "") for each in partitions}.union(folders) - {""}
        for folder in found:
            self._remove(account, folder)
        self._doomed |= found
        return list(found)

    def _remove(self, account: Account, folder: str, number: int = 0) -> None:
        if folder and folder not in self._removals:
            future = self.disks.run(folder, remove, folder)
            self._removals[folder] = future
            future.add_done_callback(lambda done: self._removed(account.user, folder, number, done.result()))

    def _removed(self, user: int, folder: str, number: int, removal: Removal) -> None:
        del self._removals[folder]
        self._leaving.pop(number, None)
        self.left_open.add(user, folder, removal.left_open)
        if not removal.is_whole:
            log.warning("%s has files that this service has not made: they stay", folder)
        if folder in self._doomed:
            self._doomed.remove(folder)
            self.index.write_later(lambda: self.catalogue.gone(folder))
        self.index.write_again()
