# SPDX-License-Identifier: Apache-2.0
"""The offsets of Kafka's partitions: what a broker has of each, and where a query begins.

A position that a partition does not have is refused by name, whether a checkpoint, a first position or somebody's
`startingOffsets` says it. One beyond the end is of a topic that was made anew, and messages in front of the first one
are gone: a reader that went on elsewhere would pass messages over without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import PlanError
from penstock.stream.kafka_client import ASK_SECONDS, KafkaSettings, closing_client, kafka_library

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Partition = tuple[str, int]
"""A topic and a number."""


@dataclass(frozen=True, slots=True)
class KafkaStart:
    """The place where a query begins: `earliest`, `latest`, or an offset for each partition (-2, -1: these)."""

    word: str = LATEST
    offsets: Mapping[Partition, int] = field(default_factory=dict)

    def of(self, partition: Partition) -> int:
        """An offset, or the client's word for one; raises PlanError for a partition that was left out."""
        if not self.offsets:
            return -2 if self.word == EARLIEST else -1
        if partition not in self.offsets:
            topic, number = partition
            raise PlanError(
                f"kafka: startingOffsets says nothing of partition {number} of {topic}: it names all, -2 is earliest"
            )
        return self.offsets[partition]


def bounds(consumer: Any, partition: Partition) -> tuple[int, int]:
    """The offset of a partition's first message, and the one after its last that this client may see."""
    first, end = consumer.get_watermark_offsets(kafka_library().TopicPartition(*partition), timeout=ASK_SECONDS)
    return first, end


def resolved(consumer: Any, partition: Partition, offset: int) -> int:
    """An offset that is one, for `KafkaStart`'s words too."""
    if offset >= 0:
        return offset
    first, end = bounds(consumer, partition)
    return first if offset == -2 else end


def refuse_beyond(settings: KafkaSettings, partition: Partition, offset: int, end: int) -> None:
    """Raise PlanError for an offset beyond the end of a partition, as a reader of committed messages sees that."""
    if offset <= end:
        return
    with closing_client(settings.consumer(**{"isolation.level": "read_uncommitted"})) as consumer:
        end = bounds(consumer, partition)[1]  # transactions may be open in front of it
    if offset > end:
        topic, number = partition
        raise PlanError(
            f"kafka: partition {number} of {topic} is to be read from offset {offset} on, and it ends at {end}: was"
            " the topic made anew? Begin anew with another checkpointLocation, or say startingOffsets that it has"
        )


def gone(partition: Partition, offset: int | None) -> PlanError:
    """The error for messages that are not there any more."""
    topic, number = partition
    return PlanError(
        f"kafka: partition {number} of {topic} is to be read from offset {offset} on, and has no such message: it"
        " keeps them for less time than the query needs, or the topic was made anew. Begin anew with another"
        " checkpointLocation, or say startingOffsets that it has"
    )
