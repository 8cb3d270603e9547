# SPDX-License-Identifier: Apache-2.0
"""Topics of Kafka as a sink: rows are kept in the checkpoint, and sent when it is complete, in one transaction.

A client can't finish a transaction that another process has prepared. So nothing is sent ahead of a checkpoint: its
rows are the writer's state in it. When it is complete they are sent, and with them, in the same transaction, a
*marker*: a message in a topic of its own whose key is the writer and whose value the checkpoint's number. An attempt
that begins with a checkpoint fences its predecessor (same `transactional.id`), reads the last marker, and sends what
the checkpoint names only if no marker says that it was sent.

The marker topic is compacted, so it stays as small as the number of writers. Readers must be `read_committed`. With
`includeTransaction` each row has a header with the name of its transaction: one whose name is in a marker counts,
also for a reader that sees more.

Limits: an epoch's rows must fit memory and a transaction of `transaction.timeout.ms`; the task stands while it sends.
"""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgpack
import pyarrow as pa

from penstock.errors import OutsideError, PlanError
from penstock.stream.commit_sink import CommitId
from penstock.stream.kafka_client import ASK_SECONDS, KafkaSettings, kafka_library

HEADER = "penstock-transaction"
MARKERS = "penstock-markers"
_PARTITION = 0
"""All markers are in one."""
_QUEUE_FULL_SECONDS = 0.05
_MAKE_SECONDS = 5.0
_HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_COLUMNS = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": _HEADERS_TYPE,
}


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """Rows with `value`, and maybe `key`, `topic`, `partition` and `headers`, into `topic` or the row's own.

    `uid` is the query's; `owner` the attempt that opens it (see `StreamSink`).
    """

    settings: KafkaSettings
    uid: str
    topic: str = ""
    markers: str = MARKERS
    includes_transaction: bool = False
    owner: str = "0"

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"kafka {self.topic}".rstrip()

    def owned(self, owner: str) -> KafkaSink:
        """The same sink, for one attempt."""
        return replace(self, owner=owner)

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> KafkaWriter:
        """Send what was prepared and not sent, and begin."""
        for state in restored:
            writer, prepared = msgpack.unpackb(state)
            if prepared and writer % parallelism == subtask:
                self._send_left(writer, [(CommitId(*name), rows) for name, rows in prepared])
        return KafkaWriter(self, subtask)

    def _send_left(self, writer: int, prepared: Sequence[tuple[CommitId, bytes]]) -> None:
        transactions = KafkaTransactions(self, prepared[0][0].query, writer)
        try:
            sent = transactions.last_marker()
            for name, rows in prepared:
                if name.version > sent:
                    transactions.send(name.version, _batches(rows))
        finally:
            transactions.close()


class KafkaWriter:
    """One subtask's rows on their way."""

    def __init__(self, sink: KafkaSink, subtask: int) -> None:
        self._sink = sink
        self._subtask = subtask
        self._epoch = int(sink.owner.partition("-")[0] or 0)
        self._held: list[pa.RecordBatch] = []
        self._prepared: list[tuple[CommitId, bytes]] = []
        self._transactions = KafkaTransactions(sink, sink.uid, subtask)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        self._held.append(batch)

    def prepare(self, checkpoint: int) -> bytes:
        """The rows that are to be sent."""
        if self._held:
            held, self._held = self._held, []
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, held[0].schema) as file:
                for batch in held:
                    file.write_batch(batch)
            self._prepared.append((CommitId(self._sink.uid, self._epoch, checkpoint), stream.getvalue().to_pybytes()))
        names = [((name.query, name.epoch, name.checkpoint), rows) for name, rows in self._prepared]
        packed: bytes = msgpack.packb((self._subtask, names))
        return packed

    def commit(self, checkpoint: int) -> None:
        """Send what was prepared up to this checkpoint."""
        while self._prepared and self._prepared[0][0].checkpoint <= checkpoint:
            name, rows = self._prepared[0]
            self._transactions.send(name.version, _batches(rows))
            del self._prepared[0]

    def close(self) -> None:
        """Close the client."""
        self._transactions.close()


