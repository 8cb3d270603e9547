# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - this is test code that ships with the product
"""Conformance, third part: the life of a partition, and the distinct answers of those that cannot be read."""

from __future__ import annotations

from typing import ClassVar

import pytest

from penstock.errors import (
    PartitionLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    ProducerFailedError,
    StaleError,
)
from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.testing.conformance_exchange import (
    DATASET,
    JOB,
    ConformanceExchange,
    Consumer,
    Producer,
    WantedPartition,
    numbers,
)
from penstock.testing.waiting import Running, wait_until


def _finished(exchange: ConformanceExchange, written: WantedPartition, *values: int) -> Producer:
    producer = exchange.produce(written)
    producer.writer.write(numbers(*values), 0)
    producer.writer.finish()
    producer.writer.close()
    return producer


def _read_to_the_error(consumer: Consumer) -> None:
    while consumer.next() is not None:
        pass


class AnswerConformance:
    """Lifecycle and answers. Mixed into `ShuffleServiceConformance`."""

    kinds: ClassVar[tuple[PartitionKind, ...]]
    request_timeout: float | None

    def test_a_descriptor_names_attempt_and_host(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """The master's descriptor carries the producer's attempt and survives a control message."""
        attempt = exchange.attempt(0)
        descriptor = exchange.register(WantedPartition(kind), attempt)
        assert descriptor.partition == PartitionId(DATASET, 0, attempt.attempt)
        assert descriptor.kind is kind
        assert not descriptor.is_unknown
        assert ShuffleDescriptor.from_wire(descriptor.to_wire()) == descriptor

    def test_nothing_is_taken_before_setup(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """Writers and gates that were only created occupy nothing, and can be closed."""
        producer = exchange.prepare(WantedPartition(kind))
        consumer = exchange.plan_to_consume([(producer.descriptor, 0)])
        assert exchange.host("a").partitions_occupying_local_resources() == []
        producer.writer.close()
        consumer.gate.close()
        assert exchange.host("a").partitions_occupying_local_resources() == []

    def test_a_gate_says_what_it_was_made_from(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """`descriptor` answers before setup."""
        producer = exchange.produce(WantedPartition(kind, subpartitions=3))
        consumer = exchange.plan_to_consume([(producer.descriptor, 2)])
        assert consumer.gate.descriptor.channels[0].subpartition == 2

    def test_a_consumed_pipelined_partition_frees_itself(
        self, exchange: ConformanceExchange, pipelined_kind: PartitionKind
    ) -> None:
        """When every subpartition was read to its end, the host holds nothing, without a release."""
        producer = exchange.produce(WantedPartition(pipelined_kind, subpartitions=2))
        assert exchange.host("a").partitions_occupying_local_resources() == [producer.descriptor.partition]
        producer.writer.broadcast(numbers(1))
        producer.writer.finish()
        producer.writer.close()
        for index in range(2):
            consumer = exchange.consume([(producer.descriptor, index)])
            assert consumer.values() == [1]
            consumer.gate.close()
        exchange.wait_released("a")

    def test_release_frees_what_was_never_read(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """`release_partitions_locally` frees exactly the named partitions, again without harm, and ignores others."""
        kept = _finished(exchange, WantedPartition(kind, index=0), 1)
        gone = _finished(exchange, WantedPartition(kind, index=1), 2)
        view = exchange.host("a")
        unknown = PartitionId(DatasetId(JOB, 9), 0, 1)
        for _ in range(2):
            view.release_partitions_locally([gone.descriptor.partition, unknown])
        wait_until(
            lambda: view.partitions_occupying_local_resources() == [kept.descriptor.partition], "one partition to go"
        )
        assert exchange.consume([(kept.descriptor, 0)]).values() == [1]

    def test_finished_data_outlives_its_writer(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A task may finish, close, and detach; its readers come later."""
        producer = _finished(exchange, WantedPartition(kind), 1, 2, 3)
        producer.environment.close()
        assert exchange.consume([(producer.descriptor, 0)]).values() == [1, 2, 3]

    def test_closing_twice_is_closing_once(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """`close` of writer, gate and environment is idempotent, also after an end that was read."""
        producer = _finished(exchange, WantedPartition(kind), 1)
        consumer = exchange.consume([(producer.descriptor, 0)])
        assert consumer.values() == [1]
        for _ in range(2):
            consumer.gate.close()
            producer.writer.close()
            consumer.environment.close()
            producer.environment.close()

    def test_a_blocking_partition_is_read_when_it_is_complete(
        self, exchange: ConformanceExchange, blocking_kind: PartitionKind
    ) -> None:
        """Before `finish` a reader waits; after it everything is there."""
        producer = exchange.produce(WantedPartition(blocking_kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        producer.writer.write(numbers(1), 0)
        producer.writer.flush()
        with pytest.raises(TimeoutError):
            consumer.next(0.02)
        producer.writer.finish()
        assert consumer.values() == [1]

    def test_a_rereadable_partition_is_read_again_and_again(
        self, exchange: ConformanceExchange, rereadable_kind: PartitionKind
    ) -> None:
        """The second and third reader get what the first got, also after one that ended early."""
        producer = exchange.produce(WantedPartition(rereadable_kind))
        for n in range(5):
            producer.writer.write(numbers(n), 0)
        producer.writer.finish()
        early = exchange.consume([(producer.descriptor, 0)])
        assert early.batch().num_rows > 0
        early.gate.close()
        for _ in range(3):
            consumer = exchange.consume([(producer.descriptor, 0)])
            assert consumer.values() == list(range(5))
            consumer.gate.close()

    def test_a_rereadable_partition_has_several_readers_at_once(
        self, exchange: ConformanceExchange, rereadable_kind: PartitionKind
    ) -> None:
        """Two readers in mid-data do not take rows from each other."""
        producer = exchange.produce(WantedPartition(rereadable_kind))
        for n in range(50):
            producer.writer.write(numbers(*range(n * 100, n * 100 + 100)), 0)
        producer.writer.finish()
        consumers = [exchange.consume([(producer.descriptor, 0)]) for _ in range(2)]
        firsts = [consumer.batch().to_pydict()["n"] for consumer in consumers]
        rests = [consumer.values() for consumer in consumers]
        for first, rest in zip(firsts, rests, strict=True):
            assert first + rest == list(range(5_000))

    def test_a_rereadable_partition_stays_until_it_is_released(
        self, exchange: ConformanceExchange, rereadable_kind: PartitionKind
    ) -> None:
        """Reading it to the end frees nothing; the release does, and readers are told so."""
        producer = _finished(exchange, WantedPartition(rereadable_kind), 1)
        view = exchange.host("a")
        assert exchange.consume([(producer.descriptor, 0)]).values() == [1]
        assert view.partitions_occupying_local_resources() == [producer.descriptor.partition]
        view.release_partitions_locally([producer.descriptor.partition])
        exchange.wait_released("a")
        with pytest.raises(PartitionReleasedError):
            exchange.consume([(producer.descriptor, 0)]).next()

    def test_a_persistent_partition_outlives_its_job(
        self, exchange: ConformanceExchange, persistent_kind: PartitionKind
    ) -> None:
        """When the master has been told that the job is over, readers still get all, as often as they like."""
        with exchange.job("persistent") as dataset:
            producer = _finished(exchange, WantedPartition(persistent_kind, dataset=dataset), 1)
        for _ in range(2):
            assert exchange.consume([(producer.descriptor, 0)]).values() == [1]

    def test_a_producers_failure_reaches_the_reader_with_its_cause(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """Readers get ProducerFailedError that quotes the cause, in mid-data and when they come later."""
        producer = exchange.produce(WantedPartition(kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        producer.writer.write(numbers(1), 0)
        producer.writer.flush()
        producer.writer.close(ValueError("the user's function choked on row 17"))
        producer.writer.close()
        for reader in (consumer, exchange.consume([(producer.descriptor, 0)])):
            with pytest.raises(ProducerFailedError, match="choked on row 17"):
                _read_to_the_error(reader)
        exchange.wait_released("a")

    def test_a_failure_wakes_a_waiting_reader(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A reader that waits for data hears of the failure without a timeout."""
        producer = exchange.produce(WantedPartition(kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        task = Running(consumer.next)
        producer.writer.close(ValueError("no more"))
        assert isinstance(task.outcome(), ProducerFailedError)

    def test_closing_without_finishing_is_a_failure(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A writer that just goes away never looks like a clean end."""
        producer = exchange.produce(WantedPartition(kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        producer.writer.write(numbers(1), 0)
        producer.writer.close()
        with pytest.raises(ProducerFailedError):
            _read_to_the_error(consumer)

    def test_a_released_partition_says_so(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """Released on purpose is PartitionReleasedError, not lost and not failed."""
        producer = _finished(exchange, WantedPartition(kind), 1)
        exchange.host("a").release_partitions_locally([producer.descriptor.partition])
        exchange.wait_released("a")
        with pytest.raises(PartitionReleasedError):
            exchange.consume([(producer.descriptor, 0)]).next()

    def test_a_lost_partition_says_so(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A partition whose host has vanished is PartitionLostError, for a reader at it and for a later one."""
        producer = _finished(exchange, WantedPartition(kind, host="c"), 1)
        reading = exchange.consume([(producer.descriptor, 0)])
        unfinished = exchange.produce(WantedPartition(kind, index=1, host="c"))
        waiting = exchange.consume([(unfinished.descriptor, 0)])
        exchange.lose("c")
        with pytest.raises(PartitionLostError):
            _read_to_the_error(waiting)
        reading.gate.close()
        with pytest.raises(PartitionLostError):
            _read_to_the_error(exchange.consume([(producer.descriptor, 0)]))

    def test_a_partition_nobody_produces_has_a_deadline(
        self, exchange: ConformanceExchange, own_deadline: float
    ) -> None:
        """A registered partition without a writer becomes PartitionNotProducedError by itself, of every kind."""
        assert own_deadline > 0
        # Of an application that has written nothing a service may know nothing at all, which is another answer.
        _finished(exchange, WantedPartition(self.kinds[0], index=len(self.kinds)), 1)
        wanted = [WantedPartition(kind, index=index) for index, kind in enumerate(self.kinds)]
        descriptors = [exchange.register(written, exchange.attempt(0, written.index)) for written in wanted]
        for consumer in [exchange.consume([(descriptor, 0)]) for descriptor in descriptors]:
            with pytest.raises(PartitionNotProducedError):
                consumer.next()

    def test_attempts_never_mix(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A reader of the second attempt sees nothing of the first, which lives on beside it."""
        first = exchange.produce(WantedPartition(kind))
        first.writer.write(numbers(1, 2, 3), 0)
        first.writer.flush()
        second = _finished(exchange, WantedPartition(kind), 10, 20)
        assert exchange.consume([(second.descriptor, 0)]).values() == [10, 20]
        first.writer.write(numbers(4), 0)
        first.writer.finish()
        assert exchange.consume([(first.descriptor, 0)]).values() == [1, 2, 3, 4]

    def test_a_channel_keeps_the_attempt_it_has_begun(
        self, exchange: ConformanceExchange, pipelined_kind: PartitionKind
    ) -> None:
        """An update with another attempt, in mid-data, is refused or ignored, and never changes the source."""
        first = exchange.produce(WantedPartition(pipelined_kind))
        second = _finished(exchange, WantedPartition(pipelined_kind), 99)
        consumer = exchange.consume([(first.descriptor, 0)])
        first.writer.write(numbers(1), 0)
        first.writer.flush()
        assert consumer.batch().to_pydict()["n"] == [1]
        try:
            consumer.environment.update_partition_info(consumer.owner.attempt, second.descriptor)
        except StaleError:
            refused = True
        else:
            refused = False
        first.writer.write(numbers(2), 0)
        first.writer.finish()
        assert consumer.values() == [2], f"the source changed in mid-data (update refused: {refused})"

    def test_a_failed_attempt_does_not_spoil_the_next(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """The partition of a new attempt is readable while the failed one's keeps its answer."""
        failed = exchange.produce(WantedPartition(kind))
        failed.writer.close(ValueError("first try"))
        failed.writer.close()
        again = _finished(exchange, WantedPartition(kind), 7)
        assert exchange.consume([(again.descriptor, 0)]).values() == [7]
        with pytest.raises(ProducerFailedError, match="first try"):
            exchange.consume([(failed.descriptor, 0)]).next()
