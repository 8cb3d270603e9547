# SPDX-License-Identifier: Apache-2.0
"""librdkafka's mock cluster in this process: one broker, and what lies in its topics.

It knows transactions, and isolates nothing: rows count whose transaction has a marker. Topics are made by asking for
them, and by no admin's word; each has four partitions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import msgpack

from penstock.stream.kafka_client import MARKERS, KafkaSettings
from penstock.stream.kafka_sink import HEADER
from penstock_bench.mock_broker import mock_broker

PARTITIONS = 4
_STILL_SECONDS = 10.0
_READERS = 6


@contextmanager
def mock_cluster(topics: Sequence[str] = ("in",)) -> Iterator[KafkaSettings]:
    """A cluster with these topics, and that of markers."""
    with mock_broker((*topics, MARKERS)) as servers:
        yield KafkaSettings((("bootstrap.servers", servers), ("fetch.wait.max.ms", "10"), ("log_level", "0")))


def put(settings: KafkaSettings, topic: str, values: range, partitions: int = PARTITIONS) -> None:
    """Numbers as texts, each into the partition that it says, with itself as the key."""
    producer = settings.producer()
    for value in values:
        producer.produce(topic, str(value), str(value), partition=value % partitions)
    producer.flush(30)
    producer.close()


def messages(settings: KafkaSettings, topic: str) -> list[Any]:
    """All messages of a topic that a reader of what is committed sees; AssertionError where none gets to the end.

    The mock cluster leaves a reader without the end of a partition now and then: then another one begins anew.
    """
    for _ in range(_READERS):
        if (found := _read(settings, topic)) is not None:
            return found
    raise AssertionError(f"{_READERS} readers of {topic} have waited for {_STILL_SECONDS:.0f} s each")


def _read(settings: KafkaSettings, topic: str) -> list[Any] | None:
    """The messages up to the ends of all partitions; None where nothing comes any more before them."""
    consumer = settings.consumer(**{"enable.partition.eof": True})
    try:
        left = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        # Nothing is removed, and the broker of the extra names a wrong offset as its earliest now and then.
        consumer.assign([kafka.TopicPartition(topic, number, 0) for number in left])
        found: list[Any] = []
        until = time.monotonic() + _STILL_SECONDS
        while left and time.monotonic() < until:
            for message in consumer.consume(1000, 0.1):
                until = time.monotonic() + _STILL_SECONDS
                if (error := message.error()) is None:
                    found.append(message)
                elif error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - it has no other name
                    left.discard(message.partition())
        return None if left else found
    finally:
        consumer.close()


def marked_messages(settings: KafkaSettings, topic: str) -> list[Any]:
    """Those whose transaction has a marker: also a broker that isolates nothing can be asked so."""
    markers = {msgpack.unpackb(message.value())[1] for message in messages(settings, MARKERS)}
    return [message for message in messages(settings, topic) if dict(message.headers())[HEADER].decode() in markers]


def marked(settings: KafkaSettings, topic: str) -> list[bytes]:
    """The values whose transaction has a marker."""
    return [message.value() for message in marked_messages(settings, topic)]


_clusters: dict[Path, tuple[ExitStack, KafkaSettings]] = {}


def cluster_at(root: Path, topics: Sequence[str]) -> KafkaSettings:
    """That of a folder, made by who asks first."""
    if root not in _clusters:
        stack = ExitStack()
        _clusters[root] = stack, stack.enter_context(mock_cluster(topics))
    return _clusters[root][1]


def close_cluster(root: Path) -> None:
    """End that of a folder, if it has one."""
    if root in _clusters:
        stack, _ = _clusters.pop(root)
        stack.close()
