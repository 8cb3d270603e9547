# SPDX-License-Identifier: Apache-2.0
"""Topics of Kafka as a source: a subtask reads some of their partitions, and its position is the next offset of each.

A partition belongs to the subtask that a rule names (`_owner`), so subtasks agree without asking each other, also
about partitions that appear while the query runs: each looks for them, in a thread. A partition that no position
knows begins where the options say if the query begins, at its first message if it goes on. Offsets are resolved
before a reader is opened, once for all readers of the query, so a position never says "the latest".

Messages that are gone when their offset is asked for are an error, unless the query may lose them by
`failOnDataLoss`. The broker is told no offsets, unless the settings have a `group.id`: then it is told those of
complete checkpoints, for tools that show them.
"""

from __future__ import annotations

import logging
import operator
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa

from penstock.errors import OutsideError, PlanError
from penstock.record.row_sizes import MOST_BYTES, bounded
from penstock.stream.kafka_client import (
    NOT_MEANT,
    KafkaSettings,
    binary_column,
    closing_client,
    kafka_library,
    number_column,
    partitions_of,
)
from penstock.stream.kafka_offsets import EARLIEST, KafkaStart, Partition, bounds, gone, is_beyond, refuse_beyond
from penstock.stream.kafka_threads import Discovery, SignsOfLife
from penstock.stream.sources import read_whole
from penstock.stream.watermarks import CAUGHT_UP, Waiting

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""The columns of Spark's source, without headers."""
HEADERS: Final = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
POLL_SECONDS = 0.01
MOST_MESSAGES = 10_000
MISSED_SECONDS = 30.0
"""So long Kafka's own client waits for a topic to be known to all brokers (`topic.metadata.propagation.max.ms`)."""
AGAIN_SECONDS = 0.5
SILENT_SECONDS = 30.0
"""A run that ends waits so long for brokers that do not answer: then it begins anew, as its log says."""
_LOG = logging.getLogger("penstock.stream")


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """The messages of `topics`, or of those whose names match `pattern` as a whole."""

    settings: KafkaSettings
    topics: tuple[str, ...] = ()
    pattern: str = ""
    start: KafkaStart = field(default_factory=KafkaStart)
    with_headers: bool = False
    discovery_seconds: float = 30.0
    is_available_now: bool = False
    begun: tuple[tuple[str, int, int], ...] | None = None
    """The offsets at which the query began: topic, number and offset of each partition that there was."""
    ends: tuple[tuple[str, int, int], ...] | None = None
    """Those at which a batch job ends."""
    fails_on_loss: bool = True
    """False: where messages are gone that were to be read, the log says so, and reading goes on at the first one."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"kafka {self.pattern or ', '.join(self.topics)}"

    @property
    def reads(self) -> str:
        """The input that its positions in checkpoints are of."""
        return self.name

    @property
    def schema(self) -> pa.Schema:
        """Spark's columns."""
        return SCHEMA.append(HEADERS) if self.with_headers else SCHEMA

    def available_now(self) -> KafkaSource:
        """Up to the ends that partitions have as readers are opened."""
        return replace(self, is_available_now=True)

    def splits(self) -> int | None:
        """One subtask for each partition at most, as the broker says; raises PlanError for a topic it lacks."""
        with closing_client(self.settings.consumer()) as consumer:
            try:
                return max(1, len(partitions_of(consumer, self.topics, self.pattern)))
            except kafka_library().KafkaException as error:
                raise OutsideError(f"{self.settings.servers} does not answer: {error.args[0].str()}") from error

    def first_position(self) -> bytes:
        """The offsets at which a query begins that begins now; raises PlanError for one that is not there."""
        with closing_client(self.settings.consumer()) as consumer:
            found = partitions_of(consumer, self.topics, self.pattern)
            self.start.refuse_others(found)
            offsets = {each: self.start.at(consumer, each) for each in found}
            for each, offset in offsets.items():
                first, end = bounds(consumer, each)
                if self.fails_on_loss:
                    refuse_beyond(self.settings, each, offset, end)
                elif is_beyond(self.settings, each, offset, end):
                    offsets[each] = _told_of_loss(self.name, each, offset, first)
        return _packed(offsets)

    def begun_at(self, position: bytes) -> KafkaSource:
        """The same source, of a query that began there; partitions that it does not name have come since."""
        return replace(self, begun=tuple(tuple(each) for each in msgpack.unpackb(position)))

    def bounded(self, ends: KafkaStart) -> KafkaSource:
        """The same source for a batch job: from where it starts up to there, as the broker has it now."""
        begun = self.first_position()
        with closing_client(self.settings.consumer()) as consumer:
            places = {(topic, number): offset for topic, number, offset in msgpack.unpackb(begun)}
            ends.refuse_others(places)
            found = {partition: ends.at(consumer, partition) for partition in places}
        for (topic, number), end in found.items():
            if (begin := places[topic, number]) > end:
                raise PlanError(
                    f"kafka: partition {number} of {topic} is to be read from offset {begin} to {end}, which is ahead"
                    " of it: say another startingOffsets, or endingOffsets"
                )
        return replace(self.begun_at(begun), ends=tuple((*each, end) for each, end in found.items()))

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """The rows of a subtask's partitions, for a batch job."""
        yield from read_whole(self.open(subtask, parallelism, []))

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> KafkaReader:
        """A subtask's partitions."""
        positions: dict[Partition, int] = {}
        for state in [self.begun] if self.begun is not None and not restored else map(msgpack.unpackb, restored):
            positions.update({(topic, number): offset for topic, number, offset in state})
        left_out = NOT_MEANT if self.pattern else ()
        own = {
            partition: offset
            for partition, offset in positions.items()
            if _owner(partition, parallelism) == subtask and partition[0] not in left_out
        }
        return KafkaReader(self, (subtask, parallelism), own, is_new=not restored and self.begun is None)


