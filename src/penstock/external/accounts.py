# SPDX-License-Identifier: Apache-2.0
"""The applications that a host service knows, and what each of them has there. Pure.

Rules:

- An application has an account: its partitions, the bytes that it uses, and the time at which it was last heard of.
  Nothing is shared between two accounts, and no request sees another account than that of its connection.
- Room is granted before it is written to: what is granted to writers counts as used, so writers at the same time
  can't go over the quota together. A commit gives back what was not needed.
- An application that has no connection, and was not heard of for `lease` seconds, is over.
- A result that is kept by name is an account of its own, with a key of its own: who has that may read it. It has a
  lease of its own, which a reader renews. It counts for no application any more, but for its user: all results of one
  user have a quota, and so have those of all users.
- A user finds the one that is current. One that is prepared, and a former one, can be read and not be found: services
  of several hosts replace a result together (`results`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from penstock.errors import QuotaError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import KeptState
from penstock.shuffle import PartitionId

GRANT_BYTES = 64 << 20
"""A writer asks for room in steps of so many bytes."""


class AccountRole(StrEnum):
    """The roles of an account."""

    APPLICATION = ""
    PREPARED = "prepared"
    """A result that is to take a name over."""
    CURRENT = "current"
    """The result that has its name."""
    FORMER = "former"
    """The result that had it, until all hosts have the current one."""


@dataclass(slots=True)
class KeptPartition:
    """A partition at the service: its number, and the folder of its files as long as it has any."""

    number: int
    partition: PartitionId
    subpartitions: int
    state: KeptState
    folder: str = ""
    bytes: int = 0
    """The bytes in its files, or granted to them while it is written."""
    cause: str = ""


@dataclass(slots=True)
class Account:
    """One application: who it is, and the user that its tasks run as."""

    key: ApplicationKey
    user: int
    seen: float = 0.0
    kept: str = ""
    """The name under which its user has it, if it is a result that was kept and no application."""
    role: AccountRole = AccountRole.APPLICATION
    folder: str = ""
    """The folder of a result's description."""
    made: int = 0
    """The nanosecond at which a result was prepared here, to tell which is newer."""
    taken_over: float = -inf
    """When a result took its name over, until its driver says that all hosts have switched."""
    taken_by: str = ""
    """The name of the application whose driver has done so."""
    described: int = 0
    """The bytes of its description, which count among those in its files."""
    connections: int = 0
    used: int = 0
    """The bytes in its files, and those that are granted to writers."""
    partitions: dict[PartitionId, KeptPartition] = field(default_factory=dict)
    numbers: dict[int, KeptPartition] = field(default_factory=dict)

    def add(self, kept: KeptPartition) -> None:
        """Take a partition in."""
        self.partitions[kept.partition] = kept
        self.numbers[kept.number] = kept
        self.used += kept.bytes

    def remove(self, kept: KeptPartition) -> None:
        """A partition is gone, and nothing more is said of it."""
        del self.partitions[kept.partition]
        del self.numbers[kept.number]
        self.used -= kept.bytes

    def settle(self, kept: KeptPartition, size: int) -> None:
        """A partition has so many bytes from now on."""
        self.used += size - kept.bytes
        kept.bytes = size

    def of_job(self, job: str) -> list[KeptPartition]:
        """The account's partitions of a job."""
        return [each for each in self.numbers.values() if each.partition.job == job]

    def grant(self, kept: KeptPartition, wanted: int, quota: int) -> None:
        """Let a partition have so many bytes; QuotaError where that is more than the application may have."""
        others = self.used - kept.bytes
        if quota and others + wanted > quota:
            raise QuotaError(
                f"partition {kept.partition} needs {wanted:,} bytes, and the application {self.key.title} has"
                f" {others:,} of the {quota:,} that this host's shuffle service lets it have: release persisted"
                " streams, use fewer or smaller exchanges in blocking mode at a time, or ask for a larger --quota"
            )
        self.settle(kept, max(kept.bytes, wanted))


@dataclass(frozen=True, slots=True)
class KeptQuotas:
    """The bytes in results that are kept by name, of each user and of all together; 0 is no limit."""

    user: int = 0
    total: int = 0


