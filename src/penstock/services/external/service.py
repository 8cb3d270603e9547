# SPDX-License-Identifier: Apache-2.0
"""The `external` service, and its master in the driver.

The master names the service beside each producer, has released partitions removed, and lets the services know that
the application is there still. It keeps the names of what is there, no rows. The modules for tasks are imported in
tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.connection.protection import services_protection
from penstock.connection.transport import host_in, join_host
from penstock.errors import PenstockError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import EndApplication, ForgetJob, RenewLease, releases
from penstock.services.external.client import call
from penstock.services.external.kept_results import KeptResults
from penstock.services.partitions_of_jobs import PartitionsOfJobs
from penstock.settings import Settings
from penstock.shuffle import (
    Capabilities,
    JobShuffleContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)
from penstock.shuffle.ids import host_of
from penstock.shuffle.requests import Request

NAME = "external"
_LOG = logging.getLogger(__name__)
_RENEW_SECONDS = 30.0
_CALL_SECONDS = 10.0


class ExternalShuffleService:
    """The plug-in registered as `external`."""

    name = NAME
    capabilities = Capabilities(
        (PartitionKind.BLOCKING_SORT_MERGE, PartitionKind.BLOCKING_HASH, PartitionKind.BLOCKING_PERSISTENT),
        outlives_executors=True,
        keeps_by_name=True,
    )
    """All are kept the same way: one file, however many subpartitions."""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> ExternalMaster:
        """The driver side."""
        return ExternalMaster(context)

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """The side of a task."""
        from penstock.services.external.environment import ExternalEnvironment

        return ExternalEnvironment(context)

    def preload(self) -> None:
        """Import what writes and reads."""
        from penstock.services.external import environment  # noqa: F401 - imported ahead, nothing else


@dataclass(slots=True)
class Untold:
    """Partitions that are to go, and jobs of which all is to go."""

    partitions: set[PartitionId] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)

    def add(self, more: Untold) -> None:
        """These as well; of a job that is over no partition need be named."""
        self.jobs |= more.jobs
        self.partitions = {each for each in self.partitions | more.partitions if each.job not in self.jobs}

    @property
    def requests(self) -> list[Request[Any]]:
        """The questions that say so."""
        return [*releases(self.partitions), *map(ForgetJob, sorted(self.jobs))]


class ExternalMaster:
    """A `ShuffleMaster`, and a `NamedResults`."""

    def __init__(self, context: ShuffleMasterContext) -> None:
        self._key = ApplicationKey.of(context.application, context.secret)
        self._settings: Settings = context.settings
        self._protection = services_protection(context.settings.tls)
        self._addresses: dict[str, set[str]] = {}
        """The services that have, or had, something of a job."""
        self._held = PartitionsOfJobs(self._forget)
        self._known: set[str] = set()
        """All services that were used."""
        self._waiting: dict[str, list[PartitionId]] = {}
        """The partitions that the next call to a service releases."""
        self._untold: dict[str, Untold] = {}
        """What a service could not be told yet."""
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to say that the application is there."""
        self._renewing = asyncio.create_task(self._renew())

    async def arrive(self, names: Sequence[str]) -> str:
        """See that this host's service is there; by which of these names readers come to it."""
        from penstock.services.external.reaching import reached

        return await asyncio.to_thread(reached, self._key, self._settings, names)

    async def leave(self) -> None:
        """Say no more that the application is there: another process does, or its lease ends."""
        if self._renewing is not None:
            self._renewing.cancel()

    async def close(self) -> None:
        """Have everything removed; what can't be goes when the application's lease ends."""
        if self._renewing is not None:
            self._renewing.cancel()
        known, self._known = self._known, set()
        await asyncio.gather(*(self._tell(address, [EndApplication()]) for address in known))

    def register_job(self, context: JobShuffleContext) -> None:
        """A job begins."""
        self._held.begin(context.job)

    def unregister_job(self, job: str) -> None:
        """A job is over; results of it that are still held stay."""
        self._held.end(job)

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """A partition lies beside its producer, at that host's service."""
        host = host_in(producer.address) if producer.address else host_of(producer.environment)
        address = self.address_of(host, producer)
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        self._addresses.setdefault(job, set()).add(address)
        self._known.add(address)
        descriptor = ShuffleDescriptor(identity, NAME, partition.kind, address=address)
        self._held.add(descriptor)
        return descriptor

    def address_of(self, host: str, producer: ProducerDescriptor) -> str:
        """The address of the service on a producer's host: every host has it at the same port."""
        return join_host(host, self._settings.external.port)

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Have a partition removed; readers who come late hear of that until the job is over."""
        await self._held.release(descriptor, self._release)

    async def keep_result(
        self, name: str, schema: bytes, partitions: Sequence[ShuffleDescriptor]
    ) -> list[ShuffleDescriptor]:
        """Have the services keep these under a name, by a key that is made now; the words that find them."""
        return await KeptResults(self._key, self._settings).keep(name, schema, partitions)

    async def find_result(self, name: str) -> tuple[bytes, list[ShuffleDescriptor]] | None:
        """The schema and partitions of a result, as this host's service knows it."""
        return await KeptResults(self._key, self._settings).find(name)

    async def _forget(self, job: str) -> None:
        addresses = self._addresses.pop(job, set())
        await asyncio.gather(*(self._have_go(address, Untold(jobs={job})) for address in addresses))

    async def _release(self, descriptor: ShuffleDescriptor) -> None:
        """Releases at the same time share a call."""
        waiting = self._waiting.setdefault(descriptor.address, [])
        waiting.append(descriptor.partition)
        await asyncio.sleep(0)
        partitions = self._waiting.pop(descriptor.address, [])
        if partitions:
            await self._have_go(descriptor.address, Untold(set(partitions)))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            await asyncio.gather(*(self._say_again(address) for address in list(self._known)))

    async def _say_again(self, address: str) -> None:
        """Say that the application is there, and what could not be told before."""
        if (untold := self._untold.pop(address, None)) is not None:
            await self._have_go(address, untold)
        else:
            await self._tell(address, [RenewLease()])

    async def _have_go(self, address: str, what: Untold) -> None:
        """Have a service remove this; where it does not hear it, it is told again when the lease is renewed."""
        if not await self._tell(address, what.requests):
            self._untold.setdefault(address, Untold()).add(what)

    async def _tell(self, address: str, requests: Sequence[Request[Any]]) -> bool:
        """Tell whether a service has heard this."""
        try:
            await asyncio.to_thread(call, self._key, address, requests, _CALL_SECONDS, self._protection)
        except (PenstockError, OSError) as error:
            what = ", ".join(each.METHOD for each in requests)
            level = logging.DEBUG if what == RenewLease.METHOD else logging.WARNING  # a service may know nothing yet
            _LOG.log(level, "%s was not told of %s: its lease of this application ends it: %s", address, what, error)
            return isinstance(error, PenstockError)
        return True