def _owner(partition: Partition, parallelism: int) -> int:
    """The subtask that reads a partition: those of one topic go round."""
    topic, number = partition
    return (zlib.crc32(topic.encode()) + number) % parallelism


def _told_of_loss(name: str, partition: Partition, offset: int | None, first: int) -> int:
    """The first message that there is, which the log says."""
    topic, number = partition
    text = "%s: messages of partition %d of %s are gone: it was to be read from offset %s on, and begins at %d"
    _LOG.warning(text, name, number, topic, offset, first)
    return first


class KafkaReader:
    """One subtask's partitions. `share` is its number and how many there are."""

    def __init__(
        self, source: KafkaSource, share: tuple[int, int], positions: dict[Partition, int], *, is_new: bool
    ) -> None:
        self._source = source
        self._share = share
        self._positions = positions
        self._library = kafka_library()
        self._ends: dict[Partition, int] | None = None
        """The offsets at which it ends, of the partitions that have messages in front of theirs."""
        self._consumer = source.settings.consumer(**{"enable.partition.eof": True})
        self._discovery: Discovery | None = None
        self._life: SignsOfLife | None = None
        try:
            self._begin(is_new=is_new)
        except BaseException:
            self._consumer.close()
            raise
        self._ask_at: float | None = None
        self._empty_since: dict[Partition, tuple[float, float]] = {}
        """By partition the first and the last time that it had nothing when the client was asked."""
        self._at_end: set[Partition] = set()
        """Those of which the client has given all: their log may go on behind that with records of transactions."""
        self._by_partition = False
        self._fetched: list[list[Any]] = []
        """Messages that were fetched and not given, of a batch each: of one partition, where that is wanted."""
        self.partition = ""
        """That of the batch that was read last, if they are of one each."""

    def _begin(self, *, is_new: bool) -> None:
        source = self._source
        found = self._found()
        if not source.fails_on_loss:
            self._pass_over_lost()
        self._take(found, source.start if is_new else KafkaStart(EARLIEST))
        ends = {partition: bounds(self._consumer, partition)[1] for partition in self._positions}
        for partition, end in ends.items():
            refuse_beyond(source.settings, partition, self._positions[partition], end)
        if source.ends is not None:
            ends = {(topic, number): end for topic, number, end in source.ends if (topic, number) in ends}
        if source.is_available_now or source.ends is not None:
            self._ends = {each: end for each, end in ends.items() if self._positions[each] < end}
        elif source.discovery_seconds > 0:
            self._discovery = Discovery(self._look, source.discovery_seconds)
        if self._ends:
            self._watch()

    def _look(self) -> list[Partition]:
        return partitions_of(self._consumer, self._source.topics, self._source.pattern)

    def _watch(self) -> None:
        if self._life is None:
            self._life = SignsOfLife(self._consumer, lambda: list(self._positions))

    def _pass_over_lost(self) -> None:
        """Go to the first message of each partition that has none at its position any more."""
        for partition, offset in self._positions.items():
            first, end = bounds(self._consumer, partition)
            if offset < first or is_beyond(self._source.settings, partition, offset, end):
                self._positions[partition] = _told_of_loss(self._source.name, partition, offset, first)

    def _found(self) -> list[Partition]:
        """The partitions that there are; raises PlanError where a topic or one that was read is not there any more.

        All were there as the query was planned. Brokers that have just come back may lack some for a moment, so they
        are asked again for `MISSED_SECONDS`; after that they say it for good.
        """
        until = time.monotonic() + MISSED_SECONDS
        while True:
            try:
                found = partitions_of(self._consumer, self._source.topics, self._source.pattern)
                if not (missed := sorted(set(self._positions) - set(found))):
                    return found
                topic, number = missed[0]
                raise PlanError(f"kafka: partition {number} of {topic} was read before, and is not there any more")
            except PlanError:
                if time.monotonic() >= until:
                    raise
            time.sleep(AGAIN_SECONDS)

    def _take(self, found: Sequence[Partition], start: KafkaStart) -> None:
        """Read those of these partitions that are its own and not read yet; all of its own if none is."""
        is_first = not self._consumer.assignment()
        fresh = [
            each for each in found if _owner(each, self._share[1]) == self._share[0] and each not in self._positions
        ]
        for partition in fresh:
            self._positions[partition] = start.at(self._consumer, partition)
        assigned = [
            self._library.TopicPartition(topic, number, self._positions[topic, number])
            for topic, number in (self._positions if is_first else fresh)
        ]
        if assigned:
            self._consumer.incremental_assign(assigned)

    @property
    def is_ended(self) -> bool:
        """True if all that was there has been given, where that is all."""
        return self._ends is not None and not self._ends and not self._fetched

    @property
    def wake_at(self) -> float | None:
        """When the client is asked again."""
        return self._ask_at

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """Messages that the client has fetched."""
        if self._discovery is not None:
            for found in self._discovery.found():
                self._take(found, KafkaStart(EARLIEST))
        now = time.monotonic()
        if self._fetched:
            return self._given(self._fetched.pop(0))
        if self.is_ended or (self._ask_at is not None and now < self._ask_at):
            return None
        messages = self._consumer.consume(min(max_rows, MOST_MESSAGES), 0)
        self._ask_at = None if messages else now + POLL_SECONDS
        if not messages and self._ends is not None:
            self._refuse_silence(now)
        at_end: dict[Partition, int] = {}
        if any(map(_ERROR, messages)):
            messages, at_end = self._without_errors(messages)
        if self._ends is not None:
            messages = self._within(self._ends, messages, at_end)
        fetched = [messages]
        if self._by_partition:
            fetched = list(_parted(messages).values())
            given = {(each[-1].topic(), each[-1].partition()): each[-1].offset() for each in fetched}
            self._at_end -= given.keys()
            self._at_end |= {place for place, offset in at_end.items() if offset > given.get(place, -1)}
            self._note_empty(now)
        self._fetched = [part for each in fetched for part in _portions(each)]
        return self._given(self._fetched.pop(0)) if self._fetched else None

    def partitions_waiting(self) -> Waiting:
        """All of its partitions, and how long each has had nothing."""
        unread = self._positions if self._ends is None else {*self._ends, *self._held()}
        found: dict[str, float | None] = {}
        for partition in self._positions:
            first, last = self._empty_since.get(partition, (None, None))
            seconds = None if first is None or last is None else last - first
            found["{}/{}".format(*partition)] = seconds if partition in unread else CAUGHT_UP
        return found

    def read_by_partition(self) -> None:
        """Give batches of one partition each from now on."""
        self._by_partition = True
        self._watch()

    def _held(self) -> set[Partition]:
        """The partitions of messages that were fetched and not given."""
        return {(each[0].topic(), each[0].partition()) for each in self._fetched}

    def _refuse_silence(self, now: float) -> None:
        """Raise OutsideError where a run that ends would wait for brokers that are away, without a word."""
        silent = 0.0 if self._life is None else self._life.silent_for(now)
        if silent > SILENT_SECONDS:
            raise OutsideError(f"kafka: {self._source.settings.servers} has not answered for {silent:.0f} s")

    def _note_empty(self, now: float) -> None:
        """Note which partitions had nothing; none is known to have nothing while the brokers are away."""
        if self._life is not None and self._life.are_away(now):
            self._empty_since.clear()
            return
        for partition, position in self._positions.items():
            if partition not in self._at_end and not self._has_read_all(partition, position):
                self._empty_since.pop(partition, None)
            else:
                first, _ = self._empty_since.get(partition, (now, now))
                self._empty_since[partition] = first, now

    def _has_read_all(self, partition: Partition, position: int) -> bool:
        """Tell whether a position is the end that the client knows of; it may not tell of that as it comes to it."""
        _, end = self._consumer.get_watermark_offsets(self._library.TopicPartition(*partition), cached=True)
        return bool(0 <= end <= position)

    def _given(self, messages: list[Any]) -> pa.RecordBatch:
        """The messages as rows; the positions move behind them."""
        self.partition = f"{messages[0].topic()}/{messages[0].partition()}"
        # Of the messages of a partition the last one counts.
        places = zip(map(_TOPIC, messages), map(_NUMBER, messages), strict=True)
        last = dict(zip(places, map(_OFFSET, messages), strict=True))
        self._positions.update({partition: offset + 1 for partition, offset in last.items()})
        return self._batch(messages)

    def snapshot(self) -> bytes:
        """The next offset of each partition."""
        return _packed(self._positions)

    def completed(self, position: bytes) -> None:
        """Tell the broker, if the user gave a group, how far the query is for good."""
        if "group.id" not in dict(self._source.settings.given):
            return
        offsets = [self._library.TopicPartition(*each) for each in msgpack.unpackb(position)]
        if offsets:
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        """Close the client."""
        if self._discovery is not None:
            self._discovery.close()
        if self._life is not None:
            self._life.close()
        self._consumer.close()

    def _without_errors(self, messages: list[Any]) -> tuple[list[Any], dict[Partition, int]]:
        """Messages that are some, and the ends of partitions that have come to them; any other error is raised."""
        eof = self._library.KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name of it
        errors = [message for message in messages if message.error() is not None]
        for message in errors:
            place = message.topic(), message.partition()
            if message.error().code() in _GONE:
                self._go_on_behind(place)
            elif message.error().code() != eof:
                raise self._library.KafkaException(message.error())
        ended = (each for each in errors if each.error().code() == eof)
        at_end = {(each.topic(), each.partition()): each.offset() for each in ended}
        return [message for message in messages if message.error() is None], at_end

    def _go_on_behind(self, place: Partition) -> None:
        """Go on at a partition's first message where those that are gone may be passed over; else raise PlanError."""
        offset = self._positions.get(place)
        if self._source.fails_on_loss:
            raise gone(place, offset)
        first = _told_of_loss(self._source.name, place, offset, bounds(self._consumer, place)[0])
        self._positions[place] = first
        self._at_end.discard(place)
        # The client has given the partition up: it does not seek there.
        self._consumer.incremental_unassign([self._library.TopicPartition(*place)])
        self._consumer.incremental_assign([self._library.TopicPartition(*place, first)])

    @staticmethod
    def _within(ends: dict[Partition, int], messages: list[Any], at_end: Collection[Partition]) -> list[Any]:
        """The messages in front of the ends of a run; partitions that have come to theirs are taken out."""
        kept = [each for each in messages if each.offset() < ends.get((each.topic(), each.partition()), 0)]
        for message in messages:
            partition = (message.topic(), message.partition())
            if message.offset() + 1 >= ends.get(partition, 0):
                ends.pop(partition, None)
        for partition in at_end:
            ends.pop(partition, None)
        return kept

    def _batch(self, messages: list[Any]) -> pa.RecordBatch:
        kinds, moments = zip(*map(_TIMESTAMP, messages), strict=True)
        millis = np.fromiter(moments, np.int64, len(messages))
        columns = [
            binary_column(list(map(_KEY, messages))),
            binary_column(list(map(_VALUE, messages))),
            binary_column(list(map(str.encode, map(_TOPIC, messages)))).view(pa.string()),
            number_column(_NUMBER, messages, pa.int32()),
            number_column(_OFFSET, messages, pa.int64()),
            pa.Array.from_buffers(SCHEMA.field("timestamp").type, len(messages), [None, pa.py_buffer(millis * 1000)]),
            # The client says 0 for a message without one, 1 and 2 for what Spark and Kafka call 0 and 1.
            pa.Array.from_buffers(
                pa.int32(),
                len(messages),
                [None, pa.py_buffer(np.fromiter(kinds, np.int32, len(messages)) - np.int32(1))],
            ),
        ]
        if self._source.with_headers:
            columns.append(_headers(messages))
        return pa.RecordBatch.from_arrays(columns, schema=self._source.schema)


