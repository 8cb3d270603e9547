# SPDX-License-Identifier: Apache-2.0
"""The protocols a shuffle service implements.

A service is one object (`ShuffleService`) that makes a `ShuffleMaster` in the driver and a
`ShuffleEnvironment` in every task process. Writers and gates take and give Arrow record batches. All
methods of writers and gates are synchronous and are called by one thread at a time, except where said.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.shuffle.capabilities import Capabilities
from penstock.shuffle.descriptors import (
    InputGateDescriptor,
    PartitionDescriptor,
    ProducerDescriptor,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
)
from penstock.shuffle.events import EndOfPartition, Event
from penstock.shuffle.host import TaskHost
from penstock.shuffle.ids import AttemptId, PartitionId
from penstock.shuffle.metrics import MetricGroup
from penstock.shuffle.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

_FINGERPRINTED = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """The owner of writers and gates: made once per task, shared by all of them."""

    attempt: AttemptId
    name: str
    metrics: MetricGroup


@dataclass(frozen=True, slots=True)
class Received:
    """One thing a gate gives: a batch or an event, and the index of the channel it came from."""

    channel: int
    batch: pa.RecordBatch | None = None
    event: Event | None = None


class ResultPartitionWriter(Protocol):
    """Writes one result partition. Life: `setup`, any number of writes, then `finish` or `fail`, then `close`."""

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""

    def setup(self) -> None:
        """Take resources and make the partition known; raises InsufficientBuffersError when it cannot."""

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to one subpartition; blocks while there is no buffer (back-pressure).

        Raises TaskCancelledError when the task is told to stop while it waits.
        """

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions, stored once where the service can."""

    def flush(self) -> None:
        """Make everything written so far visible to readers. May be called from another thread."""

    def is_available(self) -> bool:
        """True if a write can start without waiting for a buffer."""

    def finish(self) -> None:
        """Flush, send EndOfData and EndOfPartition to all subpartitions; no write may follow."""

    def fail(self, cause: BaseException) -> None:
        """Give the partition up: readers get ProducerFailedError with this cause."""

    def subpartition_bytes(self) -> Sequence[int]:
        """After `finish` of a blocking or hybrid partition: the bytes of payload of each subpartition; else empty."""

    def fingerprint(self) -> int:
        """After `finish` a number of 63 bits (`fingerprint_of`); 0 before.

        It depends on the rows, bytes and checksum of every subpartition, in order, and on nothing else: two attempts
        that wrote the same batches have the same.
        """

    def close(self) -> None:
        """Give back what the writer holds; idempotent. Finished data stays readable."""


def fingerprint_of(ends: Iterable[EndOfPartition]) -> int:
    """The fingerprint of a partition with these ends; 0 only where there is none."""
    body = b"".join(_FINGERPRINTED.pack(end.rows, end.bytes, end.checksum) for end in ends)
    if not body:
        return 0
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little") >> 1 or 1


class InputGate(Protocol):
    """Reads one input of a subtask over all its channels, fairly. Life: `setup`, `next` until `None`, `close`."""

    @property
    def descriptor(self) -> InputGateDescriptor:
        """The descriptor that this gate was made from."""

    def setup(self) -> None:
        """Take resources and request the partitions that are known already."""

    def next(self, timeout: float | None = None) -> Received | None:
        """The next batch or event, or None when every channel has ended.

        Waits up to `timeout` seconds (None: no limit) and raises TimeoutError after it; `timeout=0` polls.
        An EndOfPartition is checked against what was received before it is given (IncompleteDataError). A
        channel that can't be read raises the PartitionError that says why.
        """

    def resume_consumption(self, channel: int) -> None:
        """Let a channel that an event blocked at its sender go on."""

    def close(self) -> None:
        """Cancel what is still open and give back all buffers; idempotent."""


class ShuffleEnvironment(Protocol):
    """The host side of a service, as a task process sees it."""

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors; they take no resources before their `setup`."""

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors; they take no resources before their `setup`."""

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Release the host's resources of these partitions; unknown ones are ignored."""

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions that hold memory or files on this host."""

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Replace an unknown producer of a gate by the real one; False where the gate is gone. Any thread."""

    def close(self) -> None:
        """Give back what this environment itself holds, not the host; idempotent."""


class JobShuffleContext(Protocol):
    """The calls that a ShuffleMaster may make on the engine for one job."""

    @property
    def job(self) -> str:
        """The job's id."""

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Say that partitions are gone, all at once, before readers find them one by one."""


@dataclass(frozen=True, slots=True)
class ShuffleMasterContext:
    """The context that a ShuffleMaster gets at its start."""

    application: str
    settings: Settings
    on_fatal_error: Callable[[BaseException], None]


class ShuffleMaster(Protocol):
    """The driver side of a service: one per application, shared by its jobs."""

    async def start(self) -> None:
        """Called once before any other method."""

    async def close(self) -> None:
        """Called once, last."""

    def register_job(self, context: JobShuffleContext) -> None:
        """A job begins."""

    def unregister_job(self, job: str) -> None:
        """A job is over: drop everything of it except persistent partitions."""

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """Called before each producer attempt is deployed; its failure fails the attempt."""

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Release what is held outside the hosts; idempotent."""


@dataclass(frozen=True, slots=True)
class ShuffleEnvironmentContext:
    """The context that a service's environment in a task process is made with.

    `host` is the task's own, and detached with it.
    """

    application: str
    secret: bytes
    settings: Settings
    host: TaskHost


class ShuffleService(Protocol):
    """A plug-in: the entry-point group `penstock.shuffle_services` maps its name to a class without arguments.

    It may have `metrics`, a tuple of `Metric`: names, units and help for what its writers and gates count.
    """

    @property
    def name(self) -> str:
        """The name users choose it by."""

    @property
    def capabilities(self) -> Capabilities:
        """The kinds of partitions that it carries: the engine asks it for no other."""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> ShuffleMaster:
        """The driver side."""

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """The host side, for one task."""

    def preload(self) -> None:
        """Import what tasks use, in a process that they are forked from; may do nothing."""
