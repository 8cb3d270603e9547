# SPDX-License-Identifier: Apache-2.0
"""The figures of a host service, for its metrics endpoint: of each application, and of each disk."""

from __future__ import annotations

import functools
import pwd
import socket
from collections.abc import Iterator
from dataclasses import replace

from penstock.external.accounts import Account
from penstock.external.keeper import Keeper
from penstock.external.requests import KeptState
from penstock.external.server import GivenBytes, ServiceServer
from penstock.link.figures import UseFigures, UseKind
from penstock.machine.disk_work import DISKS
from penstock.observe.samples import Sample, use_samples
from penstock.shuffle.metrics import Metric, MetricKind

_APPLICATION = ("application", "user")
_STORED = Metric(
    "penstock_external_stored_bytes", MetricKind.GAUGE, "Bytes in an application's files, or granted.", _APPLICATION
)
_PARTITIONS = Metric(
    "penstock_external_partitions", MetricKind.GAUGE, "Partitions, by what they are.", (*_APPLICATION, "state")
)
_GIVEN = Metric(
    "penstock_external_given_bytes_total",
    MetricKind.COUNTER,
    "Bytes that readers fetched, and bytes of files that they were lent.",
    (*_APPLICATION, "way"),
)
_MEMORY = Metric("penstock_external_memory_bytes", MetricKind.GAUGE, "Buffers for bytes on their way.", ("user",))
_CONNECTIONS = Metric(
    "penstock_external_connections", MetricKind.GAUGE, "Connections of an application.", _APPLICATION
)
_FREE = Metric("penstock_external_disk_free_bytes", MetricKind.GAUGE, "Bytes free on a disk.", ("folder",))
_REFUSED = Metric(
    "penstock_external_refused_total", MetricKind.COUNTER, "Connections that did not prove who they are.", ()
)


def service_samples(keeper: Keeper, server: ServiceServer) -> Iterator[Sample]:
    """All figures of this moment."""
    given = server.given()
    for account in keeper.accounts:
        yield from _of(account, given.get(account.key.name, GivenBytes()))
    for user, size in server.memory_bytes().items():
        yield Sample(_MEMORY, (str(user),), size)
    for root, space in zip(keeper.folders.roots, keeper.upkeep.disks.known(), strict=True):
        if not space.problem:  # a disk that is gone has no figure
            yield Sample(_FREE, (str(root),), space.free)
    yield Sample(_REFUSED, (), server.refused)
    disks = (UseFigures(UseKind.DISK, disk, figures) for disk, figures in DISKS.figures().items())
    users = (replace(each, name=_user_name(each.name)) for each in keeper.users.figures())
    yield from use_samples(f"host service of {socket.gethostname()}", (*disks, *users))


@functools.lru_cache(1_000)
def _user_name(user: str) -> str:
    """A user's name, looked up once: that may ask a directory on another host."""
    try:
        return pwd.getpwuid(int(user)).pw_name
    except KeyError:
        return user


def _of(account: Account, given: GivenBytes) -> Iterator[Sample]:
    labels = (account.key.title, str(account.user))
    yield Sample(_STORED, labels, account.used)
    for way, size in given._asdict().items():
        yield Sample(_GIVEN, (*labels, way), size)
    yield Sample(_CONNECTIONS, labels, account.connections)
    counts = dict.fromkeys(KeptState, 0)
    for kept in account.numbers.values():
        counts[kept.state] += 1
    for state in (KeptState.WRITING, KeptState.THERE):
        yield Sample(_PARTITIONS, (*labels, state.value), counts[state])