class KafkaTransactions:
    """The transactions of one writer, which fence those of its predecessors."""

    def __init__(self, sink: KafkaSink, query: str, writer: int) -> None:
        self._sink = sink
        self._key = f"{query}-{writer}"
        more = {"transactional.id": f"penstock-{self._key}"}
        self._producer = sink.settings.producer(**more)
        self._is_open = False
        self._make_topic()
        self._producer.init_transactions(ASK_SECONDS)

    def last_marker(self) -> int:
        """The number of the newest transaction that was committed; 0: none was."""
        library, newest = kafka_library(), 0
        consumer = self._sink.settings.consumer(**{"enable.partition.eof": True, "isolation.level": "read_committed"})
        try:
            place = library.TopicPartition(self._sink.markers, _PARTITION, library.OFFSET_BEGINNING)
            consumer.assign([place])
            for message in _to_the_end(consumer):
                if message.key() == self._key.encode():
                    newest = max(newest, msgpack.unpackb(message.value())[0])
        finally:
            consumer.close()
        return newest

    def send(self, version: int, batches: Iterator[pa.RecordBatch]) -> None:
        """Send rows and their marker; all are seen, or none."""
        name = f"{self._key}-{version}-{secrets.token_hex(4)}"
        self._producer.begin_transaction()
        self._is_open = True
        headers = [(HEADER, name.encode())] if self._sink.includes_transaction else []
        for batch in batches:
            self._produce(batch, headers)
        self._producer.produce(
            self._sink.markers, msgpack.packb((version, name)), self._key.encode(), partition=_PARTITION
        )
        self._producer.commit_transaction(ASK_SECONDS)
        self._is_open = False

    def close(self) -> None:
        """Give up a transaction that is open, and close the client."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            with suppress(kafka_library().KafkaException):
                self._producer.abort_transaction(1.0)
        self._producer.purge()
        with warnings.catch_warnings():
            if was_open:  # one that was fenced can't give its transaction up, and the client warns of that
                warnings.simplefilter("ignore", RuntimeWarning)
            self._producer.close()

    def _produce(self, batch: pa.RecordBatch, headers: list[tuple[str, bytes]]) -> None:
        """One call of the client for each row: it takes no columns."""
        rows = batch.num_rows
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        none: list[Any] = [None] * rows
        topics = columns.get("topic", none)
        numbers = columns.get("partition", none)
        produce, topic = self._producer.produce, self._sink.topic
        given = columns.get("headers", none)
        for key, value, own, number, more in zip(
            columns.get("key", none), columns["value"], topics, numbers, given, strict=True
        ):
            arguments = {} if number is None else {"partition": number}
            if headers or more:
                arguments["headers"] = [*headers, *((each["key"], each["value"]) for each in more or ())]
            while True:
                try:
                    produce(topic or own, value, key, **arguments)
                    break
                except BufferError:  # the client's queue is full: it empties while we wait
                    self._producer.poll(_QUEUE_FULL_SECONDS)
        self._producer.poll(0)

    def _make_topic(self) -> None:
        """The topic of markers, if it is not there; a broker that makes topics by itself may do that too."""
        from confluent_kafka.admin import AdminClient, NewTopic

        found = self._producer.list_topics(timeout=ASK_SECONDS).topics
        if self._sink.markers in found:
            return
        admin = AdminClient(dict(self._sink.settings.given))
        made = admin.create_topics(
            [NewTopic(self._sink.markers, 1, config={"cleanup.policy": "compact"})], request_timeout=_MAKE_SECONDS
        )
        with suppress(kafka_library().KafkaException):
            made[self._sink.markers].result(_MAKE_SECONDS)


def _to_the_end(consumer: Any) -> Iterator[Any]:
    """The messages that are there; raises OutsideError where the broker gives no end of them."""
    library, until = kafka_library(), time.monotonic() + ASK_SECONDS
    while time.monotonic() < until:
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                yield message
            elif error.code() in (library.KafkaError._PARTITION_EOF, library.KafkaError.UNKNOWN_TOPIC_OR_PART):  # noqa: SLF001
                return
            else:
                raise library.KafkaException(error)
    raise OutsideError(f"kafka: the markers could not be read within {ASK_SECONDS:g} s")


def _batches(rows: bytes) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(rows) as stream:
        yield from stream


def check_columns(schema: pa.Schema, topic: str) -> None:
    """Raise PlanError where rows are no messages."""
    if "value" not in schema.names:
        raise PlanError(
            "kafka: rows need a column value, string or binary: select one, as by CAST(n AS STRING) AS value"
        )
    if not topic and "topic" not in schema.names:
        raise PlanError("kafka: say option('topic', ...), or give rows a column topic")
    for field in schema:
        if field.name not in _COLUMNS:
            raise PlanError(
                f"kafka: column {field.name!r} is no part of a message ({', '.join(_COLUMNS)}): select what is sent"
            )
        wanted = _COLUMNS[field.name]
        fits = field.type == wanted or (wanted == pa.binary() and field.type == pa.string())
        if not fits:
            raise PlanError(f"kafka: column {field.name!r} is {field.type}, and a message has {wanted}: cast it")
