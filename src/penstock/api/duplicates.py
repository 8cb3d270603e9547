# SPDX-License-Identifier: Apache-2.0
"""`distinct`, `dropDuplicates` and `dropDuplicatesWithinWatermark`: an exchange by what must be equal.

Of a bounded stream any row of each combination stays, of a stream without an end the first that comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.lineage import ExchangeChoice
from penstock.api.schemas import column_arguments
from penstock.api.streaming.refusals import is_streaming
from penstock.api.watermark_columns import event_times
from penstock.errors import PlanError
from penstock.operators.aggregates import Aggregation
from penstock.operators.exchanges import exchange, hash_exchange
from penstock.operators.keys import refuse_ungroupable

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.stream import Stream


def without_duplicates(stream: Stream, subset: Sequence[str] | str | None, verb: str) -> Stream:
    """One row for each combination of these columns' values, by default of all columns."""
    keys = _keys(stream, subset, verb)
    if is_streaming(stream.branches):
        times = event_times(stream.branches)
        found = [name for name in times.delays if times.has(name) and name in keys]
        return _first_rows(stream, keys, found[0] if found else "", 0)
    if not keys:  # by nothing all rows are equal, as in Spark
        return stream.limit(1)
    firsts = [Aggregation(name, name, "first") for name in stream.columns if name not in keys]
    reduced: Stream = _keyed(stream, keys).reduced(firsts)
    return reduced if reduced.columns == stream.columns else reduced.select(*stream.columns)


def within_watermark(stream: Stream, subset: Sequence[str] | str | None) -> Stream:
    """The first row of each combination; a key is forgotten when the watermark is behind it by its delay."""
    verb = "dropDuplicatesWithinWatermark"
    keys = _keys(stream, subset, verb)
    if not is_streaming(stream.branches):
        raise PlanError(f"{verb} is for streams of penstock.readStream, as in Spark: write dropDuplicates")
    times = event_times(stream.branches)
    if not times.is_everywhere or not times.delays:
        gone = f"; the column of {', '.join(times.watermarks)} is not here any more" if times.is_everywhere else ""
        raise PlanError(
            f"{verb} needs a watermark, which says how long duplicates may be apart{gone}: write "
            "withWatermark(column, delay) ahead of it, on each stream ahead of a union"
        )
    (time, delay), *_ = times.delays.items()
    return _first_rows(stream, keys, time, delay)


def _keys(stream: Stream, subset: Sequence[str] | str | None, verb: str) -> tuple[str, ...]:
    if subset is None:
        return tuple(stream.columns)
    names = [subset] if isinstance(subset, str) else list(subset)
    return column_arguments(tuple(names), stream.schema, verb) if names else ()


def _first_rows(stream: Stream, keys: tuple[str, ...], time: str, keeps: int) -> Stream:
    from penstock.stream.duplicates import DropDuplicates

    schema: pa.Schema = stream.schema
    refuse_ungroupable(schema, keys)
    return _keyed(stream, keys).applied(DropDuplicates(schema, keys, time, keeps), schema)


def _keyed(stream: Stream, keys: tuple[str, ...]) -> KeyedStream:
    """The stream by these columns, windows among them too: they are refused as any struct is."""
    from penstock.api.keyed_stream import KeyedStream

    spec = hash_exchange(stream.schema, keys) if keys else exchange("to_one")
    return KeyedStream(stream, keys, spec, ExchangeChoice(None if keys else 1))
