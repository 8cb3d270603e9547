# SPDX-License-Identifier: Apache-2.0
"""The `objects` service, and its master in the driver. The modules for tasks are imported in tasks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.services.partitions_of_jobs import PartitionsOfJobs
from penstock.services.remote.places import Breadth
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

if TYPE_CHECKING:
    from penstock.services.objects.places import ObjectFolder

NAME = "objects"
_LOG = logging.getLogger(__name__)


class ObjectsShuffleService:
    """The plug-in registered as `objects`."""

    name = NAME
    capabilities = Capabilities(
        (PartitionKind.BLOCKING_SORT_MERGE, PartitionKind.BLOCKING_HASH, PartitionKind.BLOCKING_PERSISTENT),
        outlives_executors=True,
        uses_data_plane=False,
    )

    def create_shuffle_master(self, context: ShuffleMasterContext) -> ObjectMaster:
        """The driver side."""
        return ObjectMaster(context)

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """The side of a task."""
        from penstock.services.objects.environment import ObjectEnvironment

        return ObjectEnvironment(context)

    def preload(self) -> None:
        """Import what writes and reads."""
        from penstock.services.objects import environment  # noqa: F401 - imported ahead, nothing else


class ObjectMaster:
    """A `ShuffleMaster`: it names partitions, and removes them."""

    def __init__(self, context: ShuffleMasterContext) -> None:
        from penstock.services.objects.places import ObjectFolder

        self._folder: ObjectFolder = ObjectFolder(context.settings.objects.uri, context.application)
        self._held = PartitionsOfJobs(lambda job: self._remove(self._folder.job(job)))

    async def start(self) -> None:
        """Nothing to do: there is no service to connect to."""

    async def close(self) -> None:
        """Remove all objects of the application."""
        await self._remove(self._folder.root)

    def register_job(self, context: JobShuffleContext) -> None:
        """A job begins."""
        self._held.begin(context.job)

    def unregister_job(self, job: str) -> None:
        """A job is over; results of it that are still held stay."""
        self._held.end(job)

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """Name a partition; StorageError where the store does not take that."""
        from penstock.services.objects.places import NAMED

        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        breadth = Breadth(partition.subpartitions, 1 if partition.broadcast else partition.subpartitions)
        await asyncio.to_thread(self._folder.write, f"{self._folder.place(identity)}/{NAMED}")
        descriptor = ShuffleDescriptor(identity, NAME, partition.kind, location=str(breadth))
        self._held.add(descriptor)
        return descriptor

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Remove its objects; the word that it was released goes with the job."""
        await self._held.release(descriptor, self._release)

    async def _release(self, descriptor: ShuffleDescriptor) -> None:
        await asyncio.to_thread(self._folder.release, descriptor.partition)

    async def _remove(self, folder: str) -> None:
        try:
            await asyncio.to_thread(self._folder.remove_folder, folder)
        except PenstockError as error:
            _LOG.warning("objects stay, and nobody needs them: %s", error)
