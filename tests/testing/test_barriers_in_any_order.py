# SPDX-License-Identifier: Apache-2.0
"""Barriers of all kinds in turn: each row is on one side of each, and the sums are right wherever they end.

Two ways from writer to reader, driven by random programs: the `memory` service, and a subpartition's queue with the
sums of the local service's writers and readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from memory_harness import MemoryHarness
from penstock.buffer import BufferSlice
from penstock.errors import IncompleteDataError
from penstock.partition.subpartition import PipelinedSubpartition
from penstock.record.codec import BatchCodec
from penstock.record.framing import frame_message
from penstock.services.local.gate_channel import GateChannel
from penstock.services.local.messages import WriterSums
from penstock.services.local.writer import DATA_TYPES
from penstock.shuffle import EpochEnd, EventKind
from penstock.shuffle.events import decode_event, encode_event
from penstock.testing.conformance import ConformanceExchange
from penstock.testing.conformance_exchange import NUMBERS, Consumer, Producer, numbers
from penstock.testing.conformance_overtaking import batches, in_column
from penstock.testing.conformance_streams import Streams, values

ROWS, READ, RESUME = "rows", "read", "resume"
STEPS = st.lists(st.sampled_from([ROWS, READ, RESUME, *EventKind]), max_size=40)


def kind_of(payload: bytes) -> EventKind:
    """The kind of a barrier, which its payload says."""
    return EventKind(payload.decode().partition(" ")[2])


class Sides:
    """Checks what came in order against what was sent: rows, and of each barrier the rows in front of it."""

    def __init__(self) -> None:
        self.sent = 0
        self.read = 0
        self.fronts: dict[bytes, int] = {}
        self.passed: dict[bytes, int] = {}
        """Of barriers that overtook: the rows that they passed at the sender."""
        self.is_blocked = False

    def barrier(self, number: int, kind: EventKind) -> bytes:
        """The payload of the next barrier, which stands behind all that was sent."""
        payload = f"{number} {kind.value}".encode()
        self.fronts[payload] = self.sent
        return payload

    def rows(self, values: list[int]) -> None:
        """Rows that came."""
        assert not self.is_blocked
        assert values == list(range(self.read, self.read + len(values)))
        self.read += len(values)

    def place(self, payload: bytes) -> None:
        """A barrier came at its place."""
        assert self.read + self.passed.get(payload, 0) == self.fronts.pop(payload)
        self.is_blocked = kind_of(payload) is EventKind.BLOCKING


@contextmanager
def memory_streams() -> Iterator[Streams]:
    """A workbench of its own for each program."""
    harness = MemoryHarness("barriers-in-any-order")
    exchange = ConformanceExchange(harness, asyncio.run)
    try:
        yield Streams(exchange, "a")
    finally:
        exchange.close()
        harness.close()


def read_one(consumer: Consumer, sides: Sides) -> bool:
    """Take the next thing; whether there was one."""
    received = consumer.gate.poll()
    if received is None:
        return False
    if received.batch is not None:
        sides.rows(values([received]))
    elif isinstance(received.event, EpochEnd):
        sides.place(received.event.payload)
    return True


def send(producer: Producer, sides: Sides, payload: bytes) -> None:
    """End an epoch; what that overtakes is known at once in memory."""
    kind = kind_of(payload)
    producer.barrier(payload, kind)
    if kind is EventKind.PRIORITY:
        (overtaken,) = producer.raw.overtaken() or ()
        sides.passed[payload] = len(in_column(batches(overtaken)))


@settings(max_examples=examples(400))
@given(STEPS)
def test_memory_service(steps: list[str | EventKind]) -> None:
    """In any order of writing and reading all rows come, and no sum differs."""
    with memory_streams() as streams:
        producer, consumer = streams.pair()
        sides = Sides()
        for number, step in enumerate(steps):
            if step == ROWS:
                sides.sent += producer.offer(numbers(*range(sides.sent, sides.sent + 3)))
            elif step == READ:
                read_one(consumer, sides)
            elif isinstance(step, EventKind):
                send(producer, sides, sides.barrier(number, step))
            elif sides.is_blocked:
                sides.is_blocked = False
                consumer.gate.resume_consumption(0)
        producer.end()
        while not consumer.gate.is_ended:
            if not read_one(consumer, sides):
                assert sides.is_blocked
                sides.is_blocked = False
                consumer.gate.resume_consumption(0)
        assert sides.read == sides.sent
        assert not sides.fronts


class Parent:
    """The partition of the queue under test."""

    name = "numbers"
    host = "a"

    def on_consumed(self, buffers: list[BufferSlice]) -> None:
        """Nobody leaves."""


class QueuedExchange:
    """A subpartition's queue between the sums of a writer and those of a reader; a message is a slice."""

    def __init__(self, faults: dict[int, int] | None = None) -> None:
        """`faults`: of messages, by number, how often they come instead of once."""
        self.sides = Sides()
        self._faults = faults or {}
        self._codec = BatchCodec(NUMBERS)
        self._sums = WriterSums(1)
        self._queue = PipelinedSubpartition(0, Parent())
        self._view = self._queue.create_view(lambda: None)
        self._channel = GateChannel(self._codec, "the reader", verify=True)
        self._slices: dict[int, bytes] = {}

    def send_rows(self) -> None:
        """Three rows, as one message."""
        batch = numbers(*range(self.sides.sent, self.sides.sent + 3))
        message = frame_message(self._codec.encode(batch), True)
        self._sums.add(0, batch.num_rows, message)
        data = b"".join(message.parts)
        piece = BufferSlice(len(self._slices), 0, len(data))
        self._slices[piece.segment] = data
        self._queue.add(piece)
        self.sides.sent += batch.num_rows

    def send(self, payload: bytes) -> None:
        """End an epoch."""
        (end,) = self._sums.ends()
        kind = kind_of(payload)
        overtakes = kind is EventKind.PRIORITY
        place = self._sums.positions[0]
        event = encode_event(EpochEnd(payload, end.rows, end.bytes, end.checksum, place, overtakes))
        if overtakes:
            self.sides.passed[payload] = 3 * len(self._queue.overtake(event))
        else:
            self._queue.add_event(event, DATA_TYPES[kind])

    def read(self) -> bool:
        """Take the next thing as a gate does; whether there was one."""
        item = self._view.poll()
        if item is None:
            return False
        if isinstance(item.payload, BufferSlice):
            number = item.payload.segment
            for _ in range(self._faults.get(number, 1)):
                for batch in self._channel.take(memoryview(self._slices[number])):
                    self.sides.rows(batch.column(0).to_pylist())
            return True
        event = decode_event(item.payload)
        assert isinstance(event, EpochEnd)
        self._channel.end_epoch(event)
        self.sides.place(event.payload)
        return True

    def resume(self) -> None:
        """Go on after a barrier that blocks."""
        if self.sides.is_blocked:
            self.sides.is_blocked = False
            self._view.resume()

    def end(self) -> None:
        """Read all that is left, and compare the sums of all."""
        while self.read() or self.sides.is_blocked:
            self.resume()
        self._channel.end(self._sums.ends()[0])


