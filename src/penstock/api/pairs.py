# SPDX-License-Identifier: Apache-2.0
"""Two keyed streams into one: cogroup and join. Both sides are exchanged by the same hash to the same partitions.

An exchange belongs to the verb after it: a keyed stream that is joined twice is sent twice. Persist or write out what
is used often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.expressions import is_spark_column
from penstock.api.habits import not_a_condition
from penstock.api.key_types import of_other_types, other_types, with_one_type
from penstock.api.known_arguments import suggests_arguments
from penstock.api.lineage import CombineStep
from penstock.api.schemas import function_argument, schema_argument
from penstock.api.stream_joins import joined_streams
from penstock.api.streaming.refusals import is_streaming
from penstock.errors import PlanError, SchemaError
from penstock.graph import Combine
from penstock.operators.cogroup import CoGroupApply, CoGroupApplyInArrow, CoGroupApplyInPandas, takes_key
from penstock.operators.frames import refuse_objects, require_pandas
from penstock.operators.groups import Side
from penstock.operators.join import JOINS, EquiJoin, join_schema
from penstock.operators.keys import refuse_ungroupable

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.stream import Stream
    from penstock.spark.user_types import Schema

_ALIASES = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "left_semi",
    "leftsemi": "left_semi",
    "anti": "left_anti",
    "leftanti": "left_anti",
}


@suggests_arguments
class CoGroupedStream:
    """The pair that `KeyedStream.cogroup` gives: functions over the groups of both sides."""

    __slots__ = ("_left", "_right")

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        check_pair(left, right, "cogroup")
        for pair in other_types(left, right):
            raise of_other_types("cogroup", left, right, pair)
        self._left = left
        self._right = right

    def applyInArrow(self, func: Callable[..., Any], schema: Schema) -> Stream:
        """Apply `func([key,] left, right)`, tables to a table, to each key that either side has."""
        verb = "cogroup.applyInArrow"
        groups = self._groups(func, schema_argument(schema, verb), verb)
        combine = CoGroupApplyInArrow(groups, self._left.timezone())
        return combined(self._left, self._right, combine, groups.schema)

    def applyInPandas(self, func: Callable[..., Any], schema: Schema) -> Stream:
        """Apply `func([key,] left, right)`, frames to a frame, to each key that either side has."""
        require_pandas()
        verb = "cogroup.applyInPandas"
        groups = self._groups(func, schema_argument(schema, verb), verb)
        refuse_objects(verb, self._left.schema, self._right.schema, groups.schema)
        combine = CoGroupApplyInPandas(groups, self._left.timezone())
        return combined(self._left, self._right, combine, groups.schema)

    def _groups(self, func: object, schema: pa.Schema, verb: str) -> CoGroupApply:
        function = function_argument(func, verb)
        return CoGroupApply(sides_of(self._left, self._right), function, takes_key(function, verb), schema)


def joined(
    left: KeyedStream,
    right: KeyedStream,
    how: str,
    on: Sequence[str | tuple[str, str]] | None = None,
    between: tuple[str, str, str, str] | None = None,
) -> Stream:
    """The equi-join of two keyed streams on their keys."""
    check_pair(left, right, "join")
    kind = _join_type(how)
    _check_names(left, right, on)
    if not left.keys:
        raise PlanError("join needs key columns: key both sides with keyBy; a cross join is Spark's to do")
    if (found := with_one_type(left, right, kind)) is not None:
        one_side, other_side, cast = found
        met = joined(one_side, other_side, kind, list(zip(one_side.keys, other_side.keys, strict=True)), between)
        return met.projected(cast.result(met.schema))
    one, other = sides_of(left, right)
    _check_columns(one, other, kind)
    if is_streaming(left.branches) or is_streaming(right.branches):
        return joined_streams(left, right, kind, between)
    if between is not None:
        raise PlanError("join: between= is for two streams without an end; filter the joined rows instead")
    schema = join_schema(one, other, kind)
    return combined(left, right, EquiJoin(one, other, kind, schema), schema)


def combined(left: KeyedStream, right: KeyedStream, combine: Combine, schema: pa.Schema) -> Stream:
    """The stream that `combine` makes of both sides, as one vertex after both exchanges."""
    from penstock.api.stream import Stream

    asked = {count for side in (left, right) if (count := side.partitions) is not None}
    step = CombineStep((left.input(), right.input()), combine, schema, asked.pop() if asked else None)
    return Stream((step,), left.session if left.session is not None else right.session)


def sides_of(left: KeyedStream, right: KeyedStream) -> tuple[Side, Side]:
    """Both sides as operators know them."""
    return Side(left.schema, left.keys), Side(right.schema, right.keys)


def check_pair(left: KeyedStream, right: object, verb: str) -> None:
    """Refuse what cannot meet: no keyed stream, other keys, other numbers of partitions."""
    from penstock.api.keyed_stream import KeyedStream

    if not isinstance(right, KeyedStream):
        if type(right).__module__.startswith("pyspark."):
            raise TypeError(
                f"{verb} takes a keyed stream, not Spark's {type(right).__name__}: write "
                f"{verb}(penstock.fromDataFrame(df).keyBy(...)) with the columns to meet on"
            )
        raise TypeError(
            f"{verb} takes a keyed stream, not {type(right).__name__}: write other.keyBy(...) with the columns to "
            "meet on"
        )
    if len(left.keys) != len(right.keys):
        raise PlanError(
            f"{verb}: both sides need as many keys; they have {_shown(left.keys)} and {_shown(right.keys)}"
        )
    for side in (left, right):
        refuse_ungroupable(side.schema, side.keys)
    counts = (left.partitions, right.partitions)
    if None not in counts and counts[0] != counts[1]:
        raise PlanError(
            f"{verb}: rows meet in the same partitions, so both sides need the same numPartitions; they have "
            f"{counts[0]} and {counts[1]}: give it on one side only, or the same on both"
        )


def _join_type(how: object) -> str:
    kind = _ALIASES.get(how.replace("_", "").lower()) if isinstance(how, str) else None
    if kind is None:
        raise PlanError(
            f"join: how={how!r} is not one of {', '.join(JOINS)}, or another of PySpark's names for these"
        )
    return kind


def _check_names(left: KeyedStream, right: KeyedStream, on: Sequence[str | tuple[str, str]] | None) -> None:
    for item in on if isinstance(on, list | tuple) else [on]:
        if is_spark_column(item):
            raise not_a_condition("join", item)
    keyed = list(zip(left.keys, right.keys, strict=True))
    if on is None:
        if left.keys != right.keys:
            raise SchemaError(
                f"join: the sides are keyed by columns of other names, {_shown(left.keys)} and {_shown(right.keys)}: "
                f"give the pairs that are meant to be equal, on={keyed!r}, or rename"
            )
        return
    pairs = [(item, item) if isinstance(item, str) else tuple(item) for item in ([on] if isinstance(on, str) else on)]
    if pairs != keyed:
        raise PlanError(f"join: on={on!r} does not say what the sides are keyed by, which is {keyed!r}")


def _check_columns(left: Side, right: Side, how: str) -> None:
    names = list(left.schema.names)
    if how not in ("left_semi", "left_anti"):
        names += [name for name in right.schema.names if name not in right.keys]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(
            f"join: {', '.join(map(repr, twice))} would be in the result twice: rename or drop the column on one "
            "side with withColumnRenamed or drop before keyBy"
        )


def _shown(keys: tuple[str, ...]) -> str:
    return f"({', '.join(keys)})"
