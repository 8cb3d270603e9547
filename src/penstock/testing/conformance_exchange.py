# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - this is test code that ships with the product
"""The workbench of the conformance suite: producers, consumers and the final count of what is still occupied.

Every writer and gate gets an environment object and an attempt of its own, as a task process would have them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    DatasetId,
    EndOfPartition,
    Event,
    InputGate,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ProducerDescriptor,
    Received,
    ResultPartitionDescriptor,
    ResultPartitionWriter,
    ShuffleDescriptor,
    ShuffleEnvironment,
    ShuffleMaster,
)
from penstock.shuffle.streaming import Mailbox
from penstock.testing.waiting import DEADLINE, Running, wait_until

Source = tuple[ShuffleDescriptor, int] | tuple[ShuffleDescriptor, int, int]
"""A subpartition of a partition, or the first one and how many of a range."""

JOB = "conformance"
DATASET = DatasetId(JOB, 0)
NUMBERS = pa.schema([("n", pa.int64())])

_ATTEMPTS = itertools.count(100)
"""Numbers of attempts; none comes twice in a process, so that tests may share a service."""


class Member(Protocol):
    """A writer or a gate."""

    def close(self) -> None:
        """Give back what it holds; idempotent."""


class ServiceUnderTest(Protocol):
    """The service that a plug-in's test provides: a started one of one application, and two ways to hurt it.

    One for each test, or one for many that run one after the other: a test leaves nothing on a host but a loss.
    """

    @property
    def master(self) -> ShuffleMaster:
        """The driver side, started, with a job named `conformance` registered."""

    def environment(self, name: str) -> ShuffleEnvironment:
        """A new attachment to the host called `name`, as a new task process would make it.

        The first call makes the host. The suite closes what it was given, and uses each attachment from one
        task's thread.
        """

    def producer(self, attempt: AttemptId, name: str) -> ProducerDescriptor:
        """The descriptor of an attempt beside this host, with the host's own id and data address."""

    def mailbox(self, environment: ShuffleEnvironment, attempt: AttemptId) -> Mailbox:
        """The line of the task that has this attachment and works on this attempt; asked of services that stream."""

    def cancel(self, attempt: AttemptId) -> None:
        """Tell an attempt to stop, as the engine would. Called from another thread than the task's."""

    def lose_environment(self, name: str) -> None:
        """Make this host vanish with all it holds; returns when it is gone."""

    def close(self) -> None:
        """End everything; called by the test's fixture after the suite has closed its attachments."""


def numbers(*values: int) -> pa.RecordBatch:
    """A batch of one int64 column."""
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


@dataclass(frozen=True, slots=True)
class Producer:
    """One writer, its owner and where its data is to be found."""

    writer: ResultPartitionWriter
    owner: OwnerContext
    descriptor: ShuffleDescriptor
    environment: ShuffleEnvironment


@dataclass(slots=True)
class Consumer:
    """One gate and its owner, with short ways to read it."""

    gate: InputGate
    owner: OwnerContext
    environment: ShuffleEnvironment

    def next(self) -> Received | None:
        """The next thing; the suite never waits without a deadline."""
        return self.gate.next(DEADLINE)

    def batch(self) -> pa.RecordBatch:
        """The next batch; an event or the end in its place is a failure."""
        received = self.next()
        assert received is not None, "the gate ended where a batch was due"
        assert received.batch is not None, f"{received} came where a batch was due"
        return received.batch

    def drain(self) -> list[Received]:
        """Everything up to the end."""
        return list(iter(self.next, None))

    def rows(self, schema: pa.Schema = NUMBERS) -> list[dict[str, Any]]:
        """All rows up to the end, in order of arrival."""
        return rows_of(self.drain(), schema)

    def values(self) -> list[int]:
        """The numbers up to the end, in order of arrival."""
        return [row["n"] for row in self.rows()]


def rows_of(received: Iterable[Received], schema: pa.Schema = NUMBERS) -> list[dict[str, Any]]:
    """The rows of what was received, in order."""
    batches = [item.batch for item in received if item.batch is not None]
    for batch in batches:
        assert batch.schema.equals(schema), f"arrived with schema {batch.schema}, written with {schema}"
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, schema=schema).to_pylist()
    return rows


def events_of(received: Iterable[Received], channel: int = 0) -> list[Event]:
    """The events of one channel, in order."""
    return [item.event for item in received if item.event is not None and item.channel == channel]


def ends_of(received: Iterable[Received]) -> dict[int, EndOfPartition]:
    """The closing figures by channel."""
    return {item.channel: item.event for item in received if isinstance(item.event, EndOfPartition)}


@dataclass(frozen=True, slots=True)
class Written:
    """The wish of a test: the kind, the schema, how many subpartitions, where, as which attempt's output."""

    kind: PartitionKind
    schema: pa.Schema = NUMBERS
    subpartitions: int = 1
    index: int = 0
    host: str = "a"
    dataset: DatasetId = DATASET


