# SPDX-License-Identifier: Apache-2.0
"""Accounts of applications at a host service: quotas, and who is over."""

from __future__ import annotations

import pytest

from penstock.errors import QuotaError
from penstock.external.accounts import Account, AccountRole, KeptPartition, KeptQuotas, KnownApplications
from penstock.external.keys import ApplicationKey
from penstock.external.requests import KeptState
from penstock.shuffle import DatasetId, PartitionId

KEY = ApplicationKey.of("app", b"a secret of sixteen bytes or more")


def kept(number: int, state: KeptState = KeptState.WRITING) -> KeptPartition:
    """A partition that is being written."""
    return KeptPartition(number, PartitionId(DatasetId("job", 0), number, 0), 2, state)


def test_what_is_granted_to_writers_counts_before_it_is_written() -> None:
    """Two writers can't go over the quota together, and a commit gives back what was not needed."""
    account, first, second = Account(KEY, 1000), kept(1), kept(2)
    for each in (first, second):
        account.add(each)
    account.grant(first, 60, quota=100)
    with pytest.raises(QuotaError, match=r"needs 60 bytes.*has 60 of the 100.*--quota"):
        account.grant(second, 60, quota=100)
    account.settle(first, 10)
    account.grant(second, 60, quota=100)
    assert account.used == 70
    account.remove(first)
    assert account.used == 60


def test_without_a_quota_everything_is_granted() -> None:
    """No limit is no limit; room that was granted is not taken back by a smaller wish."""
    account, only = Account(KEY, 1000), kept(1)
    account.add(only)
    account.grant(only, 1 << 50, quota=0)
    account.grant(only, 1, quota=0)
    assert account.used == only.bytes == 1 << 50


def test_an_application_with_a_connection_is_not_over() -> None:
    """Only one that nobody has heard of for a lease, and that has no connection, is."""
    known, account = KnownApplications(10.0, 10.0), Account(KEY, 1000, seen=5.0)
    known.add(account)
    assert known.find(KEY.name) is account
    assert not known.expired(15.0)
    account.connections = 1
    assert not known.expired(100.0)
    account.connections = 0
    assert known.expired(15.1) == [account]


def test_a_result_is_found_by_its_user_alone_and_has_a_lease_of_its_own() -> None:
    """Another user's name is another result; a user's results have a quota together, and so have all users'."""
    known = KnownApplications(lease=10.0, kept_lease=100.0)
    mine, other = (ApplicationKey("kept", bytes([n]) * 32) for n in (1, 2))
    first, second = (
        Account(key, user, kept="numbers", role=AccountRole.CURRENT) for key, user in ((mine, 1000), (other, 1001))
    )
    for account in (first, second):
        known.add(account)
    first.used = 60
    assert known.kept("numbers", 1000) is first
    assert known.kept("numbers", 1001) is second
    assert known.kept("letters", 1000) is known.kept("numbers", 1002) is None
    assert not known.expired(50.0)
    assert known.expired(101.0) == [first, second]
    known.refuse_too_much(first, "numbers", 100, KeptQuotas(user=100))
    with pytest.raises(QuotaError, match=r"user 1000 keeps 60 of the 100 .*--kept-quota"):
        known.refuse_too_much(first, "letters", 50, KeptQuotas(user=100))
    first.role = AccountRole.FORMER
    with pytest.raises(QuotaError, match="user 1000 keeps 60 of the 100"):
        known.refuse_too_much(first, "numbers", 50, KeptQuotas(user=100))  # else any number of them is kept
    first.role = AccountRole.CURRENT
    second.used = 30
    known.refuse_too_much(first, "letters", 10, KeptQuotas(user=100, total=100))
    known.refuse_too_much(first, "numbers", 70, KeptQuotas(total=100))
    with pytest.raises(QuotaError, match=r"all users keep 90 of the 100 .*--kept-total"):
        known.refuse_too_much(first, "letters", 11, KeptQuotas(user=100, total=100))


def test_a_key_says_nothing_of_its_secret_and_names_its_application() -> None:
    """Another secret gives another key and name, and no representation has the key."""
    other = ApplicationKey.of("app", b"another secret of sixteen bytes")
    assert other.key != KEY.key
    assert other.name != KEY.name
    assert KEY.key not in (b"a secret of sixteen bytes or more", KEY.name.encode())
    assert KEY.key.hex() not in repr(KEY)
    assert repr(KEY.key) not in repr(KEY)
