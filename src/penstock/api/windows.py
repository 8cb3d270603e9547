# SPDX-License-Identifier: Apache-2.0
"""Windows of event time as keys of `groupBy`: PySpark's `F.window` and `F.session_window`, or ours without a session.

Their aggregations are those of any group, made in part before the exchange. A batch job gives all windows, a
streaming query gives each when the watermark has passed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.types as pt

from penstock.api.expressions import ExpressionReader, is_spark_column, projected
from penstock.api.group_verbs import GroupVerbs
from penstock.api.grouping import grouped_keys
from penstock.api.habits import missing_step
from penstock.api.known_arguments import suggests_arguments
from penstock.api.lineage import ExchangeChoice
from penstock.api.streaming.refusals import is_streaming
from penstock.api.watermark_columns import event_times
from penstock.errors import PlanError, SchemaError
from penstock.graph import INTERNAL, has_sessions
from penstock.operators.aggregates import Aggregation
from penstock.operators.exchanges import exchange, hash_exchange
from penstock.operators.expressions import ColumnRef
from penstock.operators.intervals import microseconds
from penstock.operators.window_aggregates import AllWindows, PartialWindows, WindowSpec
from penstock.operators.windows import GivenWindows, WindowKey, Windows, is_window

if TYPE_CHECKING:
    from penstock.api.stream import Stream

_AGGREGATED = (
    "a window's rows are aggregated: .agg(n=('*', 'count')) and its relatives; for functions over whole windows make "
    "the window a column first, such as date_trunc('minute', ts), and group by that"
)
_INSTEAD = {
    **dict.fromkeys(("applyInArrow", "applyInPandas", "cogroup", "mapInArrow", "mapInPandas", "select"), _AGGREGATED),
    "join": "windows are no keys of a join: key both sides by another column, and say between=('window', 'other', "
    "'0 seconds', '0 seconds')",
}


@suggests_arguments
def window(
    timeColumn: Any, windowDuration: str, slideDuration: str | None = None, startTime: str | None = None
) -> WindowKey:
    """As PySpark's `F.window`, without a Spark session: windows of a time column, with a slide sliding ones."""
    size = microseconds(windowDuration, "window: its duration")
    slide = size if slideDuration is None else microseconds(slideDuration, "window: its slide")
    offset = 0 if startTime is None else microseconds(startTime, "window: startTime")
    return WindowKey(timeColumn, size, slide, offset)


@suggests_arguments
def session_window(timeColumn: Any, gapDuration: str) -> WindowKey:
    """As PySpark's `F.session_window`, without a Spark session; the gap is the same for all rows."""
    gap = microseconds(gapDuration, "session_window: its gap")
    if gap <= 0:
        raise PlanError(f"session_window: its gap must be longer than nothing, not {gapDuration!r}")
    return WindowKey(timeColumn, gap=gap, name="session_window")


def windowed(stream: Stream, verb: str, cols: Sequence[Any], choice: ExchangeChoice) -> WindowedStream | None:
    """The stream by these keys, where a window is among them; None where there is none."""
    given = list(cols[0]) if len(cols) == 1 and isinstance(cols[0], list | tuple) else list(cols)
    read = [_window_key(item, stream) for item in given]
    found = [key for key in read if key is not None]
    if not found:
        return None
    if len(found) > 1:
        raise PlanError(f"{verb}: {len(found)} windows are more than one, as for Spark: group by one of them")
    others = [item for item, key in zip(given, read, strict=True) if key is None]
    windows: Windows
    if isinstance(found[0], GivenWindows):
        windows = found[0]
    else:
        stream, windows = _with_time(stream, found[0], verb)
    event_times(stream.branches).refuse_other(f"{verb}: a window over", windows.column)
    made, names = grouped_keys(stream.schema, stream.session, others, verb) if others else (None, ())
    stream = stream if made is None else stream.projected(made)
    rest = iter(names)
    columns = tuple(windows.name if key is not None else next(rest) for key in read)
    if not names and choice.partitions not in (None, 1):
        raise PlanError(f"{verb} by a window alone is made in one partition, not in {choice.partitions}: add a key")
    if len(set(columns)) != len(columns):
        raise PlanError(f"{verb}: two keys would be called {windows.name!r}: give the window an alias()")
    return WindowedStream(stream, columns, windows, choice)


