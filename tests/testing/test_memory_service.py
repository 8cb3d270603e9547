# SPDX-License-Identifier: Apache-2.0
"""The memory service beyond the conformance suite, and its partition core under random interleavings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from memory_harness import MemoryHarness
from penstock.errors import (
    EnvironmentLostError,
    IncompleteDataError,
    PartitionReleasedError,
    PenstockError,
    SchemaError,
    SettingError,
    StaleError,
    TaskCancelledError,
)
from penstock.partition.lifecycle import PartitionEvent, PartitionState
from penstock.shuffle import DatasetId, PartitionDescriptor, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.testing.conformance import JOB, ConformanceExchange
from penstock.testing.conformance_exchange import Producer, WantedPartition, numbers
from penstock.testing.memory_partition import MemoryPartition, Stored, decode, encode
from penstock.testing.memory_registry import attach, detach, live_applications
from penstock.testing.waiting import Running, wait_until

PIPELINED = PartitionKind.PIPELINED_BOUNDED
BLOCKING = PartitionKind.BLOCKING_HASH


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[MemoryHarness]:
    """One application per test."""
    harness = MemoryHarness(request.node.name)
    yield harness
    harness.close()


@pytest.fixture
def exchange(service: MemoryHarness) -> Iterator[ConformanceExchange]:
    """The conformance suite's workbench over it."""
    workbench = ConformanceExchange(service, asyncio.run)
    yield workbench
    workbench.close()


def _fill(producer: Producer) -> int:
    count = 0
    while producer.has_taken(numbers(count)):
        count += 1
    return count


def test_the_registry_lives_as_long_as_somebody_uses_it() -> None:
    """All attachments of an application share one registry; the last one takes it along."""
    first, second = attach("app"), attach("app")
    other = attach("other")
    assert first is second
    assert other is not first
    for registry in (first, other):
        detach(registry)
    assert live_applications() == ["app"]
    detach(second)
    assert live_applications() == []
    fresh = attach("app")
    assert fresh is not first
    detach(fresh)


def test_a_waiting_write_is_measured(exchange: ConformanceExchange) -> None:
    """The owner's metrics show that a writer waits, and how long it did."""
    producer = exchange.produce(WantedPartition(PIPELINED))
    consumer = exchange.consume([(producer.descriptor, 0)])
    count = _fill(producer)
    values = producer.owner.metrics.values
    task = Running(lambda: producer.writer.write(numbers(-1), 0))
    wait_until(lambda: values.get("is_back_pressured") == 1, "the writer to wait")
    assert consumer.batch().num_rows == 1
    task.join()
    assert values["is_back_pressured"] == 0
    assert values["back_pressured_seconds"] > 0
    producer.writer.finish()
    assert consumer.values() == [*range(1, count), -1]


def test_a_close_from_another_thread_wakes_a_waiting_write(exchange: ConformanceExchange) -> None:
    """A write of a partition that was given up meanwhile ends instead of waiting for ever."""
    producer = exchange.produce(WantedPartition(PIPELINED))
    _fill(producer)
    task = Running(lambda: producer.writer.write(numbers(-1), 0))
    wait_until(lambda: producer.owner.metrics.values.get("is_back_pressured") == 1, "the writer to wait")
    producer.writer.close(ValueError("enough"))
    assert isinstance(task.outcome(), TaskCancelledError)


def test_release_wakes_a_waiting_write(exchange: ConformanceExchange) -> None:
    """A write into a partition that was released meanwhile ends too."""
    producer = exchange.produce(WantedPartition(PIPELINED))
    _fill(producer)
    task = Running(lambda: producer.writer.write(numbers(-1), 0))
    wait_until(lambda: producer.owner.metrics.values.get("is_back_pressured") == 1, "the writer to wait")
    exchange.host("a").release_partitions_locally([producer.descriptor.partition])
    assert isinstance(task.outcome(), TaskCancelledError)


