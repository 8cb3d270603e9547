# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - this is test code that ships with the product
"""Conformance of services whose barriers may overtake rows: who has which row, and that sums stay right.

A reader has what came in front of a barrier's place in its channel, the writer is told what the barrier overtook, and
both together are what was written in front of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.errors import ProtocolError
from penstock.shuffle import EndOfPartition, EpochAhead, EpochEnd, EventKind, Received
from penstock.shuffle.endpoints import Overtaken
from penstock.testing.conformance_exchange import NUMBERS, Consumer, Producer, numbers
from penstock.testing.conformance_streams import (
    STREAM,
    TEXTS,
    Streams,
    payloads,
    values,
)
from penstock.testing.waiting import DEADLINE

_NO_ROOM_SECONDS = 0.5
"""Room that has not come by then does not come while the reader stands still."""
_HEAD = 16
"""Bytes in front of a framed message, the first eight of which are its length."""


def fill_up(producer: Producer, begin: int = 0) -> int:
    """Offer numbers from `begin` on until no more room comes: more than a reader takes ahead.

    Returns how many were taken.
    """
    while not (taken := producer.fill(rows=500, begin=begin)):
        producer.wait(DEADLINE)
    full_since = time.monotonic()
    while time.monotonic() - full_since < _NO_ROOM_SECONDS:  # a wait ends for other things than room, too
        producer.wait(_NO_ROOM_SECONDS)
        if more := producer.fill(rows=500, begin=begin + taken):
            taken += more
            full_since = time.monotonic()
    return taken


def overtake(producer: Producer, payload: bytes) -> list[Overtaken]:
    """Send a barrier ahead, and wait for what it overtook."""
    producer.barrier(payload, EventKind.PRIORITY)
    while (overtaken := producer.raw.overtaken()) is None:
        producer.wait(DEADLINE)
    assert producer.raw.overtaken() is None
    return list(overtaken)


def batches(overtaken: Overtaken, schema: pa.Schema = NUMBERS) -> list[pa.RecordBatch]:
    """The batches of framed messages, or as they are; a message may span pieces that follow each other."""
    found: list[pa.RecordBatch] = []
    for is_batch, pieces in itertools.groupby(overtaken, lambda piece: isinstance(piece, pa.RecordBatch)):
        if is_batch:
            found.extend(pieces)
        else:
            found.extend(_messages(b"".join(pieces), schema))
    return found


def _messages(framed: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    at = 0
    while at < len(framed):
        length = int.from_bytes(framed[at : at + 8], "little")
        yield pa.ipc.read_record_batch(pa.py_buffer(framed).slice(at + _HEAD, length), schema)
        at += _HEAD + length + -length % 8


def in_column(found: Iterable[pa.RecordBatch]) -> list[object]:
    """The values of the one column, in order."""
    return [value for batch in found for value in batch.column(0).to_pylist()]


def ahead(consumer: Consumer) -> Received:
    """The next thing that goes ahead of all rows, waited for; no row is taken."""
    while (received := consumer.gate.poll_ahead()) is None:
        consumer.wait(DEADLINE)
    return received


def up_to(consumer: Consumer, payload: bytes) -> list[Received]:
    """All things up to the place of a barrier, which is the last of them."""
    return consumer.until(lambda got: isinstance(got.event, EpochEnd) and got.event.payload == payload)


class OvertakingConformance:
    """The promises of a streaming service about barriers with priority. Mixed in beside `StreamConformance`."""

    def test_each_row_is_on_one_side_of_a_barrier_that_overtakes(self, streams: Streams) -> None:
        """A barrier is announced to a reader that stands still; rows that it passed come later and are told of.

        A reader may have taken all rows ahead.
        """
        producer, consumer = streams.pair()
        taken = fill_up(producer)
        overtaken = overtake(producer, b"one")
        assert ahead(consumer).event == EpochAhead(b"one")
        before = up_to(consumer, b"one")
        passed = in_column(batches(overtaken[0]))
        assert [*values(before), *passed] == list(range(taken))
        producer.end()
        assert values(consumer.drain()) == passed

    def test_all_rows_are_overtaken_that_no_reader_has_asked_for(self, streams: Streams) -> None:
        """The reader comes after the barrier, so none of the rows is in front of it."""
        producer = streams.produce(STREAM)
        taken = fill_up(producer)
        passed = in_column(batches(overtake(producer, b"one")[0]))
        assert passed == list(range(taken))
        consumer = streams.consume([(producer.descriptor, 0)])
        assert ahead(consumer).event == EpochAhead(b"one")
        assert values(up_to(consumer, b"one")) == []
        producer.end()
        assert values(consumer.drain()) == passed

    def test_the_sums_of_an_epoch_are_right_although_its_end_came_first(self, streams: Streams) -> None:
        """Three epochs whose ends overtake rows, and one more end in order: the reader compares them all."""
        producer, consumer = streams.pair(subpartitions=2)
        taken = [0, 0, 0]
        producer.wait(DEADLINE)
        for epoch in range(3):
            for value in range(epoch, 40):
                taken[epoch] += producer.offer(numbers(value), epoch % 2)
                producer.raw.flush()
                producer.wait(0)
            overtake(producer, b"%d" % epoch)
        producer.barrier(b"in order", EventKind.IN_ORDER)
        producer.end()
        things = consumer.drain()
        ends = [each.event for each in things if isinstance(each.event, EpochEnd | EndOfPartition)]
        first, second = taken[0] + taken[2], taken[1]
        assert sorted(end.rows for end in ends) == sorted(
            [taken[0], taken[0], first, first, first, 0, second, second, second, second]
        )
        assert len(values(things, 0)) == taken[0] + taken[2]
        assert len(values(things, 1)) == taken[1]

    def test_a_second_barrier_overtakes_the_first_ones_rows_again(self, streams: Streams) -> None:
        """Rows that wait behind two barriers are told for both."""
        producer, consumer = streams.pair()
        taken = fill_up(producer)
        first = in_column(batches(overtake(producer, b"one")[0]))
        second = in_column(batches(overtake(producer, b"two")[0]))
        assert second == first[len(first) - len(second) :]
        before = up_to(consumer, b"one")
        assert [*values(before), *first] == list(range(taken))
        producer.end()
        assert values([*before, *consumer.drain()]) == list(range(taken))

    @pytest.mark.parametrize("is_between", [True, False], ids=["rows between", "nothing between"])
    @pytest.mark.parametrize("event_kind", [EventKind.IN_ORDER, EventKind.BLOCKING])
    def test_a_barrier_overtakes_an_older_one_that_did_not(
        self, streams: Streams, event_kind: EventKind, is_between: bool
    ) -> None:
        """The older one stays behind its rows, and each epoch is compared where it ends among the rows."""
        producer = streams.produce(STREAM)
        producer.wait(DEADLINE)
        taken = producer.offer(numbers(*range(40)), 0)
        producer.barrier(b"one", event_kind)
        if is_between:
            taken += fill_up(producer, begin=taken)
        passed = in_column(batches(overtake(producer, b"two")[0]))
        assert passed == list(range(taken))
        consumer = streams.consume([(producer.descriptor, 0)])
        assert ahead(consumer).event == EpochAhead(b"two")
        things = up_to(consumer, b"one")
        assert payloads(things) == [(0, b"two"), (0, b"one")]
        if event_kind is EventKind.BLOCKING:
            consumer.gate.resume_consumption(0)
        producer.barrier(b"three", EventKind.IN_ORDER)
        producer.end()
        assert values(things) == list(range(40))
        things += consumer.drain()
        assert values(things) == list(range(taken))
        ends = [each.event for each in things if isinstance(each.event, EpochEnd)]
        assert [(end.payload, end.rows) for end in ends] == [(b"two", taken), (b"one", 40), (b"three", taken)]

    def test_a_reader_that_has_left_the_older_barrier_behind_hears_of_the_newer_one(self, streams: Streams) -> None:
        """It stands still behind a barrier that blocks; one that overtakes comes first when it is resumed."""
        producer, consumer = streams.pair()
        producer.give(numbers(1))
        producer.barrier(b"one")
        before = up_to(consumer, b"one")
        producer.give(numbers(2))
        producer.barrier(b"two")
        overtaken = overtake(producer, b"three")
        assert in_column(batches(overtaken[0])) == [2]
        assert consumer.gate.poll_ahead() is None
        consumer.gate.resume_consumption(0)
        assert ahead(consumer).event == EpochAhead(b"three")
        things = up_to(consumer, b"two")
        assert payloads(things) == [(0, b"three"), (0, b"two")]
        consumer.gate.resume_consumption(0)
        producer.end()
        assert values([*before, *things, *consumer.drain()]) == [1, 2]

    def test_no_barrier_stands_in_a_row_that_spans(self, streams: Streams) -> None:
        """A row of several segments is partly read: the barrier comes in front of it or behind it."""
        producer = streams.produce(replace(STREAM, schema=TEXTS))
        consumer = streams.consume([(producer.descriptor, 0)], TEXTS)
        texts = ["a", "b" * 3_000_000, "c", "d"]
        rest = pa.record_batch([pa.array(texts)], schema=TEXTS)
        found: list[Received] = []
        while rest.num_rows or producer.raw.has_pending:
            rest = rest.slice(producer.offer(rest, 0))
            if producer.raw.has_pending:
                with pytest.raises(ProtocolError):
                    producer.barrier(b"too early", EventKind.PRIORITY)
            producer.raw.flush()
            if rest.num_rows or producer.raw.has_pending:
                while (received := consumer.gate.poll()) is not None:
                    found.append(received)
                consumer.wait(0)
                producer.wait(0.01)
        overtaken = overtake(producer, b"whole")
        found += up_to(consumer, b"whole")
        read = in_column(each.batch for each in found if each.batch is not None)
        assert read + in_column(batches(overtaken[0], TEXTS)) == texts
        producer.end()
        read += in_column(each.batch for each in consumer.drain() if each.batch is not None)
        assert read == texts

    def test_of_some_channels_only_their_rows_are_given(self, streams: Streams) -> None:
        """The others keep their rows, and their order, until they are asked for."""
        producer, consumer = streams.pair(subpartitions=2)
        for value in range(6):
            producer.give(numbers(value), value % 2)
        found: list[Received] = []
        while len(values(found, 1)) < 3:
            received = consumer.gate.poll({1})
            if received is None:
                consumer.wait(DEADLINE)
            else:
                found.append(received)
        assert values(found, 1) == [1, 3, 5]
        assert values(found, 0) == []
        producer.end()
        assert values(consumer.drain(), 0) == [0, 2, 4]

    def test_rows_that_are_fetched_ahead_of_need_make_no_room(self, streams: Streams) -> None:
        """A reader fetches what is in front of a barrier, again and again: what is in flight does not grow by it."""
        producer, consumer = streams.pair()
        taken = fill_up(producer)
        found: list[Received] = []
        for name in (b"one", b"two", b"three"):
            overtake(producer, name)
            assert ahead(consumer).event == EpochAhead(name)
            while not (found and isinstance(found[-1].event, EpochEnd) and found[-1].event.payload == name):
                received = consumer.gate.poll({0})
                if received is None:
                    consumer.wait(DEADLINE)
                else:
                    found.append(received)
            full_since = time.monotonic()
            while time.monotonic() - full_since < _NO_ROOM_SECONDS:
                producer.wait(_NO_ROOM_SECONDS)
                assert not producer.fill(rows=500, begin=taken)
        while sum(each.batch.num_rows for each in found if each.batch is not None) < taken:
            found.append(consumer.next() or Received(0))
        assert values(found) == list(range(taken))
        while not producer.fill(rows=500, begin=taken):
            consumer.gate.poll()
            producer.wait(_NO_ROOM_SECONDS)

    def test_what_nobody_reads_is_not_overtaken(self, streams: Streams) -> None:
        """The reader of one subpartition has left: the writer hears of the other's rows, and of none of that one."""
        producer = streams.produce(replace(STREAM, subpartitions=2))
        gone, there = (streams.consume([(producer.descriptor, index)]) for index in range(2))
        producer.give(numbers(1), 0)
        assert values([gone.next() or Received(0)]) == [1]
        gone.gate.close()
        for value in itertools.count():
            producer.wait(0.01)
            producer.give(numbers(value), 0)
            overtaken = overtake(producer, b"%d" % value)
            if not overtaken[0]:
                break
        assert batches(overtaken[0]) == []
        producer.end()
        there.drain()
