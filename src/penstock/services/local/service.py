# SPDX-License-Identifier: Apache-2.0
"""The `local` shuffle service and its master in the driver.

The modules for tasks (`environment`, and all that writes and reads) are imported in tasks: a driver starts without
them.
"""

from __future__ import annotations

from penstock.services.local.metrics import METRICS
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

NAME = "local"


class LocalShuffleService:
    """The plug-in registered as `local`."""

    name = NAME
    capabilities = Capabilities(
        (
            PartitionKind.PIPELINED_BOUNDED,
            PartitionKind.PIPELINED_APPROXIMATE,
            PartitionKind.HYBRID_FULL,
            PartitionKind.HYBRID_SELECTIVE,
            PartitionKind.BLOCKING_SORT_MERGE,
            PartitionKind.BLOCKING_HASH,
            PartitionKind.BLOCKING_PERSISTENT,
        ),
        streams=True,
    )
    metrics = METRICS

    def create_shuffle_master(self, context: ShuffleMasterContext) -> LocalShuffleMaster:
        """The driver side."""
        return LocalShuffleMaster()

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """The host side, over the data plane of the task's host."""
        from penstock.services.local.environment import LocalShuffleEnvironment

        return LocalShuffleEnvironment(context.host, context.settings)

    def preload(self) -> None:
        """Import what writes and reads."""
        from penstock.services.local import environment  # noqa: F401 - imported ahead, nothing else


class LocalShuffleMaster:
    """Knows nothing but where a partition lies: beside its producer."""

    async def start(self) -> None:
        """Nothing to start: environments start with the first task of their host."""

    async def close(self) -> None:
        """Nothing to close."""

    def register_job(self, context: JobShuffleContext) -> None:
        """Nothing to note: what a job has here its hosts know."""

    def unregister_job(self, job: str) -> None:
        """Nothing to forget: a job's partitions are released through the hosts that hold them."""

    async def register_partition_with_producer(
        self,
        job: str,
        partition: PartitionDescriptor,
        producer: ProducerDescriptor,
    ) -> ShuffleDescriptor:
        """A partition lies in its producer's environment."""
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        return ShuffleDescriptor(identity, NAME, partition.kind, producer.environment, producer.address)

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Nothing lies outside the hosts."""
