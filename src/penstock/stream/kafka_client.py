# SPDX-License-Identifier: Apache-2.0
"""The client of Kafka, `confluent_kafka`, as source and sink share it: its import, its settings, columns of messages.

The client gives and takes messages as objects. Their fields become columns by loops inside the interpreter (`map`
over a method), not by statements; docs/connectors.md says what that costs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError, PlanError, how_to_install

ASK_SECONDS: Final = 20.0
"""A broker that has not answered a question by then is an error of the world's."""
MARKERS: Final = "penstock-markers"
"""The topic of a sink's markers, where its options name no other one."""
NOT_MEANT: Final = ("__consumer_offsets", "__transaction_state", MARKERS)
"""Topics that no pattern means: those of brokers, which Kafka's listing leaves out for Spark too, and our own."""


def kafka_library() -> Any:
    """The module; raises PenstockError that says how to get it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise PenstockError(
            f"format('kafka') needs the library confluent-kafka: {how_to_install('kafka')}"
        ) from error
    return confluent_kafka


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The client's own settings, such as `bootstrap.servers`, as the user gave them."""

    given: tuple[tuple[str, str], ...]

    @property
    def servers(self) -> str:
        """The brokers to ask first."""
        return dict(self.given)["bootstrap.servers"]

    @property
    def sorted_servers(self) -> str:
        """The same brokers, in one form of several."""
        return ",".join(sorted(self.servers.replace(" ", "").split(",")))

    def consumer(self, **more: object) -> Any:
        """A consumer that commits nothing by itself; it sees what was committed, unless told otherwise."""
        own: dict[str, object] = {
            "group.id": f"penstock-{secrets.token_hex(8)}",
            "isolation.level": "read_committed",
            **dict(self.given),
            **more,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
        }
        return kafka_library().Consumer(own)

    def producer(self, **more: object) -> Any:
        """A producer."""
        return kafka_library().Producer({"linger.ms": 20, **dict(self.given), **more})


@contextmanager
def closing_client(client: Any) -> Iterator[Any]:
    """A block at whose end a client is closed."""
    try:
        yield client
    finally:
        client.close()


def partitions_of(client: Any, topics: Sequence[str], pattern: str = "") -> list[tuple[str, int]]:
    """The partitions of these topics, or of all whose names match; raises PlanError for a topic that is not there."""
    import re

    found = client.list_topics(timeout=ASK_SECONDS).topics
    if pattern:
        topics = [name for name in found if name not in NOT_MEANT and re.fullmatch(pattern, name)]
    for topic in topics:
        if topic not in found or found[topic].error is not None:
            raise PlanError(f"kafka: there is no topic {topic!r}: create it, or say another name")
    return sorted((topic, number) for topic in topics for number in found[topic].partitions)


def binary_column(values: list[bytes | None]) -> pa.Array:
    """A column of bytes, some of which may be missing."""
    missing = None
    if None in values:
        missing = np.fromiter((value is not None for value in values), np.bool_, len(values))
        values = [value or b"" for value in values]
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])  # type: ignore[arg-type]
    if ends[-1] > np.iinfo(np.int32).max:
        raise PlanError("kafka: messages of one batch have more than 2 GiB: set kafka.fetch.max.bytes")
    validity = None if missing is None else pa.py_buffer(np.packbits(missing, bitorder="little"))
    data = pa.py_buffer(b"".join(values))  # type: ignore[arg-type]
    return pa.Array.from_buffers(pa.binary(), len(values), [validity, pa.py_buffer(ends.astype(np.int32)), data])


def number_column(method: Callable[[Any], int], messages: list[Any], kind: pa.DataType) -> pa.Array:
    """A column of numbers that a method of each message gives."""
    numbers = np.fromiter(map(method, messages), kind.to_pandas_dtype(), len(messages))
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
