# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - this is test code that ships with the product
"""Conformance of services that can stream: rows and events of each kind, epochs, room, waiting in one place.

Rows are written on host `a` and read on the same host, and on another. No reader has a thread of its own: a call that
blocks is seen, as neither writers nor gates ever wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
import pytest

from penstock.errors import PartitionError, ProtocolError, SettingError, TaskCancelledError
from penstock.shuffle import (
    AttemptId,
    EndOfData,
    EndOfPartition,
    EpochEnd,
    Event,
    EventKind,
    PartitionKind,
    Received,
    ShuffleDescriptor,
    TaskEvent,
)
from penstock.shuffle.splits import ALL
from penstock.testing.conformance_exchange import (
    DATASET,
    NUMBERS,
    ConformanceExchange,
    Consumer,
    Producer,
    Source,
    WantedPartition,
    numbers,
)
from penstock.testing.waiting import DEADLINE

TEXTS = pa.schema([("text", pa.string())])
PIPELINED = PartitionKind.PIPELINED_BOUNDED
STREAM = WantedPartition(PIPELINED, is_stream=True)
Thing = list[int] | Event
"""The things that a test compares: the numbers of a batch, or an event."""


def values(received: Iterable[Received], channel: int = 0) -> list[int]:
    """The numbers of one channel, in order."""
    batches = [each.batch for each in received if each.batch is not None and each.channel == channel]
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def payloads(received: Iterable[Received]) -> list[tuple[int, bytes]]:
    """The events that carry something, with their channels."""
    return [(each.channel, each.event.payload) for each in received if isinstance(each.event, EpochEnd | TaskEvent)]


class Workbench(Protocol):
    """The part of an `ConformanceExchange` that `Streams` uses."""

    def attempt(self, vertex: int, subtask: int = 0) -> AttemptId:
        """A fresh attempt."""

    def register(self, written: WantedPartition, attempt: AttemptId) -> ShuffleDescriptor:
        """A partition's descriptor."""

    def produce(
        self, written: WantedPartition, registered: tuple[AttemptId, ShuffleDescriptor] | None = None
    ) -> Producer:
        """A writer that is set up."""

    def prepare(
        self, written: WantedPartition, registered: tuple[AttemptId, ShuffleDescriptor] | None = None
    ) -> Producer:
        """A writer that is not set up yet."""

    def consume(self, sources: Sequence[Source], schema: pa.Schema = NUMBERS, host: str = "b") -> Consumer:
        """A gate that is set up."""


class Streams:
    """Makes the producers and consumers of one test, on an `ConformanceExchange`, which ends them."""

    def __init__(self, exchange: Workbench, host: str) -> None:
        self._exchange = exchange
        self._host = host

    def produce(self, written: WantedPartition = STREAM) -> Producer:
        """A writer that is set up, with room."""
        return self._exchange.produce(written)

    def prepare(
        self, written: WantedPartition, registered: tuple[AttemptId, ShuffleDescriptor] | None = None
    ) -> Producer:
        """A writer that is not set up yet."""
        return self._exchange.prepare(written, registered)

    def register(self, written: WantedPartition) -> tuple[AttemptId, ShuffleDescriptor]:
        """A partition whose writer comes later."""
        attempt = self._exchange.attempt(0, written.index)
        return attempt, self._exchange.register(written, attempt)

    def consume(self, sources: Sequence[Source], schema: pa.Schema = NUMBERS) -> Consumer:
        """A gate that is set up."""
        return self._exchange.consume(sources, schema, self._host)

    def pair(self, subpartitions: int = 1) -> tuple[Producer, Consumer]:
        """A producer, and a consumer of all its subpartitions."""
        producer = self.produce(replace(STREAM, subpartitions=subpartitions))
        return producer, self.consume([(producer.descriptor, index) for index in range(subpartitions)])


