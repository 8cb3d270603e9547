# SPDX-License-Identifier: Apache-2.0
"""Everything that the host service does for its applications: accounts, catalogue and folders, joined.

Rules: an application's request finds its own partitions and no others. A row is written before the answer is given;
where that fails, because the disk is full or hangs, nothing is taken over. Partitions that were being written when
the service ended have failed, and their files go, unless they say that they are complete: then the index is an old
copy.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from penstock.errors import (
    AuthenticationError,
    PartitionError,
    PartitionLostError,
    PartitionReleasedError,
    PenstockError,
    ProtocolError,
    QuotaError,
    StaleError,
)
from penstock.external.accounts import GRANT_BYTES, Account, KeptPartition, KeptQuotas, KnownApplications
from penstock.external.catalogue import Catalogue
from penstock.external.folders import (
    END_BYTES,
    ServiceFolders,
    close_all,
    close_to_writers,
    find_range,
    pack_ends,
    read_chunk,
    remove,
    size_of,
    write_ends,
)
from penstock.external.index_thread import heard
from penstock.external.keys import KEY_BYTES, ApplicationKey
from penstock.external.manifests import FolderWord, described, read_word, write_word
from penstock.external.requests import (
    PIECE_PARTITIONS,
    CommitPartition,
    FindRange,
    FoundRange,
    HeldPartitions,
    KeptState,
)
from penstock.external.results import ResultKeeper
from penstock.external.upkeep import TURN_PARTITIONS, Upkeep
from penstock.observe.user_work import UserWork
from penstock.partition.extents import DATA, data_name
from penstock.partition.file_input import FileOrigin, open_file
from penstock.shuffle import PartitionId

log = logging.getLogger("penstock.external")

MOST_APPLICATIONS: Final = 1000
"""Applications of one user."""
MOST_NAMED: Final = 500
"""Letters of a dataset's name, and of the cause of a failure."""
MOST_SUBPARTITIONS: Final = 1 << 17
"""Of one partition: the service has the ends of a commit in memory until all have come, 24 bytes of each."""
_FINDING = 4
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
    names: int = 1 << 16
    """Partitions and results of one user that the service knows."""


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
        self.upkeep = Upkeep(self.accounts, catalogue, folders)
        self.results = ResultKeeper(self.upkeep, policy.kept, policy.names)
        self.users = UserWork()
        self._coming: dict[str, asyncio.Task[None]] = {}
        """The applications that have come and have no row yet, by name."""
        self._numbers = itertools.count(catalogue.last_number() + 1)
        self._ends: dict[int, bytes] = {}
        """Those that have come of partitions that are being committed."""
        self._finding: dict[int, asyncio.Semaphore] = {}
        self._load()

    async def introduce(self, title: str, key: bytes, user: int) -> Account:
        """The application with this key, whose task runs as this user; AuthenticationError for another user's.

        StorageError where the index can't have a new one.
        """
        if len(key) != KEY_BYTES or len(title) > 1000:
            raise ProtocolError("this is no key of an application")
        known = ApplicationKey(title, key)
        account = self.accounts.find(known.name)
        if account is None:
            self.upkeep.index.check()
            self._make_place(user)
            account = Account(known, user, time.monotonic())
            self.accounts.add(account)
            self._coming[known.name] = coming = asyncio.ensure_future(self._noted(account))
            self.upkeep.watch(coming, heard)
        if account.user != user or not hmac.compare_digest(account.key.key, key):
            raise AuthenticationError(
                f"the application {title} is known at this host's shuffle service as one of user {account.user}, and"
                f" this task runs as user {user}: run all tasks of an application as one user"
            )
        if (pending := self._coming.get(known.name)) is not None:
            await asyncio.shield(pending)
        account.seen = time.monotonic()
        return account

    async def _noted(self, account: Account) -> None:
        """Have a row of an application that has come; it is unknown again where there can't be one."""
        catalogue = self._catalogue
        try:
            await self.upkeep.index.write(
                lambda: catalogue.add_application(account), lambda: catalogue.remove_application(account)
            )
        except BaseException:
            self.accounts.remove(account)
            raise
        finally:
            del self._coming[account.key.name]

    def _make_place(self, user: int) -> None:
        """Let the application go that has nothing here, and was silent longest, where its user has too many."""
        known = [each for each in self.accounts.of_user(user) if not each.kept]
        if len(known) < MOST_APPLICATIONS:
            return
        idle = [each for each in known if not each.connections and not each.numbers]
        if not idle:
            raise QuotaError(
                f"user {user} has {len(known):,} applications with partitions or connections at this host's shuffle"
                " service, the most that it knows of one user: end some, or wait for their leases to end"
            )
        oldest = min(idle, key=lambda each: each.seen)
        self.accounts.remove(oldest)
        self.upkeep.index.write_later(lambda: self._catalogue.remove_application(oldest))

    def secret_of(self, peer: str) -> bytes | None:
        """The key of the application of this name."""
        account = self.accounts.find(peer)
        return None if account is None else account.key.key

    async def begin(self, account: Account, partition: PartitionId, subpartitions: int) -> BegunFiles:
        """Make the files of a partition. QuotaError, StorageError; StaleError for one that has begun before."""
        if partition in account.partitions:
            raise StaleError(f"partition {partition} was written, or given up, before")
        if len(str(partition.dataset).encode()) > MOST_NAMED or subpartitions < 1:
            raise ProtocolError("a partition has subpartitions, and a dataset with a short name")
        if subpartitions > MOST_SUBPARTITIONS:
            raise QuotaError(
                f"{partition} has {subpartitions:,} subpartitions, and a host service takes {MOST_SUBPARTITIONS:,}:"
                " give the exchange a smaller parallelism"
            )
        self.accounts.refuse_too_many(account.user, self._policy.names)
        self.upkeep.left_open.refuse_too_many(account.user)
        self.upkeep.index.check()
        kept = KeptPartition(next(self._numbers), partition, subpartitions, KeptState.WRITING)
        account.add(kept)
        try:
            account.grant(kept, GRANT_BYTES, self._policy.quota)
        except QuotaError:
            account.remove(kept)
            raise
        making = asyncio.ensure_future(self._made(account, kept))

        def made_for_nobody(making: asyncio.Future[tuple[int, int]]) -> None:
            if making.exception() is None:
                for descriptor in making.result():
                    os.close(descriptor)
            if account.numbers.get(kept.number) is kept:
                self.upkeep.forget(account, [kept])

        try:
            data, index = await asyncio.shield(making)
        except asyncio.CancelledError:
            self.upkeep.watch(making, made_for_nobody)
            raise
        except PenstockError:
            made_for_nobody(making)  # it was never there: its producer may try again
            raise
        return BegunFiles(kept, data, index)

    async def _made(self, account: Account, kept: KeptPartition) -> tuple[int, int]:
        """The files of a partition, once there is a row that names their folder. Nothing is left of one that goes."""
        upkeep, released = self.upkeep, f"partition {kept.partition} was released: it had just begun"
        folder = await upkeep.new_folder()
        if kept.state is not KeptState.WRITING:
            raise PartitionReleasedError(released)
        kept.folder = folder
        row = replace(kept, bytes=0)
        await upkeep.index.write(lambda: self._catalogue.add(account, row))
        if kept.state is not KeptState.WRITING:
            raise PartitionReleasedError(released)
        data, index = await upkeep.disks.run(folder, self.folders.make_files, folder)
        if kept.state is not KeptState.WRITING:
            os.close(data)
            os.close(index)
            upkeep.discard(account, folder)
            raise PartitionReleasedError(released)
        return data, index

    async def grow(self, account: Account, number: int, wanted: int) -> int:
        """Let a partition have so many bytes, and the next step of room; errors as of `begin`."""
        kept = self._writing(account, number)
        room = -(-wanted // GRANT_BYTES) * GRANT_BYTES
        folder, more = kept.folder, wanted - kept.bytes
        try:
            await self.upkeep.at_disk(folder, lambda: self.folders.ensure_room(folder, more))
            account.grant(self._writing(account, number), room, self._policy.quota)
        except PenstockError as error:
            self.give_up(account, number, str(error))
            raise
        return room

    async def commit(self, account: Account, request: CommitPartition) -> bool:
        """Take a partition over: its files are complete. False until the last piece of its ends has come."""
        kept = self._writing(account, request.number)
        begun = self._ends.setdefault(kept.number, b"")
        ends = self._ends[kept.number] = begun + pack_ends(request.ends)
        if len(ends) // END_BYTES < kept.subpartitions and request.has_more and request.ends:
            return False
        del self._ends[kept.number]
        if len(ends) // END_BYTES != kept.subpartitions:
            raise ProtocolError(
                f"{kept.partition} has {kept.subpartitions} subpartitions, not {len(ends) // END_BYTES}"
            )

        try:
            size = await self.upkeep.see_through(self._settled(account, kept, ends))
            if kept.state is not KeptState.WRITING:
                raise PartitionReleasedError(f"partition {kept.partition} was released while it was written")
            account.grant(kept, size, self._policy.quota)
            account.settle(kept, size)
            row = replace(kept, state=KeptState.THERE)
            await self.upkeep.index.write(lambda: self._catalogue.write(row))
            if kept.state is not KeptState.WRITING:
                raise PartitionReleasedError(f"partition {kept.partition} was released while it was written")
        except (PenstockError, OSError) as error:
            self.give_up(account, kept.number, str(error))
            raise
        kept.state = KeptState.THERE
        return True

    async def _settled(self, account: Account, kept: KeptPartition, ends: bytes) -> int:
        """Close a partition's files to writers, and write what lies beside them; the bytes of all."""
        word, folder, most = word_of(account, kept), kept.folder, kept.bytes

        def settled() -> tuple[int, list[int]]:
            left = close_to_writers(folder, most)
            try:
                write_ends(folder, ends)
                write_word(folder, word)
                return size_of(folder), left
            except BaseException:
                close_all(left)
                raise

        size, left = await self.upkeep.at_disk(folder, settled)
        self.upkeep.left_open.add(account.user, folder, left)
        return size

    def size_of(self, account: Account, number: int) -> int:
        """The bytes of a partition; 0 where it is not known any more."""
        kept = account.numbers.get(number)
        return 0 if kept is None else kept.bytes

    def give_up(self, account: Account, number: int, cause: str) -> None:
        """A producer has failed; no matter where its partition is released already."""
        kept = account.numbers.get(number)
        self._ends.pop(number, None)
        if kept is not None and kept.state is KeptState.WRITING:
            self.upkeep.drop(account, kept, KeptState.FAILED, cause[:MOST_NAMED])

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
            extents, end = await self.upkeep.at_disk(
                folder, lambda: find_range(folder, request.first, request.count, origin)
            )
        except PenstockError:
            if kept.state in _GONE:
                return FoundRange(kept.state, cause=kept.cause)
            raise
        return FoundRange(KeptState.THERE, kept.number, extents, end)

    async def read(self, account: Account, number: int, offset: int, target: memoryview) -> None:
        """Fill the target out of a partition's data file."""
        kept = account.numbers.get(number)
        if kept is None or kept.state is not KeptState.THERE or not kept.folder:
            raise PartitionReleasedError(f"partition number {number} was released while it was read")
        origin, folder = self._origin(kept), kept.folder
        try:
            await self.upkeep.at_disk(folder, lambda: read_chunk(folder, target, offset, origin))
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
        return await self.upkeep.at_disk(kept.folder, lambda: open_file(path, origin))

    async def release(self, account: Account, partitions: Iterable[PartitionId]) -> None:
        """Remove partitions; what was not there is released as well, and readers hear so."""
        for count, partition in enumerate(partitions, 1):
            kept = account.partitions.get(partition)
            if kept is not None and kept.state not in _GONE:
                self.upkeep.drop(account, kept, KeptState.RELEASED, "")
            if not count % TURN_PARTITIONS:
                await self.upkeep.turns.wait(account.user)
        await self.upkeep.index.written()

    async def forget_job(self, account: Account, job: str) -> None:
        """A job is over: forget its partitions, and remove their files."""
        await self.upkeep.see_through(self.upkeep.forget_all(account, account.of_job(job)))
        await self.upkeep.index.written()

    def held(self, account: Account, after: int = 0) -> HeldPartitions:
        """The application's partitions with files whose numbers are greater; a page of them, and its last number."""
        there = (each for each in account.numbers.values() if each.number > after and each.folder)
        page = list(islice(there, PIECE_PARTITIONS))
        last = page[-1].number if len(page) == PIECE_PARTITIONS else 0
        return HeldPartitions(tuple(each.partition for each in page), last)

    def finding(self, account: Account) -> asyncio.Semaphore:
        """The turn of a user who looks for ranges: a few at a time, as their answers may be large."""
        return self._finding.setdefault(account.user, asyncio.Semaphore(_FINDING))

    async def end(self, account: Account) -> None:
        """An application is over: all of it goes."""
        await self.upkeep.end(account)
        await self.upkeep.index.written()

    async def expire(self, now: float) -> None:
        """End the accounts whose lease is over; write rows that could not be written."""
        self.upkeep.index.write_again()
        for account in self.accounts.expired(now):
            if not self.accounts.is_over(account, now):
                continue  # a task of it has come while another one was ended
            lease = self.accounts.lease_of(account)
            log.info("nobody has heard of %s for %.0f s: all of it goes", account.key.title, lease)
            await self.upkeep.end(account)

    async def close(self) -> None:
        """Wait for what is being removed, and close the catalogue."""
        await self.upkeep.close()

    def _load(self) -> None:
        now, known, removed = time.monotonic(), set(), 0
        accounts = list(self._catalogue.accounts())
        later = self._kept_later(accounts)
        for account in accounts:
            account.seen = now
            if account.folder:
                account.folder = self.folders.place_of(account.folder) or account.folder
                known.add(account.folder)
                account.described = described(account.folder)
                account.used += account.described
            self.accounts.add(account)
            for kept in account.numbers.values():
                known.add(kept.folder)
                if not account.kept and Path(kept.folder).name in later:
                    kept.folder, kept.state = "", KeptState.THERE  # lost to this one, and not removed with it
                    account.settle(kept, 0)
                    continue
                removed += self._restore(account, kept)
                known.add(kept.folder)
        for doomed in self._catalogue.doomed():
            place = self.folders.place_of(doomed)
            known.add(place)
            if place and _is_removed(place):
                removed += 1
                self.upkeep.index.write_now(lambda doomed=doomed: self._catalogue.gone(doomed))  # type: ignore[misc]
        unknown = sum(str(each) not in known for each in self.folders)
        if unknown:
            log.warning(
                "%d folders are not in the index, which may be an old copy: they stay, and nobody reads them", unknown
            )
        held = sum(bool(kept.folder) for account in self.accounts for kept in account.numbers.values())
        log.info("%d applications, %d partitions, %d unfinished ones removed", len(self.accounts), held, removed)

    def _kept_later(self, accounts: Iterable[Account]) -> set[str]:
        """The names of folders of partitions that were kept by name after this index, an old copy, was made."""
        known = {Path(each).name for each in self._catalogue.doomed()}
        for account in accounts:
            known.add(Path(account.folder).name)
            known.update(Path(kept.folder).name for kept in account.numbers.values())
        words = [read_word(each) for each in self.folders if each.name not in known]
        return {name for word in words if word is not None for name in word.folders}

    def _restore(self, account: Account, kept: KeptPartition) -> bool:
        """See what has become of a partition while no service was there; True if its files went."""
        kept.folder, was = self.folders.place_of(kept.folder), kept.folder
        if kept.state is KeptState.THERE:
            if was and not kept.folder:
                log.warning("%s lay in %s, which is none of this service's folders", kept.partition, was)
            return False
        if kept.state is KeptState.WRITING:
            if kept.folder and read_word(kept.folder) is not None:
                kept.state = KeptState.THERE
                account.settle(kept, size_of(kept.folder))
            else:
                kept.cause = "this host's shuffle service ended while it was written"
                kept.state = KeptState.FAILED
                account.settle(kept, 0)
            self.upkeep.index.write_now(lambda: self._catalogue.write(kept))
        folder = kept.folder
        if kept.state in _GONE:
            kept.folder = ""
        return kept.state in _GONE and bool(folder) and Path(folder).exists() and _is_removed(folder)

    def _writing(self, account: Account, number: int) -> KeptPartition:
        kept = account.numbers.get(number)
        if kept is None or kept.state is not KeptState.WRITING:
            raise StaleError(f"partition number {number} is not being written")
        return kept

    def _origin(self, kept: KeptPartition) -> FileOrigin:
        return FileOrigin(kept.partition, self._policy.host)


def _is_removed(folder: str) -> bool:
    """Remove a folder at the start, before clients are served; True if nothing is left."""
    removal = remove(folder)
    close_all(removal.left_open)
    return removal.is_whole


def word_of(account: Account, kept: KeptPartition) -> FolderWord:
    """The word of a partition's folder."""
    key, partition = account.key, kept.partition
    place = str(partition.dataset), partition.index, partition.attempt, kept.subpartitions
    return FolderWord(key.title, key.key, account.user, *place)
