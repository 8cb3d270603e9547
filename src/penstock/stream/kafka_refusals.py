# SPDX-License-Identifier: Apache-2.0
"""The messages that Kafka takes at no time, and their place among a query's rows.

A row that the client does not take (without a topic, too large) is refused as it comes, ahead of the checkpoint that
would hold it: a program that leaves such rows out goes on from the checkpoint before. All else the brokers say when
rows are sent, which is after their checkpoint: the next run sends the same rows, when the topic, its settings or the
rights are mended.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PlanError
from penstock.operators.group_merges import boolean_array
from penstock.stream.kafka_client import KafkaSettings, kafka_library
from penstock.stream.permanent_errors import is_permanent

_LIMIT: Final = "message.max.bytes"
_CLIENTS_LIMIT: Final = 1_000_000
_OVERHEAD: Final = 36
"""The client's own bytes of a message, at the least, which count for its limit."""
_SHOWN: Final = 40
_NOT_THERE: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
"""A producer tells of these after it has looked for them for long."""


class Deliveries:
    """The messages of one writer that were not taken: the first of them, as the client tells of it."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._first: tuple[Any, Any] | None = None

    def failed(self, error: Any, message: Any) -> None:
        """The client's callback: with `delivery.report.only.error` it is called for these alone."""
        if error is not None and self._first is None:
            self._first = error, message

    def refuse(self) -> None:
        """Raise PlanError where a message was refused for good."""
        if self._first is not None:
            error, message = self._first
            self.refuse_one(error, message.topic(), message.key(), message.value())

    def refuse_one(self, error: Any, topic: str, key: Any, value: Any) -> None:
        """Raise PlanError where this is an error for good of one message."""
        if not (is_permanent(kafka_library().KafkaException(error)) or error.name() in _NOT_THERE):
            return
        raise PlanError(
            f"{self._sink}: the row with {_shown(key)} for topic {topic} ({len(value or b''):,} bytes) is taken at no"
            f" time: {error.str()}: {_remedy(error.name())}"
        )


def refuse_no_messages(batch: pa.RecordBatch, topic: str, sink: str) -> None:
    """Raise PlanError for a row that no client takes; `topic` is that of all rows, if there is one."""
    names, faults = batch.schema.names, {}
    if not topic:
        faults["no topic"] = pc.fill_null(pc.equal(batch.column("topic"), ""), fill_value=True)
    if "partition" in names:
        faults["a negative partition"] = pc.fill_null(pc.less(batch.column("partition"), 0), fill_value=False)
    if "headers" in names:
        faults["a header without a key"] = _has_bare_header(batch.column("headers"))
    for fault, mask in faults.items():
        if pc.any(mask).as_py():
            row = batch.filter(mask).slice(0, 1).to_pylist()[0]
            raise PlanError(
                f"{sink}: the row with {_shown(row.get('key'))} has {fault}, so it is no message: leave such rows"
                " out; the query goes on from its checkpoint"
            )


def _has_bare_header(column: pa.Array) -> pa.Array:
    """True for each row one of whose headers is null, or has no key."""
    pairs = pc.list_flatten(column)
    is_bare = pc.or_(pairs.is_null(), pairs.field("key").is_null())
    lengths = _numbers(pc.fill_null(pc.list_value_length(column), 0))
    rows = np.repeat(np.arange(len(column)), lengths)[np.flatnonzero(_numbers(is_bare))]
    return boolean_array(np.isin(np.arange(len(column)), rows))


def refuse_too_large(batch: pa.RecordBatch, settings: KafkaSettings, sink: str, more: int) -> None:
    """Raise PlanError for a row that is larger than the client's limit; each gets so many bytes `more` when sent."""
    limit = int(dict(settings.given).get(_LIMIT, _CLIENTS_LIMIT))
    if batch.nbytes + more + _OVERHEAD <= limit:  # whatever its rows are
        return
    sizes = np.full(batch.num_rows, more + _OVERHEAD, np.int64)
    for name in ("key", "value"):
        if name in batch.schema.names:
            sizes += _bytes_of(batch.column(name))
    if "headers" in batch.schema.names:
        sizes += _header_bytes(batch.column("headers"))
    largest = int(np.argmax(sizes))
    if sizes[largest] <= limit:
        return
    row = batch.slice(largest, 1).to_pylist()[0]
    raise PlanError(
        f"{sink}: the row with {_shown(row.get('key'))} is a message of {int(sizes[largest]):,} bytes, and the client"
        f" sends none that is larger than kafka.{_LIMIT}={limit:,}: leave such rows out, make them smaller, or set"
        " that and the topic's max.message.bytes; the query goes on from its checkpoint"
    )


def _bytes_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes of each value; 0 for a null."""
    valid = np.frombuffer(column.is_valid().cast(pa.int8()).buffers()[1], np.int8, len(column))
    lengths: npt.NDArray[np.int64] = np.where(valid == 1, _numbers(pc.binary_length(column)), 0)
    return lengths


def _header_bytes(column: pa.Array) -> npt.NDArray[np.int64]:
    pairs = pc.list_flatten(column)
    if not len(pairs):
        return np.zeros(len(column), np.int64)
    sizes = _bytes_of(pairs.field("key")) + _bytes_of(pairs.field("value"))
    return np.bincount(_numbers(pc.list_parent_indices(column)), sizes, len(column)).astype(np.int64)


def _numbers(found: pa.Array) -> npt.NDArray[np.int64]:
    wide = found.cast(pa.int64())
    return np.frombuffer(wide.buffers()[1], np.int64, len(wide), wide.offset * 8)


def _shown(key: bytes | str | None) -> str:
    text = repr(key)
    return "no key" if key is None else f"key {text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}"


def _remedy(name: str) -> str:
    """The way to mend an error of this name."""
    if "SIZE" in name or "LARGE" in name:
        return "raise the topic's max.message.bytes (the brokers' message.max.bytes), and start the query again"
    if name in _NOT_THERE:
        return "make the topic, or the partition, and start the query again"
    if "AUTH" in name or "SASL" in name:
        return "give the query's user the right to it, and start the query again"
    return "mend that, and start the query again: it sends the rows of its checkpoint"
