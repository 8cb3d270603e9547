# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - this is test code that ships with the product
"""Conformance, second part: who waits for whom, what bounds memory, and what wakes the waiting."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import pytest

from penstock.errors import TaskCancelledError
from penstock.shuffle import PartitionKind, Received, ShuffleDescriptor
from penstock.testing.conformance_exchange import (
    DATASET,
    NUMBERS,
    ConformanceExchange,
    Producer,
    WantedPartition,
    ends_of,
    numbers,
)
from penstock.testing.waiting import DEADLINE, Running, wait_until

ROWS_PER_BATCH = 512
BATCH_BYTES = 8 * ROWS_PER_BATCH


class FlowConformance:
    """Order of deployment, back-pressure, cancellation, fairness. Mixed into `ShuffleServiceConformance`."""

    clog_limit: int

    def test_a_consumer_may_come_before_its_producer(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """A gate set up before the writer exists gets everything once the writer is there."""
        attempt = exchange.attempt(0)
        descriptor = exchange.register(WantedPartition(kind), attempt)
        consumer = exchange.consume([(descriptor, 0)])
        with pytest.raises(TimeoutError):
            consumer.next(0)
        producer = exchange.produce(WantedPartition(kind), (attempt, descriptor))
        producer.writer.write(numbers(1, 2), 0)
        producer.writer.finish()
        assert consumer.values() == [1, 2]

    def test_rows_arrive_while_the_producer_still_writes(
        self, exchange: ConformanceExchange, pipelined_kind: PartitionKind
    ) -> None:
        """Flushed rows of a pipelined partition are readable before it is finished."""
        producer = exchange.produce(WantedPartition(pipelined_kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        for n in range(3):
            producer.writer.write(numbers(n), 0)
            producer.writer.flush()
            assert consumer.batch().to_pydict()["n"] == [n]
        producer.writer.finish()
        assert consumer.values() == []

    def test_an_unknown_producer_is_replaced_by_the_real_one(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """A gate over one known and one unknown producer reads both once it is told."""
        known = exchange.produce(WantedPartition(kind, index=0))
        known.writer.write(numbers(1), 0)
        known.writer.finish()
        placeholder = ShuffleDescriptor.unknown(DATASET, 1, known.descriptor.service, kind)
        consumer = exchange.consume([(known.descriptor, 0), (placeholder, 0)])
        late = exchange.produce(WantedPartition(kind, index=1))
        late.writer.write(numbers(2), 0)
        late.writer.finish()
        assert consumer.environment.update_partition_info(consumer.owner.attempt, late.descriptor)
        received = consumer.drain()
        assert {item.channel: item.batch.to_pydict()["n"] for item in received if item.batch is not None} == {
            0: [1],
            1: [2],
        }

    def test_a_waiting_gate_is_told_its_producer_from_another_thread(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """`update_partition_info` wakes a reader that already waits."""
        producer = exchange.produce(WantedPartition(kind))
        producer.writer.write(numbers(5), 0)
        producer.writer.finish()
        placeholder = ShuffleDescriptor.unknown(DATASET, 0, producer.descriptor.service, kind)
        consumer = exchange.consume([(placeholder, 0)])
        about_to_wait = threading.Event()

        def read() -> list[int]:
            about_to_wait.set()
            return consumer.values()

        task = Running(read)
        assert about_to_wait.wait(DEADLINE)
        assert consumer.environment.update_partition_info(consumer.owner.attempt, producer.descriptor)
        assert task.join() == [5]

    def test_a_closed_gate_takes_no_update(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """`update_partition_info` says False where the gate is gone, and for a consumer that never was."""
        producer = exchange.produce(WantedPartition(kind))
        producer.writer.finish()
        placeholder = ShuffleDescriptor.unknown(DATASET, 0, producer.descriptor.service, kind)
        consumer = exchange.consume([(placeholder, 0)])
        consumer.gate.close()
        assert not consumer.environment.update_partition_info(consumer.owner.attempt, producer.descriptor)
        assert not consumer.environment.update_partition_info(exchange.attempt(1), producer.descriptor)

    def test_next_keeps_its_timeout(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """An empty gate answers a poll and a timeout with TimeoutError, and works afterwards."""
        producer = exchange.produce(WantedPartition(kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        for timeout in (0, 0.02):
            with pytest.raises(TimeoutError):
                consumer.next(timeout)
        producer.writer.write(numbers(1), 0)
        producer.writer.finish()
        assert consumer.values() == [1]

    def test_a_gate_that_is_only_polled_gets_all(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """`next(0)` gives what has come, so a reader that never waits gets everything."""
        producer = exchange.produce(WantedPartition(kind))
        producer.writer.write(numbers(1, 2), 0)
        producer.writer.finish()
        consumer = exchange.consume([(producer.descriptor, 0)])
        found: list[Received | None] = []

        def is_read() -> bool:
            with contextlib.suppress(TimeoutError):
                found.append(consumer.next(0))
            return bool(found) and found[-1] is None

        wait_until(is_read, "the end of what is polled")
        assert [item.batch.to_pydict()["n"] for item in found if item and item.batch is not None] == [[1, 2]]

    def test_a_clogged_reader_stops_the_writer(
        self, exchange: ConformanceExchange, bounded_kind: PartitionKind
    ) -> None:
        """Without a reading consumer there is no room left within the bound, and there is again when it reads."""
        producer = exchange.produce(WantedPartition(bounded_kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        count = self._clog(producer)
        assert count * BATCH_BYTES < self.clog_limit, "nothing stopped the writer"
        task = Running(producer.writer.finish)
        received = consumer.drain()
        task.join()
        assert ends_of(received)[0].rows == count * ROWS_PER_BATCH

    def test_a_blocked_write_goes_on_when_the_reader_reads(
        self, exchange: ConformanceExchange, pipelined_kind: PartitionKind
    ) -> None:
        """Far more than the bound goes through, none of it lost or doubled."""
        producer = exchange.produce(WantedPartition(pipelined_kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        clogged = threading.Event()
        beyond = 100

        def write() -> int:
            count = self._clog(producer)
            clogged.set()
            for n in range(beyond):
                producer.writer.write(numbers(*[n] * ROWS_PER_BATCH), 0)
            producer.writer.finish()
            return count + beyond

        task = Running(write)
        assert clogged.wait(DEADLINE)
        received = consumer.drain()
        assert ends_of(received)[0].rows == ROWS_PER_BATCH * int(str(task.join()))

    def test_a_spilling_partition_never_stops_its_writer(
        self, exchange: ConformanceExchange, rereadable_kind: PartitionKind
    ) -> None:
        """A partition that keeps its data takes more than any bound of memory without a reader."""
        producer = exchange.produce(WantedPartition(rereadable_kind))
        batches = 2 * self.clog_limit // (64 * BATCH_BYTES)
        batch = numbers(*range(64 * ROWS_PER_BATCH))

        def write() -> None:
            for _ in range(batches):
                producer.writer.write(batch, 0)
            producer.writer.finish()

        Running(write).join()
        received = exchange.consume([(producer.descriptor, 0)]).drain()
        assert ends_of(received)[0].rows == batches * batch.num_rows

    def test_cancel_wakes_a_blocked_writer(
        self, exchange: ConformanceExchange, pipelined_kind: PartitionKind
    ) -> None:
        """A task that waits for a buffer and is told to stop gets TaskCancelledError."""
        producer = exchange.produce(WantedPartition(pipelined_kind))
        exchange.consume([(producer.descriptor, 0)])
        clogged = threading.Event()

        def write() -> None:
            self._clog(producer)
            clogged.set()
            for n in range(self.clog_limit // BATCH_BYTES):
                producer.writer.write(numbers(*[n] * ROWS_PER_BATCH), 0)

        task = Running(write)
        assert clogged.wait(DEADLINE)
        exchange.cancel(producer.owner)
        assert isinstance(task.outcome(), TaskCancelledError)

    def test_cancel_wakes_a_waiting_reader(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A task that waits for input and is told to stop gets TaskCancelledError."""
        producer = exchange.produce(WantedPartition(kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        about_to_wait = threading.Event()

        def read() -> None:
            about_to_wait.set()
            consumer.next()

        task = Running(read)
        assert about_to_wait.wait(DEADLINE)
        exchange.cancel(consumer.owner)
        assert isinstance(task.outcome(), TaskCancelledError)

    def test_a_consumer_may_end_early(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """When the gate is closed in mid-data, the producer's further writes are dropped and never block."""
        producer = exchange.produce(WantedPartition(kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        producer.writer.write(numbers(1), 0)
        producer.writer.flush()
        if kind.pipelined:
            assert consumer.batch().to_pydict()["n"] == [1]
        consumer.gate.close()
        self._write_beyond_the_bound(producer, 0)

    def test_one_consumer_may_end_before_the_others(
        self, exchange: ConformanceExchange, pipelined_kind: PartitionKind
    ) -> None:
        """The readers of other subpartitions still get all their rows, broadcast ones included."""
        producer = exchange.produce(WantedPartition(pipelined_kind, subpartitions=2))
        stays = exchange.consume([(producer.descriptor, 0)])
        leaves = exchange.consume([(producer.descriptor, 1)])
        leaves.gate.close()

        def write() -> None:
            for n in range(300):
                producer.writer.write(numbers(n), 0)
                producer.writer.broadcast(numbers(1_000 + n))
            producer.writer.finish()

        with exchange.running(write):
            assert stays.values() == [value for n in range(300) for value in (n, 1_000 + n)]

    def test_no_channel_starves(self, exchange: ConformanceExchange, pipelined_kind: PartitionKind) -> None:
        """Of several clogged channels none is read empty before the others have been served."""
        producers = [exchange.produce(WantedPartition(pipelined_kind, index=index)) for index in range(3)]
        consumer = exchange.consume([(producer.descriptor, 0) for producer in producers])
        queued = [self._clog(producer) for producer in producers]
        served: Counter[int] = Counter()
        while len(served) < len(producers):
            item = consumer.next()
            assert item is not None
            assert item.batch is not None
            served[item.channel] += 1
            assert served[item.channel] < max(2, queued[item.channel]), f"{served} were given of {queued}"
        writers = [Running(producer.writer.finish) for producer in producers]
        consumer.drain()
        for writer in writers:
            writer.join()

    def test_a_gate_takes_many_channels(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """Sixteen subpartitions of four producers through one gate."""
        producers = [exchange.produce(WantedPartition(kind, index=index, subpartitions=16)) for index in range(4)]
        for index, producer in enumerate(producers):
            producer.writer.broadcast(numbers(index))
            producer.writer.finish()
        channels = [(producer.descriptor, sub) for producer in producers for sub in range(16)]
        received = exchange.consume(channels).drain()
        assert [ends_of(received)[channel].rows for channel in range(64)] == [1] * 64
        assert sorted(item.batch.to_pydict()["n"][0] for item in received if item.batch is not None) == sorted(
            [0, 1, 2, 3] * 16
        )

    def test_one_host_may_read_its_own_partition(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """Producer and consumer beside the same environment."""
        producer = exchange.produce(WantedPartition(kind, host="a"))
        producer.writer.write(numbers(1, 2), 0)
        producer.writer.finish()
        assert exchange.consume([(producer.descriptor, 0)], NUMBERS, "a").values() == [1, 2]

    def test_resuming_does_not_disturb_the_rows(
        self, exchange: ConformanceExchange, pipelined_kind: PartitionKind
    ) -> None:
        """Resuming a channel that is not blocked leaves the data alone."""
        producer = exchange.produce(WantedPartition(pipelined_kind))
        consumer = exchange.consume([(producer.descriptor, 0)])
        for n in range(3):
            producer.writer.write(numbers(n), 0)
            producer.writer.flush()
            consumer.gate.resume_consumption(0)
            assert consumer.batch().to_pydict()["n"] == [n]
        producer.writer.finish()
        assert consumer.values() == []

    def _clog(self, producer: Producer) -> int:
        """Offer until there is no room, or the bound is passed, and flush; the number of batches that were taken."""
        count = 0
        while count * BATCH_BYTES < self.clog_limit:
            taken = producer.offer(numbers(*[count] * ROWS_PER_BATCH))
            assert taken in (0, ROWS_PER_BATCH), "a batch is taken whole where it is no stream's"
            count += taken > 0
            if not taken or producer.raw.has_pending:
                break
        producer.raw.flush()
        return count

    def _write_beyond_the_bound(self, producer: Producer, subpartition: int) -> None:
        batch = numbers(*range(64 * ROWS_PER_BATCH))

        def write() -> None:
            for _ in range(self.clog_limit // (32 * BATCH_BYTES)):
                producer.writer.write(batch, subpartition)
            producer.writer.finish()

        Running(write).join()