class StreamConformance:
    """The promises of a streaming service. Mixed into `ShuffleServiceConformance` by a service that can stream."""

    clog_limit: int

    @pytest.fixture(params=["a", "b"], ids=["same host", "other host"])
    def streams(self, exchange: ConformanceExchange, request: pytest.FixtureRequest) -> Streams:
        """The workbench, whose readers are on the writers' host or on another."""
        return Streams(exchange, request.param)

    def test_rows_and_events_come_in_order(self, streams: Streams) -> None:
        """Two epochs, the end of the data and the end; the sums are of all that stands in front."""
        producer, consumer = streams.pair()
        producer.give(numbers(1, 2))
        producer.barrier(b"one", EventKind.IN_ORDER)
        producer.raw.emit(TaskEvent(b"between"))
        producer.give(numbers(3))
        producer.barrier(b"two", EventKind.IN_ORDER)
        producer.end()
        things = consumer.drain()
        events = [each.event for each in things if each.event is not None]
        assert values(things) == [1, 2, 3]
        assert payloads(things) == [(0, b"one"), (0, b"between"), (0, b"two")]
        assert [each.rows for each in events if isinstance(each, EpochEnd | EndOfPartition)] == [2, 3, 3]
        assert [type(each) for each in events[-2:]] == [EndOfData, EndOfPartition]
        assert consumer.gate.is_ended
        assert consumer.gate.poll() is None

    def test_rows_are_not_seen_before_a_flush(self, streams: Streams) -> None:
        """Offered rows wait for the flush; then they come while the writer goes on."""
        producer, consumer = streams.pair()
        assert producer.offer(numbers(1), 0) == 1
        consumer.wait(0)
        assert consumer.gate.poll() is None
        producer.raw.flush()
        assert values([consumer.next() or Received(0)]) == [1]
        producer.give(numbers(2))
        assert values([consumer.next() or Received(0)]) == [2]
        producer.end()
        assert values(consumer.drain()) == []

    def test_without_a_reader_offers_end_and_begin_again_when_it_reads(self, streams: Streams) -> None:
        """An offer without room takes nothing and does not wait; the mailbox wakes when there is room."""
        producer, consumer = streams.pair()
        producer.wait(DEADLINE)  # for the first room
        taken = producer.fill()
        assert 0 < taken * 8 < self.clog_limit
        read = 0
        while producer.offer(numbers(*range(taken, taken + 10)), 0) == 0:
            received = consumer.gate.poll()
            read += len(values([] if received is None else [received]))
            consumer.wait(0)
            producer.wait(0.01)
        producer.end()
        things = consumer.drain()
        assert values(things)[-1] == taken + 9
        assert read + len(values(things)) == taken + 10

    def test_a_waiting_producer_is_woken_by_room(self, streams: Streams) -> None:
        """It waits without a look of its own, and is woken by what a reader gives back."""
        producer, consumer = streams.pair()
        producer.wait(DEADLINE)
        taken = producer.fill()
        last: list[Received] = []
        while producer.offer(numbers(taken), 0) == 0:
            while (received := consumer.gate.poll()) is not None:
                last.append(received)
            consumer.wait(0)
            producer.wait(0.01)
        producer.end()
        assert values([*last, *consumer.drain()]) == list(range(taken + 1))

    @pytest.mark.parametrize("event_kind", [EventKind.IN_ORDER, EventKind.BLOCKING])
    def test_a_barrier_before_the_first_row_comes(self, streams: Streams, event_kind: EventKind) -> None:
        """Of a producer that has written nothing, for a gate that was there before it, and for one that was not."""
        owner, descriptor = streams.register(STREAM)
        early = streams.consume([(descriptor, 0)])
        producer = streams.prepare(STREAM, (owner, descriptor))
        producer.raw.setup()
        producer.barrier(b"first", event_kind)
        assert payloads(early.events(1)) == [(0, b"first")]
        other = streams.produce(replace(STREAM, index=1))
        other.barrier(b"second", event_kind)
        late = streams.consume([(other.descriptor, 0)])
        assert payloads(late.events(1)) == [(0, b"second")]

    def test_an_event_needs_no_room(self, streams: Streams) -> None:
        """The writer is full: a barrier is taken, and comes after all rows."""
        producer, consumer = streams.pair()
        producer.wait(DEADLINE)
        taken = producer.fill()
        producer.barrier(b"behind", EventKind.IN_ORDER)
        producer.end()
        things = consumer.drain()
        assert values(things) == list(range(taken))
        assert [type(each.event) for each in things[-3:]] == [EpochEnd, EndOfData, EndOfPartition]

    def test_a_priority_event_overtakes_everything_that_is_queued(self, streams: Streams) -> None:
        """Window and credit are used up, no row was read: it comes before all but what was on its way."""
        producer, consumer = streams.pair()
        producer.wait(DEADLINE)
        rows = 0
        while producer.offer(numbers(rows), 0):
            producer.raw.flush()
            rows += 1
            if rows == 400:
                break
        producer.raw.emit(TaskEvent(b"first"), EventKind.PRIORITY)
        producer.raw.emit(TaskEvent(b"second"), EventKind.PRIORITY)
        before = consumer.events(2)
        assert payloads(before) == [(0, b"first"), (0, b"second")]
        assert len(values(before)) <= 48
        producer.end()
        assert values([*before, *consumer.drain()]) == list(range(rows))

    def test_a_blocking_event_stops_its_channel_until_it_is_resumed(self, streams: Streams) -> None:
        """The other channel of the same producer goes on; rows behind the barrier come after `resume`."""
        producer, consumer = streams.pair(subpartitions=2)
        producer.give(numbers(1), 0)
        producer.barrier(b"stop")
        consumer.events(2)
        producer.give(numbers(2), 0)
        producer.give(numbers(3), 1)
        consumer.gate.resume_consumption(1)
        other = consumer.until(lambda received: received.batch is not None)
        assert [each.channel for each in other] == [1]
        producer.raw.emit(TaskEvent(b"marker"))
        marked = consumer.events(1)
        assert payloads(marked) == [(1, b"marker")]
        consumer.gate.resume_consumption(0)
        things = consumer.events(1)
        assert values(things) == [2]
        assert payloads(things) == [(0, b"marker")]
        producer.end()
        consumer.drain()

    def test_a_barrier_behind_a_barrier_waits_for_the_resume(self, streams: Streams) -> None:
        """Each one blocks for itself, with and without rows between."""
        producer, consumer = streams.pair()
        for name in (b"one", b"two"):
            producer.barrier(name)
        producer.give(numbers(7))
        producer.barrier(b"three")
        producer.end()
        for name in (b"one", b"two", b"three"):
            things = consumer.events(1)
            assert payloads(things) == [(0, name)]
            assert values(things) == ([7] if name == b"three" else [])
            consumer.gate.resume_consumption(0)
        assert [type(each.event) for each in consumer.drain()] == [EndOfData, EndOfPartition]

    def test_barriers_through_a_union(self, streams: Streams) -> None:
        """Two producers, one without rows, and a channel without a producer's rows: each says its barrier once."""
        full, idle = streams.produce(), streams.produce(replace(STREAM, index=1))
        consumer = streams.consume([(full.descriptor, 0), (idle.descriptor, 0)])
        full.wait(DEADLINE)
        taken = full.fill()
        for producer in (full, idle):
            producer.barrier(b"union")
        things = consumer.events(2)
        assert sorted(payloads(things)) == [(0, b"union"), (1, b"union")]
        assert values(things, 0) == list(range(taken))
        for channel, producer in enumerate((full, idle)):
            producer.end()
            consumer.gate.resume_consumption(channel)
        assert len(consumer.drain()) == 4

    def test_what_goes_to_all_keeps_its_place(self, streams: Streams) -> None:
        """Broadcast rows and one subpartition's own come in the order in which they were offered."""
        producer, consumer = streams.pair(subpartitions=2)
        for value in range(4):
            producer.wait(0.01)
            producer.give(numbers(2 * value), 0)
            while producer.offer(numbers(2 * value + 1), ALL) == 0:
                producer.wait(DEADLINE)
        producer.end()
        things = consumer.drain()
        assert values(things, 0) == list(range(8))
        assert values(things, 1) == [1, 3, 5, 7]
        assert [each.event.rows for each in things if isinstance(each.event, EndOfPartition)] in ([8, 4], [4, 8])

    def test_rows_of_any_size_come_whole(self, streams: Streams) -> None:
        """Rows as large as several segments, among small ones; an event waits until such a row is given out."""
        producer = streams.produce(replace(STREAM, schema=TEXTS))
        consumer = streams.consume([(producer.descriptor, 0)], TEXTS)
        texts = ["a", "b" * 3_000_000, "c", "d" * 200_000, "e" * 500_000, "f"]
        rest, found = pa.record_batch([pa.array(texts)], schema=TEXTS), []
        while rest.num_rows or producer.raw.has_pending:
            rest = rest.slice(producer.offer(rest, 0))
            if producer.raw.has_pending:
                with pytest.raises(ProtocolError):
                    producer.barrier(b"too early")
            producer.raw.flush()
            while (received := consumer.gate.poll()) is not None:
                found.append(received)
            consumer.wait(0)
            producer.wait(0.01)
        producer.barrier(b"whole", EventKind.IN_ORDER)
        producer.end()
        found += consumer.drain()
        received_texts = [
            text for each in found if each.batch is not None for text in each.batch.column(0).to_pylist()
        ]
        assert received_texts == texts

    def test_an_end_can_be_a_stop(self, streams: Streams) -> None:
        """The reader learns whether the data has ended or the query was stopped."""
        producer, consumer = streams.pair()
        producer.raw.emit(EndOfData(stopped=True, goes_on=True))
        producer.raw.finish()
        assert consumer.drain()[0].event == EndOfData(stopped=True, goes_on=True)

    def test_a_failed_producer_is_told_to_a_waiting_reader(self, streams: Streams) -> None:
        """The wait ends, and the poll says why."""
        producer, consumer = streams.pair()
        producer.give(numbers(1))
        assert values([consumer.next() or Received(0)]) == [1]
        producer.raw.close(ValueError("no more"))
        with pytest.raises(PartitionError, match="no more"):
            consumer.next()

    def test_a_reader_that_leaves_holds_nobody_up(self, streams: Streams) -> None:
        """Its rows are dropped; the writer, which was full, has room for the other reader."""
        producer = streams.produce(replace(STREAM, subpartitions=2))
        gone, there = (streams.consume([(producer.descriptor, index)]) for index in range(2))
        producer.wait(DEADLINE)
        producer.fill(subpartition=0)
        gone.gate.close()
        producer.give(numbers(1, 2), 1)
        producer.give(numbers(*range(100_000)), 0)
        producer.end()
        assert values(there.drain()) == [1, 2]

    def test_a_producer_without_any_reader_left_goes_on(self, streams: Streams) -> None:
        """Its only reader has left: all that it offers is taken and dropped, its events and its end too."""
        producer, consumer = streams.pair()
        producer.give(numbers(1))
        consumer.next()
        consumer.gate.close()
        producer.give(numbers(*range(100_000)))
        producer.barrier(b"nobody sees it")
        producer.end()

    def test_an_unknown_producer_is_replaced_by_the_real_one(self, streams: Streams) -> None:
        """The mailbox wakes when the producer is there."""
        placeholder = ShuffleDescriptor.unknown(DATASET, 0, self._service_name(streams), PIPELINED)
        consumer = streams.consume([(placeholder, 0)])
        producer = streams.produce()
        producer.give(numbers(5))
        assert consumer.update(producer.descriptor)
        assert values([consumer.next() or Received(0)]) == [5]
        producer.end()
        consumer.drain()

    def test_a_cancelled_task_hears_it_where_it_waits(self, streams: Streams, exchange: ConformanceExchange) -> None:
        """Consumer and producer."""
        producer, consumer = streams.pair()
        for member in (consumer, producer):
            exchange.cancel(member.owner)
            with pytest.raises(TaskCancelledError):
                member.wait_for_ever()

    def test_other_kinds_of_partitions_are_refused(self, streams: Streams) -> None:
        """By name, before anything is set up."""
        with pytest.raises(SettingError, match="blocking_hash"):
            streams.prepare(replace(STREAM, kind=PartitionKind.BLOCKING_HASH))

    @staticmethod
    def _service_name(streams: Streams) -> str:
        return streams.register(replace(STREAM, index=9))[1].service