def _window_key(item: object, stream: Stream) -> WindowKey | GivenWindows | None:
    if isinstance(item, WindowKey):
        return item
    name = item
    if is_spark_column(item):
        from penstock.spark.window_columns import column_of, window_of

        if (found := window_of(item)) is not None:
            return found
        name = column_of(item)
    place = stream.schema.get_field_index(name) if isinstance(name, str) else -1  # also where it is there twice
    if place < 0 or not is_window((field := stream.schema.field(place)).type):
        return None
    are_sessions = has_sessions(field)
    return GivenWindows(str(name), are_sessions, not are_sessions and not is_streaming(stream.branches))


def _with_time(stream: Stream, key: WindowKey, verb: str) -> tuple[Stream, Windows]:
    """The stream with a column of the window's times, and the windows over it."""
    reading = ExpressionReader(stream.schema, stream.session, verb)
    if isinstance(key.time, str) and key.time in stream.schema.names:
        name = reading.column(key.time).field.name
    else:
        (made,) = reading.computed([key.time])
        # Spark calls CAST(ts AS DATE) and the field pay.ts by the name ts, too: only a column itself is that column.
        if isinstance(made.expression, ColumnRef):
            name = made.expression.name
        else:
            name = f"{INTERNAL}time"
            stream = stream.projected(projected([*reading.columns(), _named(made, name)], verb))
    kind = stream.schema.field(name).type
    stamp = kind.field("end").type if is_window(kind) else kind
    if not pt.is_timestamp(stamp):
        raise SchemaError(
            f"{verb}: a window is of timestamps, and column {key.time!r} is of type {kind}: make one first, such as "
            "withColumn('ts', 'timestamp_millis(millis)')"
        )
    return stream, key.over(name)


def _named(made: Any, name: str) -> Any:
    return type(made)(made.field.with_name(name), made.expression)


@suggests_arguments
class WindowedStream(GroupVerbs):
    """Rows by a window, and perhaps other keys: the aggregations of each. Immutable and lazy."""

    __slots__ = ("_choice", "_columns", "_stream", "_windows")

    def __init__(self, stream: Stream, columns: tuple[str, ...], windows: Windows, choice: ExchangeChoice) -> None:
        self._stream = stream
        self._columns = columns
        self._windows = windows
        self._choice = choice

    if not TYPE_CHECKING:  # else every name would pass

        def __getattr__(self, name: str) -> Any:
            """A sentence for what PySpark's users try."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing_step("a stream by windows", name, _INSTEAD, dir(self))

    def _ungrouped(self) -> tuple[Stream, tuple[str, ...]]:
        return self._stream, self._columns

    def _reduced(self, rows: Stream, wanted: Sequence[Aggregation]) -> Stream:
        keys = tuple(name for name in self._columns if name != self._windows.name)
        stream = _narrow(rows, [*keys, self._windows.column, *(item.column for item in wanted)])
        spec = WindowSpec(stream.schema, self._columns, self._windows, tuple(wanted), stream.is_ansi())
        partial = stream.applied(PartialWindows(spec), spec.plan.state_schema)
        choice = self._choice if keys else ExchangeChoice(1, self._choice.mode, self._choice.service)
        by = hash_exchange(partial.schema, keys) if keys else exchange("to_one")
        exchanged = partial.exchanged(by, choice)
        if not is_streaming(stream.branches):
            return exchanged.applied(AllWindows(spec), spec.plan.result_schema)
        from penstock.stream.window_aggregate import WindowAggregate

        return exchanged.applied(WindowAggregate(spec), spec.plan.result_schema)


def _narrow(stream: Stream, columns: Sequence[str]) -> Stream:
    """The stream with these columns only: what nothing reads is not read from files either."""
    needed = [name for name in stream.schema.names if name in columns]
    if len(needed) == len(stream.schema.names):
        return stream
    reading = ExpressionReader(stream.schema, None, "agg")
    return stream.projected(projected([reading.column(name) for name in needed], "agg"))
