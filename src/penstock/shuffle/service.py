# SPDX-License-Identifier: Apache-2.0
"""The protocols a shuffle service implements.

A service is one object (`ShuffleService`) that makes a `ShuffleMaster` in the driver and a
`ShuffleEnvironment` in every task process, which makes the writers and gates (`endpoints`). They take and give Arrow
record batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.settings import Settings
from penstock.shuffle.capabilities import Capabilities
from penstock.shuffle.descriptors import (
    InputGateDescriptor,
    PartitionDescriptor,
    ProducerDescriptor,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
)
from penstock.shuffle.endpoints import InputGate, ResultPartitionWriter
from penstock.shuffle.host import TaskHost
from penstock.shuffle.ids import AttemptId, PartitionId
from penstock.shuffle.metrics import MetricGroup


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """The owner of writers and gates: made once per task, shared by all of them."""

    attempt: AttemptId
    name: str
    metrics: MetricGroup


class ShuffleEnvironment(Protocol):
    """The host side of a service, as a task process sees it."""

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors; they take no resources before their `setup`.

        Raises SettingError for a partition that the service can't carry, such as a stream where it can't stream.
        """

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
    secret: bytes = field(default=b"", repr=False)
    """The application's, as its tasks have it."""


class ShuffleMaster(Protocol):
    """The driver side of a service: one per application, shared by its jobs."""

    async def start(self) -> None:
        """Called once before any other method."""

    async def close(self) -> None:
        """Called once, last."""

    def register_job(self, context: JobShuffleContext) -> None:
        """A job begins."""

    def unregister_job(self, job: str) -> None:
        """A job is over: drop everything of it except persistent partitions.

        Called when the job's registrations and releases have returned.
        """

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """Called before each producer attempt is deployed; its failure fails the attempt."""

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Release what is held outside the hosts; idempotent."""


class NamedResults(Protocol):
    """The part of a ShuffleMaster that keeps results under names, for later applications of the same user."""

    async def keep_result(
        self, name: str, schema: bytes, partitions: Sequence[ShuffleDescriptor]
    ) -> list[ShuffleDescriptor]:
        """Keep these partitions; the words by which they are found from now on, in order.

        A result that the user has under this name goes. Raises PartitionError where one of them is gone.
        """

    async def find_result(self, name: str) -> tuple[bytes, list[ShuffleDescriptor]] | None:
        """The schema and the partitions of a result that was kept, or None."""


class ClientMaster(Protocol):
    """The part of a ShuffleMaster for processes without Spark, several of which may be of one application."""

    async def arrive(self, names: Sequence[str]) -> str:
        """See that the service is there, after `start`; by which of these names of this host its readers come.

        Raises NoStorageError, ControlError, VersionError, SettingError.
        """

    async def leave(self) -> None:
        """Called in place of `close`: the application goes on without this process."""


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
