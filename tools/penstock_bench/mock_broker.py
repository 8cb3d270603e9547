# SPDX-License-Identifier: Apache-2.0
"""librdkafka's mock cluster: one broker, whose topics are made by asking for them; each has four partitions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def mock_broker(topics: Sequence[str]) -> Iterator[str]:
    """One in this process; gives its address."""
    import confluent_kafka as kafka

    owner = kafka.Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    for topic in topics:
        owner.list_topics(topic, timeout=10)
    try:
        yield f"{broker.host}:{broker.port}"
    finally:
        owner.close()


@contextmanager
def broker_process(topics: Sequence[str]) -> Iterator[str]:
    """One in a process of its own; gives its address."""
    command = [sys.executable, "-m", __name__, *topics]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()  # type: ignore[union-attr]
    finally:
        process.communicate()


def main(topics: Sequence[str]) -> int:
    """Be that process, until standard input ends."""
    with mock_broker(topics) as servers:
        sys.stdout.write(servers + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