class KnownApplications:
    """All applications, by the names that their keys give them."""

    def __init__(self, lease: float, kept_lease: float) -> None:
        self._leases = {False: lease, True: kept_lease}
        self._accounts: dict[str, Account] = {}
        self._users: dict[int, dict[str, Account]] = {}
        self._results: dict[tuple[int, str], Account] = {}
        """The results that are current, by user and name."""

    def __iter__(self) -> Iterator[Account]:
        return iter(list(self._accounts.values()))

    def __len__(self) -> int:
        return len(self._accounts)

    def add(self, account: Account) -> None:
        """An application has come."""
        self._accounts[account.key.name] = account
        self._users.setdefault(account.user, {})[account.key.name] = account
        if account.role is AccountRole.CURRENT:
            self._results[account.user, account.kept] = account

    def remove(self, account: Account) -> None:
        """An application is over."""
        if self._accounts.pop(account.key.name, None) is not None:
            of_user = self._users[account.user]
            del of_user[account.key.name]
            if not of_user:
                del self._users[account.user]
        if self._results.get((account.user, account.kept)) is account:
            del self._results[account.user, account.kept]

    def find(self, name: str) -> Account | None:
        """The application of this name."""
        return self._accounts.get(name)

    def kept(self, name: str, user: int) -> Account | None:
        """The result that this user has under this name."""
        return self._results.get((user, name))

    def of_user(self, user: int) -> list[Account]:
        """A user's applications and results."""
        return list(self._users.get(user, {}).values())

    def refuse_too_many(self, user: int, most: int) -> None:
        """QuotaError where a user has so many partitions and results that the service has to know."""
        known = sum(1 + len(each.numbers) for each in self._users.get(user, {}).values())
        if known >= most:
            raise QuotaError(
                f"user {user} has {known:,} partitions and results at this host's shuffle service, which has memory"
                f" for {most:,} of one user: use fewer and larger partitions, end jobs, or ask for a larger --memory"
            )

    def others(self, result: Account) -> list[Account]:
        """The results of this one's user and name beside it, the newest first."""
        same = (each for each in self.of_user(result.user) if each.kept == result.kept)
        return sorted((each for each in same if each is not result), key=lambda each: each.made, reverse=True)

    def give_roles(self, roles: Iterable[tuple[Account, AccountRole]]) -> None:
        """Results are in other roles from now on."""
        for account, role in roles:
            self.remove(account)
            account.role = role
            self.add(account)

    def refuse_too_much(self, account: Account, name: str, size: int, quotas: KeptQuotas) -> None:
        """QuotaError where results, with one of this size under this name of this user, are more than a quota."""
        of_user = of_all = 0
        for each in self:
            replaced = (each.kept, each.user) == (name, account.user) and each.role is AccountRole.CURRENT
            if each.kept and not replaced:
                of_all += each.used
                of_user += each.used if each.user == account.user else 0
        if quotas.user and of_user + size > quotas.user:
            raise QuotaError(
                f"the result {name} has {size:,} bytes, and user {account.user} keeps {of_user:,} of the"
                f" {quotas.user:,} that this host's shuffle service lets a user keep by name: wait for the lease of"
                " others to end, keep less, or ask for a larger --kept-quota"
            )
        if quotas.total and of_all + size > quotas.total:
            raise QuotaError(
                f"the result {name} has {size:,} bytes, and all users keep {of_all:,} of the {quotas.total:,} that"
                " this host's shuffle service lets them keep by name: wait for the lease of others to end, keep less,"
                " or ask for a larger --kept-total"
            )

    def lease_of(self, account: Account) -> float:
        """The seconds without a word after which an account is over."""
        return self._leases[bool(account.kept)]

    def expired(self, now: float) -> list[Account]:
        """The accounts without a connection that were not heard of for their lease."""
        return [each for each in self if self.is_over(each, now)]

    def is_over(self, account: Account, now: float) -> bool:
        """True for an account without a connection that was not heard of for its lease."""
        return not account.connections and now - account.seen > self.lease_of(account)
