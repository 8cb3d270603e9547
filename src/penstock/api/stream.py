# SPDX-License-Identifier: Apache-2.0
"""Stream: the verbs of a pipeline. Immutable and lazy; arguments are checked at the call.

A stream is a list of branches (more than one after `union`). Functions are applied to each branch where it is; an
exchange joins all branches. Nothing runs before an action on what `toDF` gives, or `run`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from penstock.api.actions import all_rows, dataframe_of, few_rows, first_rows, require_session, run_now
from penstock.api.duplicates import within_watermark, without_duplicates
from penstock.api.event_time import by_lateness, with_watermark
from penstock.api.explaining import explained, pictured
from penstock.api.expressions import condition, is_spark_column, projection, with_columns
from penstock.api.grouping import grouped_keys
from penstock.api.habits import missing_attribute, no_direction, no_item, no_rows_here, no_stream
from penstock.api.known_arguments import suggests_arguments
from penstock.api.lineage import CombineStep, ExchangeChoice, ExchangeStep, OperatorStep, ResourcesStep, Step
from penstock.api.narrow import dropped, exploded, limited, renamed, rows_argument
from penstock.api.persisted import persist_steps, unpersist_steps
from penstock.api.plan import Plan, plan_job
from penstock.api.schemas import (
    check_mode,
    column_arguments,
    iterator_function_argument,
    partitions_argument,
    resources_argument,
    schema_argument,
)
from penstock.api.sorting import sort_keys, sorted_stream
from penstock.api.streaming.refusals import is_streaming, refuse_stream
from penstock.api.unions import by_name, united
from penstock.api.write_verbs import writeCsv, writeDelta, writeIceberg, writeJson, writeParquet
from penstock.errors import PlanError, SettingError
from penstock.graph import Operator, columns_text
from penstock.operators.exchanges import PartitionerSpec, custom_exchange, exchange, hash_exchange
from penstock.operators.frames import refuse_objects, require_pandas
from penstock.operators.functions import MapInArrow, MapInPandas
from penstock.operators.verbs import Project
from penstock.settings import Mode, Settings

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.streaming.writer import StreamWriter
    from penstock.job.core.result import JobResult
    from penstock.spark.runtime import SparkRuntime
    from penstock.spark.user_types import Column, DataFrame, Expression, Key, ResourceProfile, Row, Schema


@suggests_arguments
class Stream:
    """Rows on their way, as a DataFrame in PySpark: of a table, or without an end. Other streams and readers make it.

    `branches` are the steps it ends in, `session` is the Spark session of its sources, or None.
    """

    __slots__ = ("branches", "session")

    def __init__(self, branches: tuple[Step, ...], session: Any = None) -> None:
        self.branches = branches
        self.session = session

    @property
    def schema(self) -> pa.Schema:
        """The rows' Arrow schema."""
        return self.branches[0].schema

    @property
    def columns(self) -> list[str]:
        """The rows' column names."""
        return list(self.schema.names)

    def mapInArrow(
        self, func: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | type, schema: Schema
    ) -> Stream:
        """Apply a function from an iterator of `pyarrow.RecordBatch` to another one, once for each task.

        A class may stand in its place: each task makes one object, which is called as the function would be. A
        streaming query calls it for each epoch, so what takes long to set up belongs into its `__init__`.
        """
        declared = schema_argument(schema, "mapInArrow")
        function = iterator_function_argument(func, "mapInArrow")
        return self.applied(MapInArrow(function, declared, self.timezone()), declared)

    def mapInPandas(self, func: Callable[[Iterator[Any]], Iterator[Any]] | type, schema: Schema) -> Stream:
        """Apply a function from an iterator of `pandas.DataFrame` to another one, as `mapInArrow` does."""
        require_pandas()
        declared = schema_argument(schema, "mapInPandas")
        refuse_objects("mapInPandas", self.schema, declared)
        function = iterator_function_argument(func, "mapInPandas")
        return self.applied(MapInPandas(function, declared, self.timezone()), declared)

    def uid(self, name: str) -> Stream:
        """Call the stage that gives these rows by this name in the checkpoints of a streaming query, as Flink does.

        Its state is found again by it, whatever changes around it. Raises PlanError for a batch job or a union.
        """
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise SettingError(f"uid({name!r}): up to 64 letters, digits, '_' and '-', for it names files")
        if len(self.branches) != 1:
            raise PlanError("uid() names one stage, and a union has several: name each stream ahead of union()")
        (branch,) = self.branches
        if isinstance(branch, ResourcesStep | CombineStep) or not is_streaming(self.branches):
            raise PlanError("uid() is for streams of penstock.readStream: a batch job has no checkpoints")
        return Stream((replace(branch, uid=name),), self.session)

    def withWatermark(self, eventTime: str, delayThreshold: str) -> Stream:
        """The rows with event time: a row older than the greatest time of this column less the delay is late.

        `delayThreshold` is an interval such as `10 minutes`. A batch job has no late rows, and ignores it as Spark
        does.
        """
        return with_watermark(self, eventTime, delayThreshold)

    def onTime(self, eventTime: str) -> Stream:
        """The rows of a query that are not older than the watermark where they come; others are its `lateRows`."""
        return by_lateness(self, eventTime, "onTime")

    def lateRows(self, eventTime: str) -> Stream:
        """The rows of a query that are older than the watermark where they come: `onTime` has the others."""
        return by_lateness(self, eventTime, "lateRows")

    def withResources(self, profile: ResourceProfile) -> Stream:
        """The stage that gives these rows, from its exchange or source on, with a `pyspark.resource.ResourceProfile`.

        Each of its tasks gets the profile's task resources, cores or GPUs; what feeds it waits for it where the
        exchange between them is pipelined. It needs a cluster: in `local[N]` an action raises SettingError.
        """
        resources = resources_argument(profile)
        return Stream(tuple(ResourcesStep(branch, resources) for branch in self.branches), self.session)

    def keyBy(
        self, *cols: Key, numPartitions: int | None = None, mode: Mode | None = None, service: str | None = None
    ) -> KeyedStream:
        """Bring rows with equal keys together. Without columns, all rows are one group in one task.

        A Column that is no plain column becomes one first, under the name Spark gives it. With `F.window` or
        `F.session_window` among the keys the result, a `WindowedStream`, has aggregations only.
        """
        return self._keyed("keyBy", cols, numPartitions, mode, service)

    def groupBy(
        self, *cols: Key, numPartitions: int | None = None, mode: Mode | None = None, service: str | None = None
    ) -> KeyedStream:
        """`keyBy` under PySpark's name."""
        return self._keyed("groupBy", cols, numPartitions, mode, service)

    def _keyed(
        self, verb: str, cols: Sequence[Any], partitions: int | None, mode: str | None, service: str | None
    ) -> KeyedStream:
        from penstock.api.keyed_stream import KeyedStream
        from penstock.api.windows import windowed

        if (found := windowed(self, verb, cols, _choice(verb, partitions, mode, service))) is not None:
            return cast("KeyedStream", found)
        made, keys = grouped_keys(self.schema, self.session, cols, verb)
        stream = self if made is None else self.projected(made)
        if not keys and partitions not in (None, 1):
            raise PlanError(f"{verb} without columns is one group in one partition, not in {partitions}")
        spec = hash_exchange(stream.schema, keys) if keys else exchange("to_one")
        return KeyedStream(stream, keys, spec, _choice(verb, partitions if keys else 1, mode, service))

    def rebalance(
        self, numPartitions: int | None = None, mode: Mode | None = None, service: str | None = None
    ) -> Stream:
        """Spread rows evenly over all consumers."""
        return self.exchanged(exchange("rebalance"), _choice("rebalance", numPartitions, mode, service))

    def rescale(
        self, numPartitions: int | None = None, mode: Mode | None = None, service: str | None = None
    ) -> Stream:
        """Spread rows evenly over a few consumers for each producer, with few connections."""
        return self.exchanged(exchange("rescale"), _choice("rescale", numPartitions, mode, service))

    def random(
        self, numPartitions: int | None = None, mode: Mode | None = None, service: str | None = None
    ) -> Stream:
        """Send each row to a consumer drawn at random."""
        return self.exchanged(exchange("random"), _choice("random", numPartitions, mode, service))

    def broadcast(
        self, numPartitions: int | None = None, mode: Mode | None = None, service: str | None = None
    ) -> Stream:
        """Send all rows to every consumer."""
        return self.exchanged(exchange("broadcast"), _choice("broadcast", numPartitions, mode, service))

    def toOne(self, mode: Mode | None = None, service: str | None = None) -> KeyedStream:
        """Send all rows to one consumer; aggregations over it are over all rows."""
        from penstock.api.keyed_stream import KeyedStream

        return KeyedStream(self, (), exchange("to_one"), _choice("toOne", 1, mode, service))

    def partitionCustom(
        self,
        func: Callable[[pa.RecordBatch], Any],
        numPartitions: int,
        mode: Mode | None = None,
        service: str | None = None,
    ) -> Stream:
        """Send each row where `func(batch)`, an integer array with a partition for each row, says."""
        if numPartitions is None:
            raise PlanError("partitionCustom needs numPartitions, because the function gives partition numbers")
        return self.exchanged(custom_exchange(func), _choice("partitionCustom", numPartitions, mode, service))

    def sortBy(
        self,
        *cols: str,
        ascending: bool | Sequence[bool] = True,
        nulls: str | None = None,
        numPartitions: int | None = None,
        mode: Mode | None = None,
        service: str | None = None,
    ) -> Stream:
        """A global order, by sampled ranges: no row of a partition comes after one of the next.

        `ascending` is for all columns, or a list with one for each. `nulls` is `first` or `last`; left out, nulls are
        first where it ascends and last where it descends, as in Spark. Equal keys are never in two partitions.
        """
        directed = [column for column in cols if is_spark_column(column)]
        if directed:
            raise no_direction(directed[0])
        columns = column_arguments(cols, self.schema, "sortBy")
        keys = sort_keys(columns, self.schema, ascending, nulls)
        return sorted_stream(self, keys, _choice("sortBy", numPartitions, mode, service))

    def filter(self, condition_: Expression) -> Stream:
        """The rows for which a condition is true: a SQL string, a Column or a `pyarrow.compute` expression."""
        return self.applied(condition(self.schema, self.session, "filter", condition_), self.schema)

    where = filter  # noqa: A003 - PySpark's two names of one verb

    def select(self, *cols: Expression) -> Stream:
        """These columns: names, `*`, SQL such as `v * 2 AS w`, or Columns. Types and names are Spark's."""
        return self.projected(projection(self.schema, self.session, "select", cols))

    selectExpr = select

    def withColumn(self, name: str, expression: Expression) -> Stream:
        """The rows with one more column, or another in the place of the one with this name."""
        return self.projected(with_columns(self.schema, self.session, "withColumn", {name: expression}))

    def withColumns(self, columns: Mapping[str, Expression]) -> Stream:
        """As `withColumn` for several; all are computed of the rows as they are here."""
        return self.projected(with_columns(self.schema, self.session, "withColumns", columns))

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """The rows with one column under another name; as in Spark, nothing happens where there is no such column."""
        return self.projected(renamed(self.schema, self.session, {existing: new}, "withColumnRenamed"))

    def withColumnsRenamed(self, names: Mapping[str, str]) -> Stream:
        """As `withColumnRenamed` for several."""
        return self.projected(renamed(self.schema, self.session, names, "withColumnsRenamed"))

    def drop(self, *cols: str | Column) -> Stream:
        """The rows without these columns; as in Spark, names that are no columns are ignored."""
        return self.projected(dropped(self.schema, self.session, cols))

    def explode(self, column: str, outer: bool = False) -> Stream:
        """One row for each element of a list column, which then holds the element.

        With `outer` a row without elements stays, with null in that column.
        """
        operator = exploded(self.schema, column, outer)
        return self.applied(operator, operator.schema)

    def limit(self, num: int) -> Stream:
        """So many rows: the first ones of a stream that is sorted, else any. One task gives them."""
        before, exchange_, behind = limited(self.branches, self.schema, rows_argument(num, "limit"))
        limits = Stream(first_rows(self.branches, before), self.session)
        result: Stream = limits.exchanged(exchange_, ExchangeChoice(1))
        for operator in behind:
            result = result.applied(operator, self.schema)
        return result

    def distinct(self) -> Stream:
        """Each row once; an exchange by all columns."""
        return without_duplicates(self, None, "distinct")

    def dropDuplicates(self, subset: Sequence[str] | None = None) -> Stream:
        """One row for each combination of these columns' values, by default of all; in a query the first that comes.

        A query keeps the combinations for ever, but where the watermark's column is among the columns.
        """
        return without_duplicates(self, subset, "dropDuplicates")

    drop_duplicates = dropDuplicates

    def dropDuplicatesWithinWatermark(self, subset: Sequence[str] | None = None) -> Stream:
        """As `dropDuplicates` for rows of a query that are not further apart than the delay of their watermark."""
        return within_watermark(self, subset)

    def union(self, *others: Stream) -> Stream:
        """The rows of all; names of columns must be the same, and types are brought together as Spark does."""
        session = self.session
        for other in others:
            if not isinstance(other, Stream):
                raise no_stream("union", other)
            session = session if session is not None else other.session
        return Stream(united([self.branches, *(other.branches for other in others)], session), session)

    unionAll = union

    def unionByName(self, other: Stream, allowMissingColumns: bool = False) -> Stream:
        """As `union`, by the columns' names; a column that one side lacks is null there if that is allowed."""
        if not isinstance(other, Stream):
            raise no_stream("unionByName", other)
        session = self.session if self.session is not None else other.session
        mine, theirs = by_name(self.schema, other.schema, allowMissingColumns, session)
        return self.projected(mine).union(other.projected(theirs))

    @property
    def isStreaming(self) -> bool:
        """True if this is a stream of `readStream`, which may have no end."""
        return is_streaming(self.branches)

    @property
    def writeStream(self) -> StreamWriter:
        """The writer for the rows of a stream of `readStream`, as PySpark's `df.writeStream`."""
        from penstock.api.streaming.writer import StreamWriter

        return StreamWriter(self.branches, self.session)

    def toDF(self) -> DataFrame:
        """An ordinary Spark DataFrame; the job runs when an action reads it."""
        return dataframe_of(self.branches, self.session, "toDF")

    def run(self) -> JobResult:
        """Run the job now and drop its output; gives its JobResult."""
        return run_now(self.branches, self.session)

    def count(self) -> int:
        """Run now: the number of rows. Of a keyed stream: the rows of each group, as a stream."""
        counted = self.toOne().agg(count=("*", "count"))
        return int(few_rows(counted.branches, self.session, "count")[0][0])

    def collect(self) -> list[Row]:
        """Run now: all rows, as `pyspark.sql.Row`."""
        return list(all_rows(self.branches, self.session, "collect").collect())

    def take(self, num: int) -> list[Row]:
        """Run now: so many rows, the first ones of a stream that is sorted."""
        num = rows_argument(num, "take")
        return list(all_rows(first_rows(self.branches, num), self.session, "take", num).take(num))

    def first(self) -> Row | None:
        """Run now: the first row, or None."""
        return next(iter(self.take(1)), None)

    def head(self, n: int | None = None) -> Any:
        """As `take`; without a number as `first`."""
        return self.first() if n is None else self.take(n)

    def isEmpty(self) -> bool:
        """Run now: whether there is no row."""
        return not self.take(1)

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Run now, and print so many rows as Spark does."""
        few = first_rows(self.branches, rows_argument(n, "show") + 1)
        dataframe_of(few, self.session, "show").show(n, truncate, vertical)

    def toPandas(self) -> Any:
        """Run now: all rows as a `pandas.DataFrame`."""
        require_pandas()
        return all_rows(self.branches, self.session, "toPandas").toPandas()

    def toArrow(self) -> pa.Table:
        """Run now: all rows as a `pyarrow.Table`."""
        return all_rows(self.branches, self.session, "toArrow").toArrow()

    def persist(self, name: str = "", service: str = "") -> Self:
        """Keep the rows once an action has made them, for all later ones until `unpersist`; gives this stream.

        With a `name` a `service` that can, `external` or `remote`, keeps them longer than this application: later
        ones of the same user read them by `penstock.readPersisted`, until none has read them for the service's
        lease. Rows that the user had under that name go. Nothing runs here. See `penstock.datasets` for what is kept.
        """
        refuse_stream(self.branches, "persist")
        persist_steps(self.branches, self._runtime("persist"), name, service)
        return self

    def unpersist(self) -> Self:
        """Release what `persist` keeps; gives this stream. Nothing happens where it is not persisted."""
        unpersist_steps(self.branches, self._runtime("unpersist"))
        return self

    writeParquet = writeParquet
    writeCsv = writeCsv
    writeJson = writeJson
    writeDelta = writeDelta
    writeIceberg = writeIceberg

    def explain(self) -> None:
        """Print the plan: stages, operators, exchanges and the task slots needed. Runs nothing."""
        sys.stdout.write(explained(self.branches, self.session))

    def _repr_html_(self) -> str:
        """For notebooks: the plan as a picture. Runs nothing."""
        return pictured(self.branches, self.session)

    def plan(self, settings: Settings, slots: int, *, keep: bool = True) -> Plan:
        """The job graph of this stream; raises PlanError for what cannot run."""
        return plan_job(self.branches, settings, slots, keep=keep)

    def applied(self, operator: Operator, schema: pa.Schema) -> Stream:
        """This stream with any operator after it; `schema` is that of the operator's rows."""
        return Stream(tuple(OperatorStep(branch, operator, schema) for branch in self.branches), self.session)

    def exchanged(self, spec: PartitionerSpec, choice: ExchangeChoice) -> Stream:
        """This stream with any exchange after it; the verbs above are its named forms."""
        return self.over(ExchangeStep(self.branches, spec, choice))

    def over(self, step: Step) -> Stream:
        """A stream that ends in this step, with the session of this one."""
        return Stream((step,), self.session)

    def timezone(self) -> str:
        """The session's time zone, in which functions see zoned timestamps; UTC without a session."""
        if self.session is None:
            return "UTC"
        return str(self.session.conf.get("spark.sql.session.timeZone"))

    def __repr__(self) -> str:
        """The columns with their types."""
        return f"{type(self).__name__}[{columns_text(self.schema)}]"

    if not TYPE_CHECKING:  # else every name would pass

        def __getattr__(self, name: str) -> Any:
            """A sentence for what PySpark's users try."""
            if name.startswith("__"):
                raise AttributeError(name)
            raise missing_attribute(type(self).__name__, name, list(self.branches[0].schema.names), dir(self))

        def __getitem__(self, item: Any) -> Any:
            """As above for `stream["column"]`."""
            raise no_item(type(self).__name__, item)

        def __iter__(self) -> Any:
            """As above for `for row in stream`."""
            raise no_rows_here(type(self).__name__)

    def projected(self, operator: Project) -> Stream:
        """This stream with an operator after it that gives other columns."""
        return self.applied(operator, operator.schema)

    def is_ansi(self) -> bool:
        """True if the session has ANSI rules now, under which a result that leaves its type is an error."""
        return self.session is None or str(self.session.conf.get("spark.sql.ansi.enabled")).lower() == "true"

    def _runtime(self, verb: str) -> SparkRuntime:
        from penstock.spark.runtime import SparkRuntime

        return SparkRuntime.of(require_session(self.session, verb))


def _choice(verb: str, partitions: object, mode: str | None, service: str | None) -> ExchangeChoice:
    check_mode(mode, service, verb)
    return ExchangeChoice(partitions_argument(partitions, verb), mode, service)
