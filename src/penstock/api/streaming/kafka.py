# SPDX-License-Identifier: Apache-2.0
"""`format("kafka")` of `readStream` and `writeStream`: the options, in Spark's words as far as they mean the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa

from penstock.api.streaming.options import QUERY_OPTIONS, Options
from penstock.errors import PlanError, SettingError
from penstock.stream.kafka_client import MARKERS, KafkaSettings, kafka_library
from penstock.stream.kafka_offsets import EARLIEST, LATEST, KafkaStart
from penstock.stream.kafka_sink import KafkaSink, check_columns
from penstock.stream.kafka_source import KafkaSource
from penstock.stream.outside import outside

BATCH = "readKafka"
_PREFIX = "kafka."
_READING = (
    "subscribe",
    "subscribePattern",
    "startingOffsetsByTimestampStrategy",
    "includeHeaders",
    "failOnDataLoss",
    "numPartitions",
)
_UNBOUNDED = ("partitionDiscoveryInterval",)
_SERVERS = "bootstrap.servers"
_OURS = {
    "enable.auto.commit": "positions are in the checkpoint",
    "enable.auto.offset.store": "positions are in the checkpoint",
    "auto.offset.reset": "say startingOffsets; messages that are gone are an error",
    "transactional.id": "each writer has its own, so that its successor can fence it",
}


def kafka_source(options: Options, owner: str = "readStream") -> KafkaSource:
    """The messages of topics."""
    settings = _settings(options, owner)
    known = _places("ending") if owner == BATCH else _UNBOUNDED
    own = [f"{_PREFIX}{name}" for name, _ in settings.given]
    options.refuse_others("kafka", (*_READING, *_places("starting"), *known, *own))
    topics, pattern = options.text("subscribe"), options.text("subscribePattern")
    if (topics is None) == (pattern is None):
        raise PlanError(f"{owner}: kafka takes one of subscribe (topics) and subscribePattern (a regular expression)")
    strategy = options.value("startingOffsetsByTimestampStrategy", _strategy, "error")
    start = _place(options, "starting", EARLIEST if owner == BATCH else LATEST)
    return KafkaSource(
        settings,
        tuple(name.strip() for name in (topics or "").split(",") if name.strip()),
        pattern or "",
        replace(start, latest_else=strategy == LATEST),
        options.flag("includeHeaders", default=False),
        options.value("partitionDiscoveryInterval", _seconds, 30.0),
        fails_on_loss=options.flag("failOnDataLoss", default=True),
    )


def kafka_batch(options: Options) -> KafkaSource:
    """The messages of topics that are there, up to the options' end."""
    source = kafka_source(options, BATCH)
    with outside(f"{source.name} can't be asked for offsets"):
        return source.bounded(replace(_place(options, "ending", LATEST), latest_else=True))


def kafka_sink(options: Options, schema: pa.Schema, uid: str) -> KafkaSink:
    """Rows as messages; `uid` is the query's."""
    settings = _settings(options, "writeStream")
    options.refuse_others(
        "kafka",
        (
            "topic",
            "markerTopic",
            "includeTransaction",
            *(f"{_PREFIX}{name}" for name, _ in settings.given),
            *QUERY_OPTIONS,
        ),
    )
    topic = options.text("topic") or ""
    check_columns(schema, topic)
    includes = options.flag("includeTransaction", default=False)
    return KafkaSink(settings, uid, topic, options.text("markerTopic") or MARKERS, includes)


def _settings(options: Options, owner: str) -> KafkaSettings:
    """The options that are the client's: those that begin with `kafka.`, as in Spark."""
    kafka_library()
    given = {key[len(_PREFIX) :]: text for key, text in options.given().items() if key.lower().startswith(_PREFIX)}
    if not given.get(_SERVERS):
        raise PlanError(f"{owner}: kafka needs option('{_PREFIX}{_SERVERS}', 'host:9092')")
    for name, why in _OURS.items():
        if name in given:
            raise SettingError(f"{owner}: {_PREFIX}{name} is not yours to set: {why}")
    return KafkaSettings(tuple(given.items()))


def _places(which: str) -> tuple[str, str, str]:
    return f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"


def _place(options: Options, which: str, word: str) -> KafkaStart:
    """The place that options name; as in Spark one time of all counts before times of each, these before offsets."""
    offsets, time, times = _places(which)
    if (millis := options.value(time, int, None)) is not None:
        return KafkaStart(time=millis)
    if options.text(times) is not None:
        return KafkaStart(times=options.value(times, _of_partitions, {}), option=times)
    return replace(options.value(offsets, _offsets, KafkaStart(word)), option=offsets)


def _offsets(text: str) -> KafkaStart:
    if text.lower() in (EARLIEST, LATEST):
        return KafkaStart(text.lower())
    offsets = _of_partitions(text)
    if min(offsets.values()) < -2:
        raise ValueError("it names all partitions, each with an offset, -2 (earliest) or -1 (latest)")
    return KafkaStart(offsets=offsets)


def _of_partitions(text: str) -> dict[tuple[str, int], int]:
    try:
        found = json.loads(text)
        numbers = {(topic, int(number)): int(at) for topic, each in found.items() for number, at in each.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            'it is earliest, latest, or JSON with all partitions, such as {"topic": {"0": 23, "1": -2}}'
        ) from error
    if not numbers:
        raise ValueError("it names all partitions, each with a number")
    return numbers


def _strategy(text: str) -> str:
    if text.lower() not in ("error", LATEST):
        raise ValueError("it is error or latest")
    return text.lower()


def _seconds(text: str) -> float:
    from penstock.operators.intervals import microseconds

    return microseconds(text, "partitionDiscoveryInterval") / 1e6
