# SPDX-License-Identifier: Apache-2.0
"""The state that processes of one application share in the `memory` service: partitions, gates, one lock.

Rules: environments and masters of the same application share one `MemoryRegistry`; it goes with the last of
them. All state is read and changed under `lock`; every change ends the waits of all tasks, which look again.
A registry keeps the tombstones of partitions until their job is unregistered, so that every answer stays
distinct. Limits: one lock per application, which is plenty for tests and not meant for throughput.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.errors import SettingError, StaleError
from penstock.partition.lifecycle import PartitionEvent
from penstock.shuffle import AttemptId, JobShuffleContext, PartitionId, ShuffleDescriptor
from penstock.shuffle.kinds import PartitionKind
from penstock.testing.memory_partition import MemoryPartition

REFUSED_KINDS = frozenset({PartitionKind.PIPELINED_APPROXIMATE})


class Gate(Protocol):
    """The methods of a gate that the registry calls, always under the lock."""

    environment: str

    def replace_unknown(self, descriptor: ShuffleDescriptor) -> None:
        """Take the real producer of a channel."""

    def lose(self, cause: str) -> None:
        """The gate's own environment is gone."""


class MemoryRegistry:
    """All partitions, gates and jobs of one application."""

    def __init__(self, application: str) -> None:
        self.application = application
        self.lock = threading.RLock()
        self.wakers: list[Callable[[], None]] = []
        """The wakers of all tasks."""
        self.partitions: dict[PartitionId, MemoryPartition] = {}
        self.registered: dict[str, set[PartitionId]] = {}
        self.jobs: dict[str, JobShuffleContext] = {}
        self.gates: dict[AttemptId, list[Gate]] = {}
        self.cancelled: set[AttemptId] = set()
        self.unwanted: set[tuple[PartitionId, int]] = set()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, and wake all tasks after the change."""
        with self.lock:
            try:
                yield
            finally:
                self.wake_all()

    def wake_all(self) -> None:
        """There is something to be read, or room."""
        for wake in list(self.wakers):
            wake()

    def add(self, partition: MemoryPartition) -> None:
        """Make a partition known at its writer's setup; a second life of the same attempt is refused."""
        check_kind(partition.kind)
        with self.changing():
            if partition.id in self.partitions:
                raise StaleError(f"partition {partition.id} was set up before: a new attempt writes a new partition")
            self.partitions[partition.id] = partition
            for index in range(len(partition.subpartitions)):
                if (partition.id, index) in self.unwanted:
                    self.unwanted.discard((partition.id, index))
                    partition.end_reading(index)

    def forget_gate(self, attempt: AttemptId, gate: Gate) -> None:
        """A gate has closed. Within `changing`."""
        gates = self.gates[attempt]
        gates.remove(gate)
        if not gates:
            del self.gates[attempt]

    def find(self, partition: PartitionId) -> MemoryPartition | None:
        """The partition, or None where it is not produced yet; StaleError where only a newer attempt is known."""
        found = self.partitions.get(partition)
        if found is not None or any(partition in known for known in self.registered.values()):
            return found
        for other in self.partitions:
            if (other.dataset, other.index) == (
                partition.dataset,
                partition.index,
            ) and other.attempt > partition.attempt:
                raise StaleError(f"partition {partition} was never registered and {other} has replaced it")
        return None

    def release(self, partitions: Iterable[PartitionId], environment: str | None = None) -> None:
        """Release these partitions, on one environment or anywhere; unknown ones are ignored."""
        with self.changing():
            for partition in partitions:
                found = self.partitions.get(partition)
                if found is not None and environment in (None, found.environment):
                    found.end(PartitionEvent.RELEASE)

    def occupying(self, environment: str) -> list[PartitionId]:
        """The partitions that hold memory for this environment, in order."""
        with self.lock:
            held = [p.id for p in self.partitions.values() if p.holds_resources and p.environment == environment]
        return sorted(held)

    def update(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Hand a real descriptor to the gates of a consumer; False where there are none."""
        with self.changing():
            gates = self.gates.get(consumer, [])
            for gate in gates:
                gate.replace_unknown(descriptor)
            return bool(gates)

    def cancel(self, attempt: AttemptId) -> None:
        """Tell an attempt to stop: its waiting writes and reads raise TaskCancelledError."""
        with self.changing():
            self.cancelled.add(attempt)

    def lose_environment(self, environment: str, cause: str) -> None:
        """An environment is gone with all it held; its jobs are told once."""
        with self.changing():
            lost = [p for p in self.partitions.values() if p.holds_resources and p.environment == environment]
            for partition in lost:
                partition.end(PartitionEvent.LOSE, RuntimeError(cause))
            for gates in self.gates.values():
                for gate in gates:
                    if gate.environment == environment:
                        gate.lose(cause)
            reports = [(self.jobs[job], ids & {p.id for p in lost}) for job, ids in self._registered_jobs()]
        for context, gone in reports:
            if gone:
                context.report_lost_partitions(sorted(gone), cause)

    def forget_job(self, job: str) -> None:
        """Drop everything of a job but its persistent partitions, tombstones included."""
        with self.changing():
            self.jobs.pop(job, None)
            known = self.registered.pop(job, set())
            self.unwanted = {item for item in self.unwanted if item[0] not in known}
            for partition in known:
                found = self.partitions.get(partition)
                if found is None or found.kind.persistent:
                    continue
                found.end(PartitionEvent.RELEASE)
                del self.partitions[partition]
            self.cancelled = {attempt for attempt in self.cancelled if attempt.job != job}

    def _registered_jobs(self) -> list[tuple[str, set[PartitionId]]]:
        return [(job, ids) for job, ids in self.registered.items() if job in self.jobs]


def check_kind(kind: PartitionKind) -> None:
    """Raise SettingError for a kind this service does not have."""
    if kind in REFUSED_KINDS:
        raise SettingError(
            f"the memory shuffle service has no {kind.label} partitions: choose another mode or service"
        )


_registries: dict[str, tuple[MemoryRegistry, int]] = {}
_registries_lock = threading.Lock()


def attach(application: str) -> MemoryRegistry:
    """The application's registry, made by the first to ask; pair every call with a `detach`."""
    with _registries_lock:
        registry, users = _registries.get(application) or (MemoryRegistry(application), 0)
        _registries[application] = (registry, users + 1)
        return registry


def detach(registry: MemoryRegistry) -> None:
    """Give a registry back; the last one to do so takes it away."""
    with _registries_lock:
        known, users = _registries[registry.application]
        if users == 1:
            del _registries[registry.application]
        else:
            _registries[registry.application] = (known, users - 1)


def live_applications() -> list[str]:
    """The applications that still have a registry, for leak checks."""
    with _registries_lock:
        return sorted(_registries)
