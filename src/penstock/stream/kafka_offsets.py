# SPDX-License-Identifier: Apache-2.0
"""The offsets of Kafka's partitions: what a broker has of each, and where a query begins.

A position that a partition does not have is refused by name, whether a checkpoint, a first position or the user's
`startingOffsets` says it. One beyond the end is of a topic that was made anew, and messages in front of the first one
are gone: a reader that went on elsewhere would pass messages over without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    """A place in each partition: `earliest`, `latest`, an offset or a time of each, or one time of all.

    Offsets -2 and -1 are these words. Times are milliseconds since 1970, and mean the first message that is not
    older. Where there is none, `latest_else` says whether that is an error or means the end.
    """

    word: str = LATEST
    offsets: Mapping[Partition, int] = field(default_factory=dict)
    times: Mapping[Partition, int] = field(default_factory=dict)
    time: int | None = None
    latest_else: bool = False
    option: str = "startingOffsets"
    """The option that said so."""

    def at(self, consumer: Any, partition: Partition) -> int:
        """The offset in a partition, as the broker has it now; raises PlanError for a partition that was left out."""
        topic, number = partition
        named = self.times or self.offsets
        if named and partition not in named:
            raise PlanError(
                f"kafka: {self.option} says nothing of partition {number} of {topic}: it names all partitions"
            )
        millis = self.times[partition] if self.times else self.time
        if millis is not None:
            return self._since(consumer, partition, millis)
        offset = self.offsets[partition] if self.offsets else -2 if self.word == EARLIEST else -1
        if offset >= 0:
            return offset
        first, end = bounds(consumer, partition)
        return first if offset == -2 else end

    def refuse_others(self, found: Collection[Partition]) -> None:
        """Raise PlanError where a partition is named that is not among these, as of a topic with a typo."""
        others = sorted({*self.times, *self.offsets}.difference(found))
        if others:
            topic, number = others[0]
            raise PlanError(
                f"kafka: {self.option} names partition {number} of {topic}, which is not read: there is none, or its"
                " topic is not among those of the query"
            )

    def _since(self, consumer: Any, partition: Partition, millis: int) -> int:
        topic, number = partition
        (found,) = consumer.offsets_for_times([kafka_library().TopicPartition(topic, number, millis)], ASK_SECONDS)
        if found.error is not None:
            raise kafka_library().KafkaException(found.error)
        if found.offset >= 0:
            return int(found.offset)
        if not self.latest_else:
            raise PlanError(
                f"kafka: partition {number} of {topic} has no message of {millis} ms since 1970 or later: say an"
                " earlier time, or startingOffsetsByTimestampStrategy=latest, which begins at its end then"
            )
        return bounds(consumer, partition)[1]


def bounds(consumer: Any, partition: Partition) -> tuple[int, int]:
    """The offset of a partition's first message, and the one after its last that this client may see."""
    first, end = consumer.get_watermark_offsets(kafka_library().TopicPartition(*partition), timeout=ASK_SECONDS)
    return first, end


def is_beyond(settings: KafkaSettings, partition: Partition, offset: int, end: int) -> bool:
    """Tell whether an offset is beyond the end of a partition; `end` is that of committed messages."""
    if offset <= end:
        return False
    with closing_client(settings.consumer(**{"isolation.level": "read_uncommitted"})) as consumer:
        return offset > bounds(consumer, partition)[1]  # transactions may be open in front of it


def refuse_beyond(settings: KafkaSettings, partition: Partition, offset: int, end: int) -> None:
    """Raise PlanError for an offset beyond the end of a partition; `end` is that of committed messages."""
    if is_beyond(settings, partition, offset, end):
        topic, number = partition
        raise PlanError(
            f"kafka: partition {number} of {topic} is to be read from offset {offset} on, and it ends at {end}: was"
            " the topic recreated? Start over with another checkpointLocation, say startingOffsets that it has, or"
            " failOnDataLoss=false, which goes on at the first message that there is"
        )


def gone(partition: Partition, offset: int | None) -> PlanError:
    """The error for messages that are not there any more."""
    topic, number = partition
    return PlanError(
        f"kafka: partition {number} of {topic} is to be read from offset {offset} on, and has no such message: it"
        " keeps them for less time than the query needs, or the topic was recreated. Start over with another"
        " checkpointLocation, say startingOffsets that it has, or failOnDataLoss=false, which goes on at the first"
        " message that there is"
    )
