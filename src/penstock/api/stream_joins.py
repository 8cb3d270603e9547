# SPDX-License-Identifier: Apache-2.0
"""Joins of streams without an end: with each other, and with a table that does not change.

Two streams meet in one exchange: rows of both sides have one schema on the way, and a column says whose each is. A
table is read when the stream is built, and goes to the tasks with their plan: so it is for tables that are small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.lineage import ExchangeChoice
from penstock.api.streaming.refusals import is_streaming
from penstock.api.watermark_columns import event_times
from penstock.errors import PlanError
from penstock.operators.exchanges import hash_exchange
from penstock.operators.groups import Side
from penstock.operators.intervals import microseconds
from penstock.operators.join_sides import LEFT, RIGHT, AsSide, JoinedSides
from penstock.operators.times import time_of_window

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.stream import Stream

MOST_TABLE_BYTES = 64 << 20
"""A plan travels to each task."""


def joined_streams(
    left: KeyedStream, right: KeyedStream, how: str, between: tuple[str, str, str, str] | None
) -> Stream:
    """The join of two keyed streams, at least one of which has no end; all else of it is checked."""
    is_of_two = is_streaming(left.branches) and is_streaming(right.branches)
    if how != "inner":
        _check_outer(left, right, how, is_possible=is_of_two and between is not None)
    if is_of_two:
        return _of_two(left, right, how, between)
    if between is not None:
        raise PlanError("join: between= is for two streams without an end; filter the joined rows instead")
    if is_streaming(right.branches):
        raise PlanError("join: write the stream without an end on the left, and the table on the right")
    return _with_table(left, right)


def _check_outer(left: KeyedStream, right: KeyedStream, how: str, *, is_possible: bool) -> None:
    """Raise PlanError where no watermark can say that a row will meet nothing."""
    if not is_possible or how not in ("left", "right", "full"):
        raise PlanError(
            f"join: how={how!r} of a stream without an end is not there: a row that meets nothing now may meet "
            "something later. Use how='inner', or left, right or full of two streams with between= and watermarks"
        )
    for side in (left, right):
        if not event_times(side.branches).is_everywhere:
            raise PlanError(
                f"join: how={how!r} needs a watermark on both streams, which says that a row meets nothing any more: "
                "write withWatermark(column, delay) ahead of keyBy"
            )


def _of_two(left: KeyedStream, right: KeyedStream, how: str, between: tuple[str, str, str, str] | None) -> Stream:
    from penstock.stream.stream_join import Between, StreamJoin

    sides = JoinedSides(Side(left.schema, left.keys), Side(right.schema, right.keys), how)
    bound = None
    if between is not None:
        times = (time_of_window(left.schema, between[0], "join"), time_of_window(right.schema, between[1], "join"))
        lower, upper = (microseconds(text, "join: between") for text in between[2:])
        if lower > upper:
            raise PlanError(f"join: between: {between[2]!r} is more than {between[3]!r}")
        if _is_zoned(left.schema, times[0]) != _is_zoned(right.schema, times[1]):
            raise PlanError(
                f"join: between: of {times[0]!r} and {times[1]!r} one is a timestamp and one a timestamp_ntz, and "
                "only the session's zone says which instant that is: cast one of them ahead of withWatermark"
            )
        for name, side in zip(times, (left, right), strict=True):
            if name in side.keys:
                raise PlanError(f"join: between: {name!r} is a key, so it is equal on both sides: leave between out")
        timed = [event_times(side.branches) for side in (left, right)]
        for name, each in zip(times, timed, strict=True):
            each.refuse_other("join: a bound on", name)
        bound = Between(times, lower, upper, all(each.has(name) for name, each in zip(times, timed, strict=True)))
    upstreams = [
        side.upstream.applied(AsSide(sides, number), sides.schema) for number, side in ((LEFT, left), (RIGHT, right))
    ]
    united = upstreams[0].union(upstreams[1])
    asked = [count for count in (left.partitions, right.partitions) if count is not None]
    spec = hash_exchange(sides.schema, left.keys)
    exchanged = united.exchanged(spec, ExchangeChoice(asked[0] if asked else None))
    return exchanged.applied(StreamJoin(sides, bound), sides.result_schema)


def _is_zoned(schema: pa.Schema, name: str) -> bool:
    kind = schema.field(name).type
    return (kind.field("end").type if pa.types.is_struct(kind) else kind).tz is not None


def _with_table(left: KeyedStream, right: KeyedStream) -> Stream:
    from penstock.stream.table_join import TableJoin

    table: pa.Table = right.upstream.toArrow()
    if table.nbytes > MOST_TABLE_BYTES:
        raise PlanError(
            f"join: the table has {table.nbytes >> 20} MiB, and goes to each task with its plan, which takes "
            f"{MOST_TABLE_BYTES >> 20} MiB: let each task load it in a class, mapInArrow(LookUp, schema), as "
            "docs/streaming.md shows"
        )
    sides = JoinedSides(Side(left.schema, left.keys), Side(right.schema, right.keys))
    operator = TableJoin(sides, table)
    return left.upstream.applied(operator, sides.result_schema)
