# SPDX-License-Identifier: Apache-2.0
"""`transformWithState` and its relatives: their arguments, checked at the call as PySpark checks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.api.schemas import schema_argument
from penstock.api.streaming.refusals import is_streaming
from penstock.api.watermark_columns import event_times
from penstock.errors import PlanError, SchemaError
from penstock.operators.columns import only_column
from penstock.operators.keys import refuse_ungroupable

if TYPE_CHECKING:
    from penstock.stream.state.operator import StatefulOperator

_CALLED = {
    "transformWithState": "handleInputRows",
    "transformWithStateInPandas": "handleInputRows",
    "transformWithStateInArrow": "handleBatch",
}


class Keyed(Protocol):
    """The part of a keyed stream that is needed here."""

    @property
    def schema(self) -> pa.Schema:
        """The stream's columns."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the key columns."""

    @property
    def upstream(self) -> Any:
        """The stream in front of its exchange."""

    def timezone(self) -> str:
        """The session's time zone."""


@dataclass(frozen=True, slots=True)
class Modes:
    """The arguments that all three verbs have, as they were given."""

    output: str
    time: str
    initial: Any
    broadcast: Any = None


def stateful_operator(keyed: Keyed, verb: str, processor: Any, schema: Any, modes: Modes) -> StatefulOperator:
    """The operator of one of the three verbs."""
    from penstock.stream.state.operator import Spellings, StatefulOperator

    refuse_ungroupable(keyed.schema, keyed.keys)
    _refuse_other(processor, verb)
    if str(modes.output).lower() not in ("append", "update"):
        raise PlanError(f"{verb}: outputMode is 'append' or 'update', not {modes.output!r}")
    time = _time_mode(modes.time, verb)
    _refuse_time_that_stands(keyed, time, verb)
    return StatefulOperator(
        verb,
        processor,
        keyed.schema,
        keyed.keys,
        schema_argument(schema, verb),
        Spellings(state_schema, row_maker),
        time,
        keyed.timezone(),
        _initial_rows(modes.initial, keyed, verb),
        _has_shared(modes.broadcast, processor, verb),
    )


def state_schema(schema: object) -> pa.Schema:
    """The schema of a state, as a processor writes it."""
    return schema_argument(schema, "a state")


def row_maker(names: list[str]) -> Any:
    """Makes rows of these columns."""
    from penstock.spark.rows import row_maker as of_spark

    return of_spark(names)


def _refuse_other(processor: Any, verb: str) -> None:
    called = _CALLED[verb]
    if not all(callable(getattr(processor, name, None)) for name in ("init", called, "close")):
        kind = "penstock.BatchProcessor" if called == "handleBatch" else "pyspark.sql.streaming.StatefulProcessor"
        raise TypeError(
            f"{verb} takes an object of a class derived from {kind}, with init, {called} and close, not "
            f"{type(processor).__name__}"
        )


def _has_shared(stream: Any, processor: Any, verb: str) -> bool:
    """Tell whether there is a second stream; raises TypeError where it is none, or its rows have no handler."""
    if stream is None:
        return False
    if not (hasattr(stream, "union") and hasattr(stream, "branches")):
        raise TypeError(f"{verb}: broadcastStream takes a stream, not {type(stream).__name__}")
    handled = "handleBroadcast" if verb.endswith("InArrow") else "handleBroadcastRows"
    if not callable(getattr(processor, handled, None)):
        raise TypeError(f"{verb}: the rows of broadcastStream come to {handled}(rows, timerValues): write it")
    return True


def _time_mode(mode: object, verb: str) -> str:
    from penstock.stream.state.times import MODES

    name = str(mode).lower()
    if name not in MODES:
        raise PlanError(f"{verb}: timeMode is {', '.join(map(repr, MODES.values()))}, not {mode!r}")
    return name


def _refuse_time_that_stands(keyed: Keyed, time: str, verb: str) -> None:
    """Raise PlanError for timers of event time that no watermark would ever have fire."""
    from penstock.stream.state.times import EVENT

    branches = keyed.upstream.branches
    if time == EVENT and is_streaming(branches) and not event_times(branches).is_everywhere:
        raise PlanError(
            f"{verb}: timers of timeMode 'EventTime' fire by a watermark, and there is none: write "
            "withWatermark(column, delay) ahead of it, on each stream ahead of a union, or timeMode 'ProcessingTime'"
        )


def _initial_rows(initial: Any, keyed: Keyed, verb: str) -> pa.Table | None:
    """The rows of the initial state, which all tasks get; each gives those of its keys to its processor."""
    if initial is None:
        return None
    is_table = isinstance(initial, pa.Table)
    if not is_table and not (hasattr(initial, "upstream") and hasattr(initial, "keys")):
        raise TypeError(
            f"{verb}: initialState takes a keyed stream that has an end, such as "
            f"penstock.fromDataFrame(df).keyBy('key'), or a pyarrow.Table, not {type(initial).__name__}"
        )
    keys = keyed.keys if is_table else initial.keys
    theirs = [only_column(initial.schema, key, verb).type for key in keys]
    mine = [keyed.schema.field(key).type for key in keyed.keys]
    if keys != keyed.keys or theirs != mine:
        raise SchemaError(
            f"{verb}: initialState is by ({', '.join(keys)}) of types ({', '.join(map(str, theirs))}), and the "
            f"stream by ({', '.join(keyed.keys)}) of types ({', '.join(map(str, mine))}): give both the same keys"
        )
    table: pa.Table = initial if is_table else initial.upstream.toArrow()
    return table
