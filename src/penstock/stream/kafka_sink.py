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

A row that is no message or too large is refused ahead of its checkpoint, and one that the brokers refuse for good as
it is sent (`kafka_refusals`).

Limits: an epoch's rows must fit memory and a transaction of `transaction.timeout.ms`; the task stands while it sends.
"""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import msgpack
import pyarrow as pa

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import OutsideError, PlanError
from penstock.stream.commit_sink import CommitId, refuse_other_target
from penstock.stream.kafka_client import ASK_SECONDS, MARKERS, KafkaSettings, kafka_library
from penstock.stream.kafka_refusals import Deliveries, refuse_no_messages, refuse_too_large
from penstock.stream.outside import outside

HEADER = "penstock-transaction"
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

    @property
    def target(self) -> str:
        """The place within the cluster that is written to; a checkpoint's rows are for it, as are their markers."""
        topic = f"topic {self.topic}" if self.topic else "the topics that rows name"
        return f"{topic} with markers in {self.markers}"

    def check(self, restored: Sequence[bytes]) -> None:
        """Raise PlanError where these rows are for another place.

        Clusters are told apart by their ids; by the servers that are asked first where they have none.
        """
        cluster = ""
        for state in map(msgpack.unpackb, restored):
            refuse_other_target([state["target"]], self.target)
            with outside(f"{self.name} can't be asked for its cluster"):
                cluster = cluster or _cluster(self.settings)
            has_ids = bool(cluster and state["cluster"])
            then, now = (state["cluster"], cluster) if has_ids else (state["servers"], self.settings.sorted_servers)
            refuse_other_target([f"{self.target} at {then}"], f"{self.target} at {now}")

    def is_elsewhere(self, restored: Sequence[bytes]) -> bool:
        """Tell if these rows are for other topics."""
        return any(msgpack.unpackb(state)["target"] != self.target for state in restored)

    def check_anew(self) -> None:
        """Raise CheckpointError if this query has sent rows, which it does only after a checkpoint."""
        with outside(f"{self.name} can't be asked for markers"):
            queries = (key.rpartition(b"-")[0] for key, _ in _markers(self))
            has_sent = _is_there(self) and self.uid.encode() in queries
        if has_sent:
            raise CheckpointError(
                f"the checkpointLocation is empty, and {self.target} has markers of this query: is the location away?"
                " Bring it back. To start over, which writes all rows again, give another checkpointLocation"
            )

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> KafkaWriter:
        """Send what was prepared and not sent, and begin."""
        own = [
            (state["writer"], [(CommitId(*name), rows) for name, rows in state["prepared"]])
            for state in map(msgpack.unpackb, restored)
            if state["prepared"] and state["writer"] % parallelism == subtask
        ]
        with ExitStack() as stack:
            # All predecessors are fenced before markers are read: an open transaction of one hides markers of others.
            fenced = [
                (stack.enter_context(closing(KafkaTransactions(self, rows[0][0].query, writer))), rows)
                for writer, rows in own
            ]
            for transactions, prepared in fenced:
                transactions.send_left(prepared)
        return KafkaWriter(self, subtask)


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
        """Take rows; raises PlanError for one that is no message, or too large to be sent."""
        refuse_no_messages(batch, self._sink.topic, self._sink.name)
        refuse_too_large(batch, self._sink.settings, self._sink.name, self._transactions.added)
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
        packed: bytes = msgpack.packb(
            {
                "target": self._sink.target,
                "cluster": self._transactions.cluster,
                "servers": self._sink.settings.sorted_servers,
                "writer": self._subtask,
                "prepared": names,
            }
        )
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
        self._deliveries = Deliveries(sink.name)
        more = {
            "transactional.id": f"penstock-{self._key}",
            "delivery.report.only.error": True,
            "on_delivery": self._deliveries.failed,  # one for each message makes sending a third dearer
        }
        self._producer = sink.settings.producer(**more)
        self._is_open = False
        self.cluster = ""
        """The cluster's id, if it has one."""
        self._make_topic()
        self._producer.init_transactions(ASK_SECONDS)

    def last_marker(self) -> int:
        """The number of the newest transaction that was committed; 0: none was."""
        own = (value for key, value in _markers(self._sink) if key == self._key.encode())
        return max((msgpack.unpackb(value)[0] for value in own), default=0)

    def send_left(self, prepared: Sequence[tuple[CommitId, bytes]]) -> None:
        """Send what no marker covers."""
        sent = self.last_marker()
        for name, rows in prepared:
            if name.version > sent:
                self.send(name.version, _batches(rows))

    def send(self, version: int, batches: Iterator[pa.RecordBatch]) -> None:
        """Send rows and their marker; all are seen, or none."""
        name = f"{self._key}-{version}-{secrets.token_hex(4)}"
        self._producer.begin_transaction()
        self._is_open = True
        headers = [(HEADER, name.encode())] if self._sink.includes_transaction else []
        try:
            for batch in batches:
                self._produce(batch, headers)
            with suppress(SystemError):  # the client's fault at a fatal error, of which the commit tells
                self._producer.flush(ASK_SECONDS)
            # Ahead of the marker: who reads what is not committed sees none of rows that failed.
            self._deliveries.refuse()
            marker = msgpack.packb((version, name))
            self._producer.produce(self._sink.markers, marker, self._key.encode(), partition=_PARTITION)
            self._producer.commit_transaction(ASK_SECONDS)
        except kafka_library().KafkaException:
            self._deliveries.refuse()
            raise
        self._is_open = False

    @property
    def added(self) -> int:
        """The bytes that each row gets besides its own."""
        return len(HEADER) + len(self._key) if self._sink.includes_transaction else 0

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
            with suppress(kafka_library().KafkaException):  # it tells again that it was fenced, and is closed
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
                except kafka_library().KafkaException as error:
                    self._deliveries.refuse_one(error.args[0], topic or own, key, value)
                    raise
                except BufferError:  # the client's queue is full: it empties while we wait
                    self._producer.poll(_QUEUE_FULL_SECONDS)
        self._producer.poll(0)

    def _make_topic(self) -> None:
        """The topic of markers, if it is not there; a broker that makes topics by itself may do that too."""
        from confluent_kafka.admin import AdminClient, NewTopic

        found = self._producer.list_topics(timeout=ASK_SECONDS)
        self.cluster = found.cluster_id or ""
        if self._sink.markers in found.topics:
            return
        admin = AdminClient(dict(self._sink.settings.given))
        made = admin.create_topics(
            [NewTopic(self._sink.markers, 1, config={"cleanup.policy": "compact"})], request_timeout=_MAKE_SECONDS
        )
        library = kafka_library()
        try:
            made[self._sink.markers].result(_MAKE_SECONDS)
        except library.KafkaException as error:
            if error.args[0].code() != library.KafkaError.TOPIC_ALREADY_EXISTS:
                self._producer.list_topics(self._sink.markers, timeout=ASK_SECONDS)