def run(steps: list[str | EventKind], queued: QueuedExchange) -> None:
    """The program, and then the rest."""
    for number, step in enumerate(steps):
        if step == ROWS:
            queued.send_rows()
        elif step == READ:
            queued.read()
        elif isinstance(step, EventKind):
            queued.send(queued.sides.barrier(number, step))
        else:
            queued.resume()
    queued.end()


@settings(max_examples=examples(1000))
@given(STEPS)
def test_queue_and_sums_of_the_local_service(steps: list[str | EventKind]) -> None:
    """The same, of what the local service's processes consist of."""
    queued = QueuedExchange()
    run(steps, queued)
    assert queued.sides.read == queued.sides.sent
    assert not queued.sides.fronts


class Faulty(Sides):
    """Looks at no rows, so that only the sums do; from message `fault` on no barrier may pass in order."""

    def __init__(self, fault: int) -> None:
        super().__init__()
        self._fault = fault

    def rows(self, values: list[int]) -> None:
        """Rows that came."""

    def place(self, payload: bytes) -> None:
        """A barrier came at its place."""
        kind = kind_of(payload)
        assert kind is EventKind.PRIORITY or self.fronts[payload] <= 3 * self._fault
        self.is_blocked = kind is EventKind.BLOCKING


@settings(max_examples=examples(400))
@given(STEPS, st.integers(0, 20), st.sampled_from([0, 2]))
def test_a_message_that_is_lost_or_doubled_is_found(steps: list[str | EventKind], number: int, times: int) -> None:
    """At the next barrier that is in order, at the latest at the end, whatever overtakes."""
    fault = number % (1 + steps.count(ROWS))
    queued = QueuedExchange({fault: times})
    queued.sides = Faulty(fault)
    with pytest.raises(IncompleteDataError):
        run([ROWS, *steps], queued)
