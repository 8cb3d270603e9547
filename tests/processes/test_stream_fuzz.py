# SPDX-License-Identifier: Apache-2.0
"""Random interleavings of a streaming exchange with real environment processes: every row once, each epoch whole.

Two producers on one host, and readers there and on another. At any draw, the readers see each producer's rows in its
order, every barrier between the rows that it was put between, or ahead of them where it may overtake, and no row
behind a barrier that blocks before the channel is resumed. Barriers of all kinds follow each other. Offers that find
no room, rows larger than a segment, readers that do not read for a while and tasks that are cancelled in the middle
are part of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from effort import some_of
from local_harness import LocalHarness, idle_behind, started
from penstock.errors import TaskCancelledError
from penstock.shuffle import EndOfData, EndOfPartition, EpochAhead, EpochEnd, EventKind, PartitionKind, TaskEvent
from penstock.shuffle.splits import ALL
from penstock.testing.conformance import ConformanceExchange
from penstock.testing.conformance_exchange import Consumer, Producer, WantedPartition
from penstock.testing.conformance_streams import Streams
from penstock.testing.waiting import DEADLINE

pytestmark = pytest.mark.processes

SEGMENT = 32 << 10
ROWS = pa.schema([("producer", pa.int64()), ("number", pa.int64()), ("text", pa.string())])
EPOCHS = 30
SUBPARTITIONS = 3
KINDS = (EventKind.IN_ORDER, EventKind.BLOCKING, EventKind.PRIORITY)


@pytest.fixture(scope="module")
def hosts() -> Iterator[LocalHarness]:
    """Environments with so little memory that everything is full most of the time."""
    conf = {"spark.penstock.network.segmentSize": "32k", "spark.penstock.network.memory": "6m"}
    yield from started(LocalHarness("stream-fuzz", conf))


@pytest.fixture
def service(hosts: LocalHarness) -> Iterator[LocalHarness]:
    """The shared environments, idle after the test."""
    yield from idle_behind(hosts)


@pytest.fixture
def exchange(service: LocalHarness) -> Iterator[ConformanceExchange]:
    """The workbench."""
    workbench = ConformanceExchange(service, asyncio.run)
    yield workbench
    workbench.close()


@dataclass(slots=True)
class Writing:
    """A producer's side: what is to be written, and what was."""

    number: int
    producer: Producer
    random: random.Random
    written: list[list[int]] = field(default_factory=lambda: [[] for _ in range(SUBPARTITIONS)])
    rest: tuple[pa.RecordBatch, int] | None = None
    epoch: int = 0
    rows: int = 0
    has_ended: bool = False

    def step(self) -> None:
        """One thing at random; never waits."""
        writer = self.producer.raw
        self.producer.wait(0)
        if self.has_ended:
            return
        if self.rest is not None or writer.has_pending:
            self._offer(*(self.rest or (self._batch(0), 0)))
        elif (drawn := self.random.random()) < 0.6:
            self._offer(self._batch(self.random.choice((1, 3, 200, 5000))), self.random.randrange(SUBPARTITIONS + 1))
        elif drawn < 0.8:
            writer.flush()
        elif drawn < 0.85:
            writer.emit(TaskEvent(b"early"), EventKind.PRIORITY)
        elif self.epoch < EPOCHS:
            kind = self.random.choice(KINDS)
            writer.end_epoch(b"%d" % (len(KINDS) * self.epoch + KINDS.index(kind)), kind)
            for target in () if kind is EventKind.PRIORITY else self.written:
                target.append(-1 - self.epoch)
            self.epoch += 1
        else:
            writer.emit(EndOfData())
            writer.finish()
            self.has_ended = True

    def _batch(self, rows: int) -> pa.RecordBatch:
        first, self.rows = self.rows, self.rows + rows
        length = self.random.choice((0, 5, 50)) if self.random.random() < 0.95 else 3 * SEGMENT // max(1, rows)
        columns = [[self.number] * rows, list(range(first, first + rows)), ["x" * length] * rows]
        return pa.record_batch(
            [pa.array(values, kind) for values, kind in zip(columns, ROWS.types, strict=True)], schema=ROWS
        )

    def _offer(self, batch: pa.RecordBatch, target: int) -> None:
        taken = self.producer.offer(batch, ALL if target == SUBPARTITIONS else target)
        values = batch.column(1).slice(0, taken).to_pylist()
        for written in self.written if target == SUBPARTITIONS else [self.written[target]]:
            written.extend(values)
        self.rest = None if taken == batch.num_rows else (batch.slice(taken), target)