def _cluster(settings: KafkaSettings) -> str:
    """The cluster's id, if it has one."""
    consumer = settings.consumer()
    try:
        return consumer.list_topics(timeout=ASK_SECONDS).cluster_id or ""
    finally:
        consumer.close()


def _is_there(sink: KafkaSink) -> bool:
    """Tell whether there is a topic of markers."""
    consumer = sink.settings.consumer()
    try:
        return sink.markers in consumer.list_topics(timeout=ASK_SECONDS).topics
    finally:
        consumer.close()


def _markers(sink: KafkaSink) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the markers whose transactions were committed.

    A reader of what is committed comes to an end in front of the first transaction that is open, though others
    behind it are committed. So the end is the partition's own: a writer that has died is waited for until its
    successor has fenced it, or the broker has given its transaction up.
    """
    place = kafka_library().TopicPartition(sink.markers, _PARTITION, kafka_library().OFFSET_BEGINNING)
    with closing(sink.settings.consumer(**{"isolation.level": "read_uncommitted"})) as consumer:
        _, end = consumer.get_watermark_offsets(place, timeout=ASK_SECONDS)
    with closing(
        sink.settings.consumer(**{"enable.partition.eof": True, "isolation.level": "read_committed"})
    ) as consumer:
        consumer.assign([place])
        for message in _up_to(end, consumer):
            yield message.key() or b"", message.value() or b""


def _up_to(end: int, consumer: Any) -> Iterator[Any]:
    """The messages in front of an offset; raises OutsideError where the broker does not give all of them."""
    library, until = kafka_library(), time.monotonic() + ASK_SECONDS
    while time.monotonic() < until:
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                yield message
            elif error.code() == library.KafkaError._PARTITION_EOF:  # noqa: SLF001
                if message.offset() >= end:
                    return
            elif error.code() == library.KafkaError.UNKNOWN_TOPIC_OR_PART:  # a broker may not know it yet
                raise OutsideError("kafka: the topic of markers is not there, so nobody knows what was sent")
            else:
                raise library.KafkaException(error)
    raise OutsideError(
        f"kafka: the markers could not be read within {ASK_SECONDS:g} s: a transaction of another writer may be open"
    )


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