def test_a_changed_batch_is_found_at_the_end(exchange: ConformanceExchange, service: MemoryHarness) -> None:
    """A batch that is not what the writer counted makes the end an IncompleteDataError that names the partition."""
    producer = exchange.produce(WantedPartition(PIPELINED))
    producer.give(numbers(1, 2))
    registry = attach(service.application)
    stored = registry.partitions[producer.descriptor.partition].subpartitions[0].entries[0]
    stored.data = encode(numbers(1, 3))
    detach(registry)
    producer.writer.finish()
    consumer = exchange.consume([(producer.descriptor, 0)])
    with pytest.raises(IncompleteDataError, match=str(producer.descriptor.partition)):
        consumer.drain()


def test_a_lost_environment_is_reported_at_once(exchange: ConformanceExchange, service: MemoryHarness) -> None:
    """The job hears of all lost partitions; writers and gates beside the lost host say that it is gone."""
    producers = [exchange.produce(WantedPartition(PIPELINED, index=index, host="c")) for index in range(2)]
    consumer = exchange.consume([(producers[0].descriptor, 0)], host="c")
    exchange.lose("c")
    assert service.job.lost == sorted(producer.descriptor.partition for producer in producers)
    with pytest.raises(EnvironmentLostError):
        producers[0].writer.write(numbers(1), 0)
    with pytest.raises(EnvironmentLostError):
        consumer.next()


def test_unregister_job_keeps_only_persistent_partitions(
    exchange: ConformanceExchange, service: MemoryHarness
) -> None:
    """Everything else of the job is dropped, tombstones included."""
    kept = exchange.produce(WantedPartition(PartitionKind.BLOCKING_PERSISTENT, index=0))
    dropped = exchange.produce(WantedPartition(BLOCKING, index=1))
    for producer in (kept, dropped):
        producer.writer.write(numbers(1), 0)
        producer.writer.finish()
    service.master.unregister_job(JOB)
    assert exchange.host("a").partitions_occupying_local_resources() == [kept.descriptor.partition]
    assert exchange.consume([(kept.descriptor, 0)]).values() == [1]


def test_a_partition_that_was_replaced_before_it_was_known_is_stale(exchange: ConformanceExchange) -> None:
    """A reader of an attempt nobody registered, when a newer one is there, is told that it is stale."""
    producer = exchange.produce(WantedPartition(PIPELINED))
    known = producer.descriptor.partition
    old = ShuffleDescriptor(PartitionId(known.dataset, known.index, 1), "memory", PIPELINED, "a")
    with pytest.raises(StaleError, match="replaced"):
        exchange.consume([(old, 0)]).next()


def test_one_attempt_sets_its_partition_up_once(exchange: ConformanceExchange) -> None:
    """A second writer of the same attempt's partition is refused."""
    attempt = exchange.attempt(0)
    descriptor = exchange.register(WantedPartition(PIPELINED), attempt)
    exchange.produce(WantedPartition(PIPELINED), (attempt, descriptor))
    with pytest.raises(StaleError):
        exchange.produce(WantedPartition(PIPELINED), (attempt, descriptor))


def test_a_foreign_schema_is_refused(exchange: ConformanceExchange) -> None:
    """A batch with other columns or types never enters the partition."""
    producer = exchange.produce(WantedPartition(PIPELINED))
    for batch in (pa.record_batch([pa.array(["x"])], names=["n"]), numbers(1).rename_columns(["m"])):
        with pytest.raises(SchemaError):
            producer.writer.write(batch, 0)


def test_a_kind_it_does_not_have_is_refused(exchange: ConformanceExchange) -> None:
    """The master refuses it before anything is deployed."""
    with pytest.raises(SettingError, match="pipelined_approximate"):
        exchange.register(WantedPartition(PartitionKind.PIPELINED_APPROXIMATE), exchange.attempt(0))


