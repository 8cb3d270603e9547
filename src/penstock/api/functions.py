# SPDX-License-Identifier: Apache-2.0
"""The functions of `penstock` over DataFrames: where their streams begin, and the drop-in verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.keyed_stream import KeyedStream
from penstock.api.known_arguments import suggests_arguments
from penstock.api.lineage import ExchangeChoice, SourceStep
from penstock.api.pairs import CoGroupedStream
from penstock.api.schemas import check_mode, column_arguments, partitions_argument
from penstock.api.stream import Stream
from penstock.errors import PlanError
from penstock.operators.exchanges import hash_exchange

if TYPE_CHECKING:
    from penstock.settings import Mode
    from penstock.spark.user_types import DataFrame, Schema

_SHOWN_COLUMNS = 4


@suggests_arguments
def fromDataFrame(df: DataFrame) -> Stream:
    """A stream of a Spark DataFrame's rows."""
    from penstock.spark.types import arrow_schema

    if not (hasattr(df, "schema") and hasattr(df, "sparkSession")):
        raise TypeError(f"fromDataFrame takes a Spark DataFrame, not {_what_it_is(df)}")
    if getattr(df, "isStreaming", False):
        raise PlanError(
            "fromDataFrame: this DataFrame is a stream of Spark's, which has no end: read its source with"
            " penstock.readStream(spark), or write the query in Structured Streaming"
        )
    schema: pa.Schema = arrow_schema(df.schema)
    return Stream((SourceStep(_frame_name(schema), schema, dataframe=df),), df.sparkSession)


def _what_it_is(thing: object) -> str:
    kind = f"{type(thing).__module__.partition('.')[0]}'s {type(thing).__name__}"
    if isinstance(thing, Stream):
        return f"{kind}: it is a stream already, use its verbs"
    if kind in ("pandas's DataFrame", "pyarrow's Table"):
        return f"{kind}: write fromDataFrame(spark.createDataFrame(rows))"
    return f"{kind}: give what spark.read, spark.table or spark.createDataFrame gives"


def _frame_name(schema: pa.Schema) -> str:
    """A DataFrame has no name of its own: its first columns tell it from others."""
    more = ", ..." if len(schema.names) > _SHOWN_COLUMNS else ""
    return f"DataFrame({', '.join(schema.names[:_SHOWN_COLUMNS])}{more})"


@suggests_arguments
def repartition(
    df: DataFrame,
    numPartitions: int | str | None = None,
    *cols: str,
    mode: Mode | None = None,
    service: str | None = None,
) -> DataFrame:
    """`df.repartition` over Penstock: the same row in the same partition as Spark's where columns are given."""
    only_columns = numPartitions is not None and not isinstance(numPartitions, int)
    stream = fromDataFrame(df)
    keys = column_arguments((numPartitions, *cols) if only_columns else cols, stream.schema, "repartition")
    count = None if only_columns else partitions_argument(numPartitions, "repartition")
    check_mode(mode, service, "repartition")
    if not keys:
        if count is None:
            raise PlanError("repartition needs a number of partitions or columns")
        return stream.rebalance(count, mode, service).toDF()
    spec = hash_exchange(stream.schema, keys, spark_compatible=True)
    return stream.exchanged(spec, ExchangeChoice(count, mode, service)).toDF()


@suggests_arguments
def groupBy(
    df: DataFrame,
    *cols: str,
    numPartitions: int | None = None,
    mode: Mode | None = None,
    service: str | None = None,
) -> GroupedDataFrame:
    """`df.groupBy` over Penstock: its verbs give ordinary DataFrames."""
    return GroupedDataFrame(fromDataFrame(df).groupBy(*cols, numPartitions=numPartitions, mode=mode, service=service))


@suggests_arguments
class GroupedDataFrame:
    """The result of `penstock.groupBy`: the verbs of a KeyedStream, each ending in a DataFrame."""

    __slots__ = ("_stream",)

    def __init__(self, stream: KeyedStream) -> None:
        self._stream = stream

    def agg(self, **aggregations: tuple[str, str]) -> DataFrame:
        """See `KeyedStream.agg`."""
        return self._stream.agg(**aggregations).toDF()

    def applyInArrow(self, func: Callable[..., Any], schema: Schema) -> DataFrame:
        """See `KeyedStream.applyInArrow`."""
        return self._stream.applyInArrow(func, schema).toDF()

    def applyInPandas(self, func: Callable[..., Any], schema: Schema) -> DataFrame:
        """See `KeyedStream.applyInPandas`."""
        return self._stream.applyInPandas(func, schema).toDF()

    def cogroup(self, other: GroupedDataFrame) -> CoGroupedDataFrame:
        """See `KeyedStream.cogroup`."""
        if not isinstance(other, GroupedDataFrame):
            raise TypeError(f"cogroup takes what penstock.groupBy gives, not {type(other).__name__}")
        return CoGroupedDataFrame(self._stream.cogroup(other._stream))


@suggests_arguments
class CoGroupedDataFrame:
    """The result of `GroupedDataFrame.cogroup`: functions over the groups of both sides, each giving a DataFrame."""

    __slots__ = ("_groups",)

    def __init__(self, groups: CoGroupedStream) -> None:
        self._groups = groups

    def applyInArrow(self, func: Callable[..., Any], schema: Schema) -> DataFrame:
        """See `CoGroupedStream.applyInArrow`."""
        return self._groups.applyInArrow(func, schema).toDF()

    def applyInPandas(self, func: Callable[..., Any], schema: Schema) -> DataFrame:
        """See `CoGroupedStream.applyInPandas`."""
        return self._groups.applyInPandas(func, schema).toDF()
