# SPDX-License-Identifier: Apache-2.0
"""The `spark_ess` service, and its master in the driver.

The master names places and has released files removed by the services that have them. It keeps the names of what is
there, no rows. The modules for tasks are imported in tasks: a driver starts without them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable

from penstock.connection.transport import host_in
from penstock.errors import PenstockError
from penstock.services.partitions_of_jobs import PartitionsOfJobs
from penstock.services.spark_ess.client import Access, address_of, call, refuse_unauthenticated
from penstock.services.spark_ess.messages import remove_blocks
from penstock.services.spark_ess.places import Place
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

NAME = "spark_ess"
_LOG = logging.getLogger(__name__)


class SparkEssShuffleService:
    """The plug-in registered as `spark_ess`."""

    name = NAME
    capabilities = Capabilities(
        (PartitionKind.BLOCKING_SORT_MERGE, PartitionKind.BLOCKING_HASH, PartitionKind.BLOCKING_PERSISTENT),
        outlives_executors=True,
    )
    """All are kept the same way. A file for each subpartition would be a request for each."""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> SparkEssMaster:
        """The driver side."""
        return SparkEssMaster(context)

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """The side of a task."""
        from penstock.services.spark_ess.environment import EssEnvironment

        return EssEnvironment(context)

    def preload(self) -> None:
        """Import what writes and reads."""
        from penstock.services.spark_ess import environment  # noqa: F401 - imported ahead, nothing else


class SparkEssMaster:
    """A `ShuffleMaster`: it knows where partitions lie, and has them removed."""

    def __init__(self, context: ShuffleMasterContext) -> None:
        self._access = Access.of(context.settings.ess, context.application)
        self._accepts_unauthenticated = context.settings.ess.accept_unauthenticated
        self._held = PartitionsOfJobs(self._forget)
        self._marks: dict[str, list[ShuffleDescriptor]] = {}
        """By job: what was released, and has left its mark for readers that come late."""

    async def start(self) -> None:
        """Nothing to start: the services are Spark's."""

    async def close(self) -> None:
        """Have everything removed; what can't be goes with the application's folders."""
        held = self._held.clear()
        marks = [each for job in self._marks.values() for each in job]
        self._marks.clear()
        await self._remove([*held, *marks], marks=True)

    def register_job(self, context: JobShuffleContext) -> None:
        """A job begins."""
        self._held.begin(context.job)

    def unregister_job(self, job: str) -> None:
        """A job is over; results of it that are still held stay."""
        self._held.end(job)

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """A partition lies beside its producer, at that host's shuffle service."""
        environment = producer.environment
        host = host_in(producer.address) if producer.address else host_of(environment)
        address = (host, self._access.port)
        await asyncio.to_thread(
            refuse_unauthenticated, self._access, address, is_accepted=self._accepts_unauthenticated
        )
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        descriptor = ShuffleDescriptor(
            identity,
            NAME,
            partition.kind,
            address=f"tcp://{host}:{self._access.port}",
            location=str(Place.new(environment)),
        )
        self._held.add(descriptor)
        return descriptor

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Have the files removed; the mark goes with the job, so that readers who come late hear of the release."""
        await self._held.release(descriptor, self._release)

    async def _release(self, descriptor: ShuffleDescriptor) -> None:
        self._marks.setdefault(descriptor.partition.job, []).append(descriptor)
        await self._remove([descriptor], marks=False)

    async def _forget(self, job: str) -> None:
        await self._remove(self._marks.pop(job, []), marks=True)

    async def _remove(self, descriptors: Iterable[ShuffleDescriptor], *, marks: bool) -> None:
        """Have the files of partitions removed, or with their marks."""
        names: dict[tuple[str, str], list[str]] = defaultdict(list)
        for descriptor in descriptors:
            place = Place.from_text(descriptor.location)
            names[descriptor.address, place.executor] += [*place.files, *(place.marks if marks else [])]
        for (address, executor), files in names.items():
            body = remove_blocks(self._access.application, executor, files)
            try:
                await asyncio.to_thread(call, self._access, address_of(address), [body], _nothing)
            except (PenstockError, TimeoutError, OSError) as error:
                _LOG.warning("%d files at %s stay until Spark removes the folder: %s", len(files), address, error)


def _nothing() -> None:
    """Do nothing: the driver's requests are not cancelled."""
