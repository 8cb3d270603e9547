# SPDX-License-Identifier: Apache-2.0
"""Everything that the host service does for its applications: accounts, catalogue and folders, joined.

Rules: an application's request finds its own partitions and no others. Files are looked at in threads, a few for each
disk, so that a slow one holds up its own readers only. A row is written before the answer is given; where that fails,
because the disk is full, nothing is taken over, and what goes still goes: its row follows when there is room.
Partitions that were being written when the service ended have failed; their files are swept.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock.errors import (
    AuthenticationError,
    PartitionError,
    PartitionLostError,
    PartitionReleasedError,
    PenstockError,
    ProtocolError,
    StaleError,
    StorageError,
)
from penstock.external.accounts import GRANT_BYTES, Account, KeptPartition, KeptQuotas, KnownApplications
from penstock.external.catalogue import Catalogue
from penstock.external.disks import ServiceDisks
from penstock.external.folders import MadeFiles, ServiceFolders, find_range, read_chunk, remove, size_of, write_ends
from penstock.external.keys import KEY_BYTES, ApplicationKey
from penstock.external.requests import (
    CommitPartition,
    FindRange,
    FoundByName,
    FoundRange,
    KeepByName,
    KeptState,
    pack_kept,
)
from penstock.observe.user_work import UserWork
from penstock.partition.extents import DATA, data_name
from penstock.partition.file_input import FileOrigin, open_file
from penstock.shuffle import PartitionId

log = logging.getLogger("penstock.external")

T = TypeVar("T")
_GONE = (KeptState.FAILED, KeptState.RELEASED)


@dataclass(frozen=True, slots=True)
class KeeperPolicy:
    """The limits of an application: bytes in files (0: no limit), and seconds without a word."""

    quota: int
    lease: float
    kept_lease: float = 7 * 86400.0
    """Seconds of a result that is kept by name."""
    host: str = ""
    """The name of this host, for messages."""
    kept: KeptQuotas = field(default_factory=KeptQuotas)


@dataclass(frozen=True, slots=True)
class BegunFiles:
    """The files of a partition that is to be written, as descriptors, which the caller closes."""

    kept: KeptPartition
    data: int
    index: int

    def close(self) -> None:
        """Close this process's copies."""
        for descriptor in (self.data, self.index):
            os.close(descriptor)