def test_calls_out_of_order_say_so(exchange: ConformanceExchange) -> None:
    """Writing before setup or after finish, and reading before setup, name the state they met."""
    producer = exchange.prepare(WantedPartition(PIPELINED))
    with pytest.raises(PenstockError, match="created"):
        producer.writer.write(numbers(1), 0)
    producer.writer.setup()
    producer.writer.finish()
    with pytest.raises(PenstockError, match="finished"):
        producer.writer.write(numbers(1), 0)
    with pytest.raises(PenstockError, match="created"):
        exchange.plan_to_consume([(producer.descriptor, 0)]).next()


def test_an_empty_descriptor_needs_no_producer(exchange: ConformanceExchange) -> None:
    """A channel whose descriptor says *empty* ends without anybody being asked."""
    partition = PartitionDescriptor(DatasetId(JOB, 0), 0, PIPELINED, 1)
    empty = ShuffleDescriptor(PartitionId(partition.dataset, 0, -1), "memory", PIPELINED, empty=True)
    assert exchange.consume([(empty, 0)]).values() == []


def test_a_broadcast_batch_is_stored_and_budgeted_once() -> None:
    """Three holders, one in flight, until the last of them lets go."""
    partition = MemoryPartition(PartitionId(DatasetId("d", 0), 0, 1), PIPELINED, "a", 3, 1)
    partition.append(Stored.of_batch(numbers(1)), range(3))
    assert partition.in_flight == 1
    for index, left in enumerate((1, 1, 0)):
        partition.take(index, 0)
        assert partition.in_flight == left
    assert partition.has_room()


def test_a_tombstone_keeps_its_first_reason() -> None:
    """A partition that was released cannot be finished, and what comes later changes nothing; it holds no memory."""
    partition = MemoryPartition(PartitionId(DatasetId("d", 0), 0, 1), BLOCKING, "a", 1, 1)
    partition.end(PartitionEvent.RELEASE)
    partition.end(PartitionEvent.LOSE, RuntimeError("later"))
    assert partition.state is PartitionState.RELEASED
    assert not partition.holds_resources
    with pytest.raises(PartitionReleasedError, match="was released"):
        partition.finish()


def test_an_encoded_slice_holds_only_its_rows() -> None:
    """A small slice of a large batch costs what the slice costs."""
    large = numbers(*range(10_000))
    data = encode(large.slice(5_000, 2))
    assert data.size < 1_000
    assert decode(data).to_pydict() == {"n": [5_000, 5_001]}


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_interleaving_keeps_the_books(data: st.DataObject) -> None:
    """In any order of writes and reads the budget holds, and rows are read once, in order."""
    count = data.draw(st.integers(1, 3))
    partition = MemoryPartition(
        PartitionId(DatasetId("d", 0), 0, 1), PIPELINED, "a", count, data.draw(st.integers(1, 4))
    )
    written: list[list[int]] = [[] for _ in range(count)]
    read: list[list[int]] = [[] for _ in range(count)]
    closed: set[int] = set()
    for step in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(["write", "broadcast", "read", "read", "close"]))
        index = data.draw(st.integers(0, count - 1))
        if action in ("write", "broadcast") and partition.has_room():
            targets = range(count) if action == "broadcast" else range(index, index + 1)
            partition.append(Stored(None, step, None), targets)
            for target in targets:
                written[target].append(step)
        elif action == "read" and index not in closed:
            stored = partition.take(index, 0)
            read[index].extend([] if stored is None else [stored.rows])
        elif action == "close" and index not in closed:
            closed.add(index)
            partition.end_reading(index)
        held = {id(entry): entry for sub in partition.subpartitions for entry in sub.entries}
        assert partition.in_flight == len(held) <= partition.budget
    for index in range(count):
        assert read[index] == written[index][: len(read[index])]
    partition.finish()
    for index in set(range(count)) - closed:
        while (stored := partition.take(index, 0)) is not None:
            read[index].extend([] if stored.event else [stored.rows])
        assert read[index] == written[index]
        partition.end_reading(index)
    assert partition.state is PartitionState.RELEASED
    assert partition.in_flight == 0
