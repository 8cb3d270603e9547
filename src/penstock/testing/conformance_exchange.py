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
    EndOfData,
    EndOfPartition,
    Event,
    EventKind,
    InputGate,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    PartitionDescriptor,
    PartitionEnd,
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
from penstock.shuffle.host import TaskWait
from penstock.shuffle.splits import ALL, Split
from penstock.task.blocking import BlockingInput, BlockingWriter
from penstock.testing.waiting import DEADLINE, Running, wait_until

Source = tuple[ShuffleDescriptor, int] | tuple[ShuffleDescriptor, int, int]
"""A subpartition of a partition, or the first one and how many of a range."""

JOB = "conformance"
DATASET = DatasetId(JOB, 0)
NUMBERS = pa.schema([("n", pa.int64())])

_ATTEMPTS = itertools.count(100)
"""Numbers of attempts; none comes twice in a process, so that tests may share a service."""


class WriterOrGate(Protocol):
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

    def waiting(self, environment: ShuffleEnvironment) -> TaskWait:
        """The one wait of the task that has this attachment, as the engine would have it."""

    def cancel(self, attempt: AttemptId) -> None:
        """Tell an attempt to stop, as the engine would. Called from another thread than the task's."""

    def lose_environment(self, name: str) -> None:
        """Make this host vanish with all it holds; returns when it is gone."""

    def close(self) -> None:
        """End everything; called by the test's fixture after the suite has closed its attachments."""


def numbers(*values: int) -> pa.RecordBatch:
    """A batch of one int64 column."""
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


class PlainWriter:
    """The calls that wait, batch by batch, as a batch task's partitioner would have them made."""

    def __init__(self, writer: ResultPartitionWriter, waiting: TaskWait, metrics: MetricGroup) -> None:
        self._writer = BlockingWriter(writer, waiting, metrics)

    def setup(self) -> None:
        """See `ResultPartitionWriter`."""
        self._writer.setup()

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Write a batch to one subpartition."""
        self._writer.write(Split.whole(batch, subpartition))

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Write a batch to all."""
        self._writer.write(Split.whole(batch, ALL))

    def flush(self) -> None:
        """Make all visible."""
        self._writer.flush()

    def finish(self) -> PartitionEnd:
        """End the partition."""
        return self._writer.finish()

    def close(self, cause: BaseException | None = None) -> None:
        """Close it, and give up what was not finished."""
        self._writer.close(cause)


class Waiter:
    """A task's wait, which remembers what it has seen."""

    def __init__(self, waiting: TaskWait) -> None:
        self.waiting = waiting
        self._seen = 0

    def wait(self, seconds: float) -> None:
        """Return when anything has come since the last call returned, or after so many seconds."""
        self.waiting.wait(self._seen, seconds)
        self._seen = self.waiting.arrivals

    def wait_for_ever(self) -> None:
        """Wait again and again; ends with what the wait raises."""
        while True:
            self.wait(DEADLINE)


class Producer(Waiter):
    """One writer, its owner and where its data is to be found; `raw` never waits, `writer` does."""

    def __init__(
        self,
        raw: ResultPartitionWriter,
        waiting: TaskWait,
        owner: OwnerContext,
        descriptor: ShuffleDescriptor,
        environment: ShuffleEnvironment,
    ) -> None:
        super().__init__(waiting)
        self.raw = raw
        self.writer = PlainWriter(raw, waiting, owner.metrics)
        self.owner = owner
        self.descriptor = descriptor
        self.environment = environment

    def offer(self, batch: pa.RecordBatch, subpartition: int = 0) -> int:
        """The rows that are taken of a batch for one subpartition, or for `ALL`."""
        return self.raw.offer(Split.whole(batch, subpartition))

    def has_taken(self, batch: pa.RecordBatch, subpartition: int = 0) -> bool:
        """Offer a batch; whether there was room for all of it."""
        return self.offer(batch, subpartition) == batch.num_rows and not self.raw.has_pending

    def give(self, batch: pa.RecordBatch, subpartition: int = 0) -> None:
        """Offer until all of it is taken, and flush; waits for room."""
        self.writer.write(batch, subpartition)
        self.writer.flush()

    def fill(self, subpartition: int = 0, rows: int = 10_000, begin: int = 0) -> int:
        """Offer numbers from `begin` on until there is no room; how many were taken."""
        taken = 0
        for first in itertools.count(begin, rows):
            count = self.offer(numbers(*range(first, first + rows)), subpartition)
            taken += count
            if count < rows:
                return taken
        raise AssertionError

    def barrier(self, payload: bytes, kind: EventKind = EventKind.BLOCKING) -> None:
        """End an epoch."""
        self.raw.end_epoch(payload, kind, keep_overtaken=kind is EventKind.PRIORITY)

    def end(self) -> None:
        """The end of the data, and of the partition."""
        self.raw.emit(EndOfData())
        self.raw.finish()