class _Job:
    """A job that hears of nothing."""

    def __init__(self, job: str) -> None:
        self.job = job

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Nobody waits for this."""


class Exchange:
    """Makes producers and consumers of one test, and ends with nothing occupied."""

    def __init__(self, service: ServiceUnderTest, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._service = service
        self._call = call
        self._hosts: dict[str, ShuffleEnvironment] = {}
        self._attached: list[ShuffleEnvironment] = []
        self.members: list[Member] = []
        """The members that `close` closes, twice."""
        self._descriptors: list[ShuffleDescriptor] = []

    def attempt(self, vertex: int, subtask: int = 0) -> AttemptId:
        """A fresh attempt."""
        return AttemptId(JOB, vertex, subtask, next(_ATTEMPTS))

    def owner(self, vertex: int, subtask: int = 0) -> OwnerContext:
        """The owner of a fresh attempt's writers and gates."""
        attempt = self.attempt(vertex, subtask)
        return OwnerContext(attempt, str(attempt), MetricGroup(str(attempt)))

    def register(self, written: Written, attempt: AttemptId) -> ShuffleDescriptor:
        """Ask the master for a partition's descriptor."""
        partition = self.partition(written)
        self.host(written.host)
        who = self._service.producer(attempt, written.host)
        descriptor: ShuffleDescriptor = self._call(
            self._service.master.register_partition_with_producer(written.dataset.job, partition, who)
        )
        self._descriptors.append(descriptor)
        return descriptor

    def produce(self, written: Written, registered: tuple[AttemptId, ShuffleDescriptor] | None = None) -> Producer:
        """A writer that is set up, registered here unless it was before."""
        producer = self.prepare(written, registered)
        producer.writer.setup()
        return producer

    def prepare(self, written: Written, registered: tuple[AttemptId, ShuffleDescriptor] | None = None) -> Producer:
        """A writer that is not set up yet."""
        attempt = self.attempt(0, written.index) if registered is None else registered[0]
        descriptor = self.register(written, attempt) if registered is None else registered[1]
        owner = OwnerContext(attempt, str(attempt), MetricGroup(str(attempt)))
        environment = self.attach(written.host)
        result = ResultPartitionDescriptor(self.partition(written), descriptor, written.schema)
        (writer,) = environment.create_result_partition_writers(owner, [result])
        self.members.append(writer)
        return Producer(writer, owner, descriptor, environment)

    def consume(self, sources: Sequence[Source], schema: pa.Schema = NUMBERS, host: str = "b") -> Consumer:
        """A gate over these subpartitions, or ranges of them, that is set up."""
        consumer = self.plan_to_consume(sources, schema, host)
        consumer.gate.setup()
        return consumer

    def plan_to_consume(self, sources: Sequence[Source], schema: pa.Schema = NUMBERS, host: str = "b") -> Consumer:
        """A gate that is not set up yet."""
        owner = self.owner(1)
        environment = self.attach(host)
        channels = tuple(ChannelDescriptor(*source) for source in sources)
        (gate,) = environment.create_input_gates(owner, [InputGateDescriptor(0, schema, channels)])
        self.members.append(gate)
        return Consumer(gate, owner, environment)

    @contextmanager
    def job(self, name: str) -> Iterator[DatasetId]:
        """A job beside the suite's own, with one dataset; it is over after the block."""
        self._service.master.register_job(_Job(name))
        yield DatasetId(name, 0)
        self._service.master.unregister_job(name)

    @contextmanager
    def running(self, function: Callable[[], object]) -> Iterator[Running]:
        """Run a task's side on a thread while the block reads; its error is the test's error."""
        task = Running(function)
        yield task
        task.join()

    def host(self, name: str) -> ShuffleEnvironment:
        """The suite's own view of a host, for what it occupies and for releases."""
        if name not in self._hosts:
            self._hosts[name] = self._service.environment(name)
        return self._hosts[name]

    def attach(self, host: str) -> ShuffleEnvironment:
        """A task's own attachment to a host."""
        self.host(host)
        environment = self._service.environment(host)
        self._attached.append(environment)
        return environment

    def mailbox(self, environment: ShuffleEnvironment, attempt: AttemptId) -> Mailbox:
        """The line of a task with this attachment."""
        return self._service.mailbox(environment, attempt)

    def cancel(self, owner: OwnerContext) -> None:
        """Tell a task to stop."""
        self._service.cancel(owner.attempt)

    def lose(self, host: str) -> None:
        """Make a host vanish."""
        self._service.lose_environment(host)
        self._hosts.pop(host).close()

    def wait_released(self, host: str) -> None:
        """Wait until a host holds nothing."""
        view = self.host(host)
        wait_until(lambda: not view.partitions_occupying_local_resources(), f"host {host} to hold nothing")

    def close(self) -> None:
        """Close all writers and gates (twice), release everything, and see that every host holds nothing."""
        for member in [*self.members, *self.members]:
            member.close()
        for descriptor in self._descriptors:
            self._call(self._service.master.release_partition_externally(descriptor))
        for host, view in self._hosts.items():
            view.release_partitions_locally([descriptor.partition for descriptor in self._descriptors])
            self.wait_released(host)
        for environment in [*self._attached, *self._attached, *self._hosts.values()]:
            environment.close()

    @staticmethod
    def partition(written: Written) -> PartitionDescriptor:
        """The partition to be written."""
        return PartitionDescriptor(written.dataset, written.index, written.kind, written.subpartitions)