class Keeper:
    """All that this host's service keeps, and the secrets of its applications (`connection.handshake.Secrets`)."""

    identity = "external"

    def __init__(self, catalogue: Catalogue, folders: ServiceFolders, policy: KeeperPolicy) -> None:
        self.accounts = KnownApplications(policy.lease, policy.kept_lease)
        self.folders = folders
        self._catalogue = catalogue
        self._policy = policy
        self.disks = ServiceDisks(folders.places, folders.reserve)
        self._beginning: set[tuple[str, PartitionId]] = set()
        """The partitions of which files are being made, each with its application."""
        self._removals: set[asyncio.Future[Any]] = set()
        self._unwritten: list[Callable[[], None]] = []
        self.users = UserWork()
        self._load()

    def introduce(self, title: str, key: bytes, user: int) -> Account:
        """The application with this key, whose task runs as this user; AuthenticationError for another user's."""
        if len(key) != KEY_BYTES or len(title) > 1000:
            raise ProtocolError("this is no key of an application")
        known = ApplicationKey(title, key)
        account = self.accounts.find(known.name)
        if account is None:
            account = Account(known, user)
            self._catalogue.add_application(account)
            self.accounts.add(account)
        if account.user != user or not hmac.compare_digest(account.key.key, key):
            raise AuthenticationError(
                f"the application {title} is known at this host's shuffle service as one of user {account.user}, and"
                f" this task runs as user {user}: run all tasks of an application as one user"
            )
        account.seen = time.monotonic()
        return account

    def secret_of(self, peer: str) -> bytes | None:
        """The key of the application of this name."""
        account = self.accounts.find(peer)
        return None if account is None else account.key.key

    async def begin(self, account: Account, partition: PartitionId, subpartitions: int) -> BegunFiles:
        """Make the files of a partition. QuotaError, StorageError; StaleError for one that has begun before."""
        beginning = account.key.name, partition
        if partition in account.partitions or beginning in self._beginning:
            raise StaleError(f"partition {partition} was written, or given up, before")
        kept = KeptPartition(0, partition, subpartitions, KeptState.WRITING)
        account.grant(kept, GRANT_BYTES, self._policy.quota)
        account.settle(kept, 0)
        self._beginning.add(beginning)
        try:
            made = await self._made()
        finally:
            self._beginning.discard(beginning)
        try:
            if self.accounts.find(account.key.name) is not account:
                raise PartitionReleasedError(f"partition {partition} was released: its application is over")
            kept.folder = made.folder
            kept.number = self._catalogue.add(account, partition, subpartitions)
        except BaseException:
            made.close()
            self._remove(made.folder)
            raise
        account.add(kept)
        account.grant(kept, GRANT_BYTES, self._policy.quota)
        return BegunFiles(kept, made.data, made.index)

    async def _made(self) -> MadeFiles:
        """New files on the disk whose turn it is; they go where nobody waits for them any more."""
        place = self.folders.choose(await self.disks.spaces())
        making = self.disks.run(f"{place}{os.sep}", self.folders.make, place)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._removals.add(making)
            making.add_done_callback(self._made_for_nobody)
            raise

    def _made_for_nobody(self, making: asyncio.Future[MadeFiles]) -> None:
        self._removals.discard(making)
        if making.exception() is None:
            making.result().close()
            self._remove(making.result().folder)

    async def grow(self, account: Account, number: int, wanted: int) -> int:
        """Let a partition have so many bytes, and the next step of room; errors as of `begin`."""
        kept = self._writing(account, number)
        room = -(-wanted // GRANT_BYTES) * GRANT_BYTES
        folder, more = kept.folder, wanted - kept.bytes
        try:
            await self._at_disk(kept, lambda: self.folders.ensure_room(folder, more))
            account.grant(self._writing(account, number), room, self._policy.quota)
        except PenstockError as error:
            self.give_up(account, number, str(error))
            raise
        return room

    async def commit(self, account: Account, request: CommitPartition) -> None:
        """Take a partition over: its files are complete."""
        kept = self._writing(account, request.number)
        if len(request.ends) != kept.subpartitions:
            raise ProtocolError(f"{kept.partition} has {kept.subpartitions} subpartitions, not {len(request.ends)}")

        def settled() -> int:
            write_ends(kept.folder, request.ends)
            return size_of(kept.folder)

        try:
            size = await self._at_disk(kept, settled)
            if kept.state is not KeptState.WRITING:
                raise PartitionReleasedError(f"partition {kept.partition} was released while it was written")
            account.grant(kept, size, self._policy.quota)
            account.settle(kept, size)
            self._catalogue.write(replace(kept, state=KeptState.THERE))
        except (PenstockError, OSError) as error:
            self.give_up(account, kept.number, str(error))
            raise
        kept.state = KeptState.THERE

    def size_of(self, account: Account, number: int) -> int:
        """The bytes of a partition; none where nobody knows it any more."""
        kept = account.numbers.get(number)
        return 0 if kept is None else kept.bytes

    def give_up(self, account: Account, number: int, cause: str) -> None:
        """A producer has failed; no matter where its partition is released already."""
        kept = account.numbers.get(number)
        if kept is not None and kept.state is KeptState.WRITING:
            self._drop(account, kept, KeptState.FAILED, cause[:2000])

    async def find(self, account: Account, request: FindRange) -> FoundRange:
        """Find a range, or say why it is not there."""
        kept = account.partitions.get(request.partition)
        if kept is None:
            return FoundRange(KeptState.ABSENT)
        if kept.state is not KeptState.THERE:
            return FoundRange(kept.state, cause=kept.cause)
        if not kept.folder:
            raise PartitionLostError(f"{self._origin(kept)} is lost: its files lie in none of the service's folders")
        if request.first < 0 or request.count < 1 or request.first + request.count > kept.subpartitions:
            raise PartitionError(
                f"{request.partition}: subpartitions {request.first} to {request.first + request.count - 1} were"
                f" asked for, it has 0 to {kept.subpartitions - 1}"
            )
        origin, folder = self._origin(kept), kept.folder
        try:
            extents, end = await self._at_disk(kept, lambda: find_range(folder, request.first, request.count, origin))
        except PenstockError:
            if kept.state in _GONE:
                return FoundRange(kept.state, cause=kept.cause)
            raise
        return FoundRange(KeptState.THERE, kept.number, pack_kept(extents), end)

    async def read(self, account: Account, number: int, offset: int, target: memoryview) -> None:
        """Fill the target out of a partition's data file."""
        kept = account.numbers.get(number)
        if kept is None or kept.state is not KeptState.THERE or not kept.folder:
            raise PartitionReleasedError(f"partition number {number} was released while it was read")
        origin, folder = self._origin(kept), kept.folder
        try:
            await self._at_disk(kept, lambda: read_chunk(folder, target, offset, origin))
        except PenstockError as error:
            if kept.state in _GONE:
                raise PartitionReleasedError(f"{origin} was released while it was read") from error
            raise

    async def lend(self, account: Account, partition: PartitionId, number: int) -> int:
        """A descriptor of a partition's data file, to be read; the caller closes it."""
        kept = account.numbers.get(number)
        if kept is None or kept.partition != partition or kept.state is not KeptState.THERE or not kept.folder:
            raise PartitionReleasedError(f"partition {partition} is not there to be lent")
        path, origin = f"{kept.folder}/{data_name(DATA)}", self._origin(kept)
        return await self._at_disk(kept, lambda: open_file(path, origin))

    def release(self, account: Account, partitions: Iterable[PartitionId]) -> None:
        """Remove partitions; what was not there is released as well, and readers hear so."""
        for partition in partitions:
            kept = account.partitions.get(partition)
            if kept is not None and kept.state not in _GONE:
                self._drop(account, kept, KeptState.RELEASED, "")

    def forget_job(self, account: Account, job: str) -> None:
        """A job is over, and nobody wants anything of it: say nothing more of it, and keep nothing."""
        for kept in account.of_job(job):
            folder, kept.folder, kept.state = kept.folder, "", KeptState.RELEASED
            self._remove(folder)
            account.remove(kept)
            self._write_if_possible(functools.partial(self._catalogue.remove, kept))

    def held(self, account: Account) -> tuple[PartitionId, ...]:
        """The application's partitions with files."""
        return tuple(each.partition for each in account.numbers.values() if each.folder)

    def keep(self, account: Account, request: KeepByName) -> None:
        """Keep partitions of an application under a name; PartitionLostError where one is not there."""
        found = [account.partitions.get(partition) for partition in request.partitions]
        there = [kept for kept in found if kept is not None and kept.state is KeptState.THERE]
        if len(there) < len(found) or not request.name or len(request.key) != KEY_BYTES:
            raise PartitionLostError(
                f"the result {request.name} can't be kept: a partition of it is not there any more"
            )
        former = self.accounts.kept(request.name, account.user)
        self.accounts.refuse_too_much(account, request.name, sum(kept.bytes for kept in there), self._policy.kept)
        key = ApplicationKey(f"{account.key.title}: {request.name}"[:1000], request.key)
        keeper = Account(key, account.user, time.monotonic(), request.name, request.description)
        self._catalogue.move([kept.number for kept in there], keeper)
        for kept in there:
            account.remove(kept)
            keeper.add(kept)
        if former is not None:
            self._clear(former)  # its rows went as the new ones came
        self.accounts.add(keeper)

    def find_kept(self, account: Account, name: str) -> FoundByName:
        """The result that the user of this application has under a name."""
        found = self.accounts.kept(name, account.user)
        if found is None:
            return FoundByName()
        found.seen = time.monotonic()
        return FoundByName(found.key.key, found.description)

    def end(self, account: Account) -> None:
        """An application is over: all of it goes."""
        self._clear(account)
        self._write_if_possible(lambda: self._catalogue.remove_application(account))

    def expire(self, now: float) -> None:
        """End the applications that nobody has heard of for too long; write rows that could not be written."""
        self._write_again()
        for account in self.accounts.expired(now):
            lease = self.accounts.lease_of(account)
            log.info("nobody has heard of %s for %.0f s: all of it goes", account.key.title, lease)
            self.end(account)

    async def close(self) -> None:
        """Wait for what is being removed, and close the catalogue."""
        while self._removals:
            await asyncio.wait(self._removals)
        self._write_again()
        self.disks.close()
        self._catalogue.close()

    def _load(self) -> None:
        now = time.monotonic()
        known = set()
        for account in self._catalogue.accounts():
            account.seen = now
            self.accounts.add(account)
            for kept in account.numbers.values():
                if kept.state is KeptState.WRITING:
                    kept.cause = "this host's shuffle service ended while it was written"
                    kept.state = KeptState.FAILED
                    self._write_if_possible(functools.partial(self._catalogue.write, kept))
                kept.folder, was = self.folders.place_of(kept.folder), kept.folder
                if was and not kept.folder:
                    log.warning("%s lay in %s, which is none of this service's folders", kept.partition, was)
                known.add(kept.folder)
        swept = self.folders.sweep(known)
        held = sum(len(self.held(account)) for account in self.accounts)
        log.info("%d applications, %d partitions, %d unfinished ones swept", len(self.accounts), held, swept)

    def _clear(self, account: Account) -> None:
        self.accounts.remove(account)
        for kept in account.numbers.values():
            kept.state, folder, kept.folder = KeptState.RELEASED, kept.folder, ""
            self._remove(folder)

    def _writing(self, account: Account, number: int) -> KeptPartition:
        kept = account.numbers.get(number)
        if kept is None or kept.state is not KeptState.WRITING:
            raise StaleError(f"partition number {number} is not being written")
        return kept

    def _origin(self, kept: KeptPartition) -> FileOrigin:
        return FileOrigin(kept.partition, self._policy.host)

    def _drop(self, account: Account, kept: KeptPartition, state: KeptState, cause: str) -> None:
        folder, kept.folder, kept.cause = kept.folder, "", cause
        account.settle(kept, 0)
        kept.state = state
        self._remove(folder)
        self._write_if_possible(lambda: self._catalogue.write(kept))

    def _remove(self, folder: str) -> None:
        if folder:
            future = self.disks.run(folder, remove, folder)
            self._removals.add(future)
            future.add_done_callback(self._removed)

    def _removed(self, future: asyncio.Future[None]) -> None:
        self._removals.discard(future)
        self._write_again()

    def _write_if_possible(self, write: Callable[[], None]) -> None:
        """Write a row about something that goes; on a full disk that is later, when there is room."""
        try:
            write()
        except StorageError as error:
            log.warning("%s", error)
            self._unwritten.append(write)

    def _write_again(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for write in unwritten:
            self._write_if_possible(write)

    async def _at_disk(self, kept: KeptPartition, action: Callable[[], T]) -> T:
        return await self.disks.run(kept.folder, action)