@dataclass(slots=True)
class Reading:
    """A consumer's side: what came on each channel."""

    consumer: Consumer
    random: random.Random
    read: list[list[int]]
    blocked: set[int] = field(default_factory=set)
    early: int = 0
    announced: set[tuple[int, bytes]] = field(default_factory=set)
    overtaking: set[tuple[int, bytes]] = field(default_factory=set)

    def step(self) -> None:
        """Take what is there, or do not, or resume a channel."""
        gate = self.consumer.gate
        self.consumer.wait(0)
        if self.blocked and self.random.random() < 0.3:
            channel = self.random.choice(sorted(self.blocked))
            self.blocked.remove(channel)
            gate.resume_consumption(channel)
        for _ in range(self.random.choice((0, 1, 20))):
            received = gate.poll()
            if received is None:
                return
            event = received.event
            if received.batch is not None:
                assert received.channel not in self.blocked
                self.read[received.channel] += received.batch.column(1).to_pylist()
            elif isinstance(event, EpochEnd):
                epoch, number = divmod(int(event.payload), len(KINDS))
                kind = KINDS[number]
                if kind is EventKind.PRIORITY:
                    assert (received.channel, event.payload) in self.announced
                    self.overtaking.add((received.channel, event.payload))
                else:
                    self.read[received.channel].append(-1 - epoch)
                if kind is EventKind.BLOCKING:
                    self.blocked.add(received.channel)
            elif isinstance(event, EpochAhead):
                self.announced.add((received.channel, event.payload))
            elif isinstance(event, TaskEvent):
                self.early += 1
            else:
                assert isinstance(event, EndOfData | EndOfPartition)
                assert received.channel not in self.blocked


@pytest.mark.parametrize("seed", some_of(range(6), 3))
def test_every_row_comes_once(exchange: ConformanceExchange, seed: int) -> None:
    """Run to the end: rows and barriers of every channel are what was written, in order."""
    chance = random.Random(seed)
    streams = {host: Streams(exchange, host) for host in ("a", "b")}
    writings = [_writing(streams["a"], number, chance) for number in range(2)]
    readings = []
    for subpartition in range(SUBPARTITIONS):
        sources = [(writing.producer.descriptor, subpartition) for writing in writings]
        consumer = streams[chance.choice("ab")].consume(sources, ROWS)
        readings.append(Reading(consumer, chance, [[] for _ in writings]))
    parts: list[Writing | Reading] = [*writings, *readings]
    while not all(reading.consumer.gate.is_ended for reading in readings):
        chance.choice(parts).step()
    for subpartition, reading in enumerate(readings):
        assert reading.read == [writing.written[subpartition] for writing in writings]
        assert reading.announced == reading.overtaking


@pytest.mark.parametrize("seed", range(4))
def test_a_cancel_in_the_middle_leaves_nothing(exchange: ConformanceExchange, seed: int) -> None:
    """Any task is told to stop at any moment, and hears it at its line; the environments hold nothing afterwards."""
    chance = random.Random(seed)
    streams = Streams(exchange, "b")
    writing = _writing(streams, 0, chance)
    consumer = streams.consume([(writing.producer.descriptor, index) for index in range(SUBPARTITIONS)], ROWS)
    reading = Reading(consumer, chance, [[] for _ in range(SUBPARTITIONS)])
    for _ in range(chance.randrange(400)):
        chance.choice((writing, reading)).step()
    victim = chance.choice((writing.producer, consumer))
    exchange.cancel(victim.owner)
    with pytest.raises(TaskCancelledError):
        victim.wait_for_ever()
    writing.producer.writer.close()
    consumer.gate.close()


def _writing(streams: Streams, number: int, chance: random.Random) -> Writing:
    written = WantedPartition(PartitionKind.PIPELINED_BOUNDED, ROWS, SUBPARTITIONS, index=number, is_stream=True)
    producer = streams.produce(written)
    producer.wait(DEADLINE)
    return Writing(number, producer, chance)