_GONE: Final = (1, -140)
"""OFFSET_OUT_OF_RANGE, and the client's word for it where it may not go on elsewhere."""
_ERROR: Final = operator.methodcaller("error")
_KEY: Final[Callable[[Any], bytes | None]] = operator.methodcaller("key")
_VALUE: Final[Callable[[Any], bytes | None]] = operator.methodcaller("value")
_TOPIC: Final[Callable[[Any], str]] = operator.methodcaller("topic")
_NUMBER: Final[Callable[[Any], int]] = operator.methodcaller("partition")
_OFFSET: Final[Callable[[Any], int]] = operator.methodcaller("offset")
_TIMESTAMP: Final[Callable[[Any], tuple[int, int]]] = operator.methodcaller("timestamp")
_HEADERS: Final = operator.methodcaller("headers")


def _headers(messages: list[Any]) -> pa.Array:
    """The headers of each message; null where it has none, as in Spark."""
    found = list(map(_HEADERS, messages))
    flat = [pair for headers in found for pair in headers or ()]
    counts = np.fromiter((len(headers or ()) for headers in found), np.int32, len(found))
    ends = np.zeros(len(found) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    keys = binary_column([key.encode() for key, _ in flat]).view(pa.string())
    values = binary_column([value for _, value in flat])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.type.value_type))
    return pa.Array.from_buffers(HEADERS.type, len(found), [validity, pa.py_buffer(ends)], children=[pairs])


def _packed(positions: Mapping[Partition, int]) -> bytes:
    packed: bytes = msgpack.packb([(*partition, offset) for partition, offset in positions.items()])
    return packed


def _parted(messages: Sequence[Any]) -> dict[Partition, list[Any]]:
    """Messages by their partitions, in the order in which they came."""
    found: dict[Partition, list[Any]] = {}
    for place, message in zip(zip(map(_TOPIC, messages), map(_NUMBER, messages), strict=True), messages, strict=True):
        found.setdefault(place, []).append(message)
    return found


def _portions(messages: list[Any]) -> Iterator[list[Any]]:
    """Messages in portions of the bytes of a batch: the client holds some of a megabyte each, or many small ones."""
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    return (messages[begin:end] for begin, end in bounded(sizes, MOST_BYTES))