class Consumer(Waiter):
    """One gate and its owner, with short ways to read it."""

    def __init__(
        self, gate: InputGate, waiting: TaskWait, owner: OwnerContext, environment: ShuffleEnvironment
    ) -> None:
        super().__init__(waiting)
        self.gate = gate
        self.owner = owner
        self.environment = environment
        self._input = BlockingInput([gate], waiting)

    def next(self, timeout: float = DEADLINE) -> Received | None:
        """The next thing; the suite never waits without a deadline."""
        return self._input.next(timeout)

    def batch(self) -> pa.RecordBatch:
        """The next batch; an event or the end in its place is a failure."""
        received = self.next()
        assert received is not None, "the gate ended where a batch was due"
        assert received.batch is not None, f"{received} came where a batch was due"
        return received.batch

    def drain(self) -> list[Received]:
        """Everything up to the end."""
        return list(iter(self.next, None))

    def until(self, last: Callable[[Received], bool]) -> list[Received]:
        """All things up to the first for which this holds."""
        found = []
        while (received := self.next()) is not None:
            found.append(received)
            if last(received):
                return found
        raise AssertionError(f"the gate ended after {found}")

    def events(self, count: int) -> list[Received]:
        """All things up to so many events."""
        seen = itertools.count(1)
        return self.until(lambda received: received.event is not None and next(seen) == count)

    def update(self, descriptor: ShuffleDescriptor) -> bool:
        """Tell it a producer."""
        return self.environment.update_partition_info(self.owner.attempt, descriptor)

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
class WantedPartition:
    """The wish of a test: the kind, the schema, how many subpartitions, where, as which attempt's output."""

    kind: PartitionKind
    schema: pa.Schema = NUMBERS
    subpartitions: int = 1
    index: int = 0
    host: str = "a"
    dataset: DatasetId = DATASET
    is_stream: bool = False


class _Job:
    """A job that hears of nothing."""

    def __init__(self, job: str) -> None:
        self.job = job

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Do nothing: no test waits for it."""


class ConformanceExchange:
    """Makes producers and consumers of one test, and ends with nothing occupied."""

    def __init__(self, service: ServiceUnderTest, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._service = service
        self._call = call
        self._hosts: dict[str, ShuffleEnvironment] = {}
        self._attached: list[ShuffleEnvironment] = []
        self.members: list[WriterOrGate] = []
        """The members that `close` closes, twice."""
        self._descriptors: list[ShuffleDescriptor] = []

    def attempt(self, vertex: int, subtask: int = 0) -> AttemptId:
        """A fresh attempt."""
        return AttemptId(JOB, vertex, subtask, next(_ATTEMPTS))

    def owner(self, vertex: int, subtask: int = 0) -> OwnerContext:
        """The owner of a fresh attempt's writers and gates."""
        attempt = self.attempt(vertex, subtask)
        return OwnerContext(attempt, str(attempt), MetricGroup(str(attempt)))

    def register(self, written: WantedPartition, attempt: AttemptId) -> ShuffleDescriptor:
        """Ask the master for a partition's descriptor."""
        partition = self.partition(written)
        self.host(written.host)
        who = self._service.producer(attempt, written.host)
        descriptor: ShuffleDescriptor = self._call(
            self._service.master.register_partition_with_producer(written.dataset.job, partition, who)
        )
        self._descriptors.append(descriptor)
        return descriptor

    def produce(
        self, written: WantedPartition, registered: tuple[AttemptId, ShuffleDescriptor] | None = None
    ) -> Producer:
        """A writer that is set up, registered here unless it was before."""
        producer = self.prepare(written, registered)
        producer.writer.setup()
        return producer

    def prepare(
        self, written: WantedPartition, registered: tuple[AttemptId, ShuffleDescriptor] | None = None
    ) -> Producer:
        """A writer that is not set up yet."""
        attempt = self.attempt(0, written.index) if registered is None else registered[0]
        descriptor = self.register(written, attempt) if registered is None else registered[1]
        owner = OwnerContext(attempt, str(attempt), MetricGroup(str(attempt)))
        environment = self.attach(written.host)
        result = ResultPartitionDescriptor(self.partition(written), descriptor, written.schema, written.is_stream)
        (writer,) = environment.create_result_partition_writers(owner, [result])
        self.members.append(writer)
        return Producer(writer, self._service.waiting(environment), owner, descriptor, environment)

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
        return Consumer(gate, self._service.waiting(environment), owner, environment)

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
    def partition(written: WantedPartition) -> PartitionDescriptor:
        """The partition to be written."""
        return PartitionDescriptor(written.dataset, written.index, written.kind, written.subpartitions)
