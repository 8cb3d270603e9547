# SPDX-License-Identifier: Apache-2.0
"""All partitions of one environment: who may read what, who waits for what, and what became of the rest.

Rules:

- Answers are distinct. A partition that is gone leaves a tombstone, so a late reader is told whether it was
  released, expired, lost or failed. Tombstones are bounded; the oldest go first, and those of a job that is over are
  replaced by one for the whole job.
- Fencing: a request names an attempt. If only a newer attempt of the same partition is known, it is stale; if only
  older ones are known, the attempt has not produced yet. A tombstoned attempt can't be registered any more.
- A request for what is not there yet waits, with a deadline. Its waiter is called once: with None when the partition
  came (request again), or with the error. Waiters are called last, so they may call back.

Sans-I/O, one thread; times are seconds of whatever clock the caller passes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock.buffer.view import DataListener, ServableView, SubpartitionView
from penstock.errors import (
    PartitionNotProducedError,
    PenstockError,
    ProtocolError,
    StaleError,
)
from penstock.partition.answers import describe, end_error
from penstock.partition.lifecycle import ENDING, PartitionEvent, PartitionState
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId

Waiter = Callable[[PenstockError | None], None]


class ReadablePartition(Protocol):
    """The methods of a partition of any kind that the registry calls. It ends once; a second end changes nothing."""

    @property
    def partition_id(self) -> PartitionId:
        """The identity of the partition."""

    @property
    def state(self) -> PartitionState:
        """The state of its life."""

    @property
    def cause(self) -> str:
        """Why it ended."""

    def create_view(self, subpartition: int, listener: DataListener, count: int = 1) -> ServableView:
        """A view of `count` subpartitions for a reader elsewhere, or the PartitionError that says why not."""

    def create_local_view(self, subpartition: int, listener: DataListener, count: int = 1) -> SubpartitionView:
        """The view for a reader of this host."""

    @property
    def label(self) -> str:
        """Its kind, for figures."""

    def size(self, segment_size: int) -> int:
        """The bytes that it holds in segments and files, as far as known."""

    def lost(self, cause: str) -> PenstockError:
        """A reader found that a file of it is gone: what it is told."""

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it with one of the four events that end a partition."""


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """A request for a partition that is not there yet."""

    partition: PartitionId
    waiter: Waiter
    since: float


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The end of a partition."""

    state: PartitionState
    cause: str


@dataclass(frozen=True, slots=True)
class RegistryStatistics:
    """The counts of a registry at one moment."""

    partitions: int
    tombstones: int
    waiting: int


class PartitionRegistry:
    """The partitions of one environment process. A reader waits `timeout` seconds for one not registered yet."""

    __slots__ = (
        "_attempts",
        "_host",
        "_limit",
        "_partitions",
        "_released_jobs",
        "_timeout",
        "_tombstones",
        "_waiting",
    )

    def __init__(self, host: str = "", tombstones: int = 4096, timeout: float = 10.0) -> None:
        self._host = host
        self._limit = tombstones
        self._timeout = timeout
        self._partitions: dict[PartitionId, ReadablePartition] = {}
        self._tombstones: dict[PartitionId, Tombstone] = {}
        self._released_jobs: dict[str, None] = {}
        # Attempts with a partition or a tombstone: what fencing compares with.
        self._attempts: dict[tuple[DatasetId, int], set[int]] = {}
        self._waiting: dict[PartitionId, list[WaitingRequest]] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def get(self, partition: PartitionId) -> ReadablePartition | None:
        """The partition, if it is here and alive."""
        return self._partitions.get(partition)

    def register(self, partition: ReadablePartition) -> None:
        """Make a partition known, wake who waits for it. ProtocolError for a second one, StaleError after its end."""
        identity = partition.partition_id
        if identity in self._partitions:
            raise ProtocolError(f"partition {identity} is registered already on {self._host or 'this host'}")
        tombstone = self._tombstones.get(identity)
        if tombstone is not None or identity.job in self._released_jobs:
            ended = tombstone.state.value if tombstone is not None else "released with its job"
            raise StaleError(f"partition {identity} cannot be registered: it was {ended} before its producer came")
        self._partitions[identity] = partition
        self._know(identity)
        ready = self._waiting.pop(identity, [])
        older = [
            key
            for key in self._waiting
            if (key.dataset, key.index) == (identity.dataset, identity.index) and key.attempt < identity.attempt
        ]
        stale = [request for key in older for request in self._waiting.pop(key)]
        for request in ready:
            request.waiter(None)
        for request in stale:
            request.waiter(self._stale(request.partition, identity.attempt))

    def find(self, partition: PartitionId) -> ReadablePartition:
        """The partition. PartitionNotProducedError means that `wait` may help; every other error is final."""
        found = self._partitions.get(partition)
        if found is None:
            raise self._answer(partition)
        return found

    def wait(self, partition: PartitionId, waiter: Waiter, now: float) -> WaitingRequest:
        """Wait for a partition whose request was answered with PartitionNotProducedError."""
        request = WaitingRequest(partition, waiter, now)
        self._waiting.setdefault(partition, []).append(request)
        return request

    def cancel(self, request: WaitingRequest) -> None:
        """The reader waits no more; its waiter is not called. Idempotent."""
        requests = self._waiting.get(request.partition, [])
        if request in requests:
            requests.remove(request)
            if not requests:
                del self._waiting[request.partition]

    def expire_waiting(self, now: float) -> int:
        """Answer those who have waited too long; their number."""
        late = [r for requests in self._waiting.values() for r in requests if r.since + self._timeout <= now]
        for request in late:
            self.cancel(request)
        for request in late:
            waited = f"{now - request.since:.1f} s"
            request.waiter(self._not_produced(request.partition, f"after a wait of {waited}"))
        return len(late)

    def release(self, partitions: Iterable[PartitionId], cause: str = "") -> None:
        """Release partitions; those unknown here leave a tombstone too, so their producers come too late."""
        self._end(partitions, PartitionEvent.RELEASE, cause)

    def fail(self, partition: PartitionId, cause: BaseException | str) -> None:
        """A producer failed, perhaps before it registered."""
        self._end([partition], PartitionEvent.FAIL, describe(cause))

    def expire(self, partitions: Iterable[PartitionId], cause: str = "") -> None:
        """End partitions whose leases ran out."""
        self._end(partitions, PartitionEvent.EXPIRE, cause)

    def lose(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Their data is gone, not on purpose: they are lost."""
        self._end(partitions, PartitionEvent.LOSE, cause)

    def bury(self, partition: PartitionId) -> None:
        """A partition has ended by itself: keep only how. Meant for its `on_end`; idempotent."""
        found = self._partitions.get(partition)
        if found is not None and found.state.is_end:
            del self._partitions[partition]
            self._entomb(partition, Tombstone(found.state, found.cause))

    def _end(self, partitions: Iterable[PartitionId], event: PartitionEvent, cause: str) -> None:
        waiting: list[WaitingRequest] = []
        for partition in list(partitions):
            found = self._partitions.get(partition)
            if found is not None:
                found.end(event, cause)
                self.bury(partition)
            elif partition not in self._tombstones:
                self._entomb(partition, Tombstone(ENDING[event], cause))
            waiting += self._waiting.pop(partition, [])
        for request in waiting:
            request.waiter(self._answer(request.partition))

    def _entomb(self, partition: PartitionId, tombstone: Tombstone) -> None:
        if partition.job in self._released_jobs:
            self._forget(partition)
            return
        self._tombstones[partition] = tombstone
        self._know(partition)
        while len(self._tombstones) > self._limit:
            oldest = next(iter(self._tombstones))
            del self._tombstones[oldest]
            self._forget(oldest)

    def _know(self, partition: PartitionId) -> None:
        self._attempts.setdefault((partition.dataset, partition.index), set()).add(partition.attempt)

    def _forget(self, partition: PartitionId) -> None:
        key = (partition.dataset, partition.index)
        attempts = self._attempts.get(key, set())
        attempts.discard(partition.attempt)
        if not attempts:
            self._attempts.pop(key, None)

    def _answer(self, partition: PartitionId) -> PenstockError:
        tombstone = self._tombstones.get(partition)
        if tombstone is not None:
            return end_error(partition, tombstone.state, tombstone.cause, self._host)
        if partition.job in self._released_jobs:
            return end_error(partition, PartitionState.RELEASED, "its job is over", self._host)
        newest = max(self._attempts.get((partition.dataset, partition.index), ()), default=partition.attempt)
        if newest > partition.attempt:
            return self._stale(partition, newest)
        return self._not_produced(partition, "yet")

    def _stale(self, partition: PartitionId, newest: int) -> StaleError:
        return StaleError(
            f"partition {partition} is out of date on {self._host or 'this host'}: attempt {newest} has replaced it"
        )

    def _not_produced(self, partition: PartitionId, when: str) -> PartitionNotProducedError:
        return PartitionNotProducedError(
            f"partition {partition} is not produced on {self._host or 'this host'} {when}: no producer of this "
            "attempt has registered there"
        )

    def present(self) -> Iterable[ReadablePartition]:
        """All partitions that are here."""
        return self._partitions.values()

    def occupying(self) -> list[PartitionId]:
        """The partitions that hold memory or files here."""
        return sorted(self._partitions)

    def release_job(self, job: str) -> list[PartitionId]:
        """A job is over: release all it has here. Returns those released."""
        self._released_jobs[job] = None
        ended = [partition for partition in self._partitions if partition.job == job]
        waiting = [partition for partition in self._waiting if partition.job == job]
        for partition in [partition for partition in self._tombstones if partition.job == job]:
            del self._tombstones[partition]
            self._forget(partition)
        self._end([*ended, *waiting], PartitionEvent.RELEASE, "its job is over")
        while len(self._released_jobs) > self._limit:
            del self._released_jobs[next(iter(self._released_jobs))]
        return ended

    def close(self) -> None:
        """Release everything and answer all who wait; idempotent."""
        self._end([*self._partitions, *self._waiting], PartitionEvent.RELEASE, "its environment has ended")

    def statistics(self) -> RegistryStatistics:
        """The counts at this moment."""
        return RegistryStatistics(
            partitions=len(self._partitions),
            tombstones=len(self._tombstones),
            waiting=sum(len(requests) for requests in self._waiting.values()),
        )
