# SPDX-License-Identifier: Apache-2.0
"""Which environment holds which partitions, and of which job.

A partition is tracked from its registration with the ShuffleMaster until it is released or lost. No I/O:
`release` gives what to release, grouped by environment, and forgets it.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.shuffle import PartitionId, ShuffleDescriptor

Released = dict[str, tuple[ShuffleDescriptor, ...]]


class PartitionTracker:
    """The partitions of all jobs of one application."""

    def __init__(self) -> None:
        self._by_id: dict[PartitionId, tuple[str, ShuffleDescriptor]] = {}
        self._by_job: dict[str, set[PartitionId]] = {}
        self._by_environment: dict[str, set[PartitionId]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def start(self, job: str, descriptor: ShuffleDescriptor) -> None:
        """Begin to track a partition."""
        partition = descriptor.partition
        self._by_id[partition] = (job, descriptor)
        self._by_job.setdefault(job, set()).add(partition)
        environment = descriptor.stores_local_resources_on
        if environment is not None:
            self._by_environment.setdefault(environment, set()).add(partition)

    def knows(self, partition: PartitionId) -> bool:
        """Tell whether a partition is tracked: it was registered, and neither released nor lost."""
        return partition in self._by_id

    def job_of(self, partition: PartitionId) -> str | None:
        """The job a partition is tracked for, if it is."""
        entry = self._by_id.get(partition)
        return entry[0] if entry is not None else None

    def partitions_of(self, job: str) -> list[PartitionId]:
        """The partitions that are tracked for a job."""
        return sorted(self._by_job.get(job, ()))

    def holds(self, environment: str) -> list[PartitionId]:
        """The partitions that an environment holds."""
        return sorted(self._by_environment.get(environment, ()))

    def lose_environment(self, environment: str) -> dict[str, tuple[PartitionId, ...]]:
        """An environment is gone: stop tracking what it held; the lost partitions by job."""
        return self.lose(self.holds(environment))

    def lose(self, partitions: Iterable[PartitionId]) -> dict[str, tuple[PartitionId, ...]]:
        """Partitions are gone: stop tracking them; the known ones by job."""
        lost: dict[str, list[PartitionId]] = {}
        for partition in partitions:
            entry = self._by_id.get(partition)
            if entry is not None:
                lost.setdefault(entry[0], []).append(partition)
                self._forget(partition)
        return {job: tuple(items) for job, items in lost.items()}

    def release(self, job: str, keep: Iterable[PartitionId] = ()) -> Released:
        """Stop tracking a job's partitions but those to keep; what to release, by environment (empty: outside)."""
        kept = set(keep)
        return self.release_some(partition for partition in self.partitions_of(job) if partition not in kept)

    def release_some(self, partitions: Iterable[PartitionId]) -> Released:
        """Stop tracking these, where they are tracked; what to release, by environment (empty: outside)."""
        groups: dict[str, list[ShuffleDescriptor]] = {}
        for partition in partitions:
            if partition in self._by_id:
                descriptor = self._forget(partition)
                groups.setdefault(descriptor.environment, []).append(descriptor)
        return {environment: tuple(items) for environment, items in groups.items()}

    def _forget(self, partition: PartitionId) -> ShuffleDescriptor:
        job, descriptor = self._by_id.pop(partition)
        self._discard(self._by_job, job, partition)
        environment = descriptor.stores_local_resources_on
        if environment is not None:
            self._discard(self._by_environment, environment, partition)
        return descriptor

    @staticmethod
    def _discard(index: dict[str, set[PartitionId]], key: str, partition: PartitionId) -> None:
        index[key].discard(partition)
        if not index[key]:
            del index[key]
