# SPDX-License-Identifier: Apache-2.0
"""Stream and KeyedStream: the verbs of a pipeline. Immutable and lazy; arguments are checked at the call.

A stream is a list of branches (more than one after `union`). Functions are applied to each branch where it is;
an exchange joins all branches. Nothing runs before an action on what `toDF` gives, or `run`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from penstock.api.lineage import CombineInput, ExchangeChoice, ExchangeStep, OperatorStep, ResourcesStep, Step
from penstock.api.pairs import CoGroupedStream, joined
from penstock.api.parquet_sink import ParquetWritten, write_parquet
from penstock.api.persisted import PersistedReading, persist_steps, unpersist_steps
from penstock.api.plan import PLANNING_SLOTS, Plan, plan_job
from penstock.api.schemas import (
    check_mode,
    column_arguments,
    function_argument,
    partitions_argument,
    resources_argument,
    schema_argument,
)
from penstock.api.sorting import sort_keys, sorted_stream
from penstock.graph import Operator, explain_graph
from penstock.shuffle import Settings
from penstock.shuffle.errors import PlanError, SchemaError
from penstock.task.aggregate_operators import aggregate_pair
from penstock.task.aggregates import Aggregation
from penstock.task.exchanges import PartitionerSpec, custom_exchange, exchange, hash_exchange
from penstock.task.frames import require_pandas
from penstock.task.keys import refuse_ungroupable
from penstock.task.operators import (
    GroupApply,
    GroupApplyInArrow,
    GroupApplyInPandas,
    MapInArrow,
    MapInPandas,
    group_form,
)

if TYPE_CHECKING:
    from penstock.spark.runtime import SparkRuntime


class Stream:
    """Rows on their way. Made by `penstock.fromDataFrame`, `penstock.readParquet` and by other streams.

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

    def mapInArrow(self, func: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: Any) -> Stream:
        """Apply a function from an iterator of `pyarrow.RecordBatch` to another one, once for each task."""
        declared = schema_argument(schema, "mapInArrow")
        return self.applied(MapInArrow(function_argument(func, "mapInArrow"), declared), declared)

    def mapInPandas(self, func: Callable[[Iterator[Any]], Iterator[Any]], schema: Any) -> Stream:
        """Apply a function from an iterator of `pandas.DataFrame` to another one, once for each task."""
        require_pandas()
        declared = schema_argument(schema, "mapInPandas")
        function = function_argument(func, "mapInPandas")
        return self.applied(MapInPandas(function, declared, self.timezone()), declared)

    def withResources(self, profile: Any) -> Stream:
        """The stage that gives these rows, from its exchange or source on, with a `pyspark.resource.ResourceProfile`.

        Each of its tasks gets the profile's task resources, cores or GPUs; what feeds it waits for it where the
        exchange between them is pipelined. It needs a cluster: in `local[N]` an action raises SettingError.
        """
        resources = resources_argument(profile)
        return Stream(tuple(ResourcesStep(branch, resources) for branch in self.branches), self.session)

    def keyBy(
        self, *cols: str, numPartitions: int | None = None, mode: str | None = None, service: str | None = None
    ) -> KeyedStream:
        """Bring rows with equal keys together. Without columns, all rows are one group in one task."""
        keys = column_arguments(cols, self.schema, "keyBy")
        if not keys and numPartitions not in (None, 1):
            raise PlanError(f"keyBy without columns is one group in one partition, not in {numPartitions}")
        spec = hash_exchange(self.schema, keys) if keys else exchange("to_one")
        return KeyedStream(self, keys, spec, _choice("keyBy", numPartitions if keys else 1, mode, service))

    groupBy = keyBy

    def rebalance(
        self, numPartitions: int | None = None, mode: str | None = None, service: str | None = None
    ) -> Stream:
        """Spread rows evenly over all consumers."""
        return self.exchanged(exchange("rebalance"), _choice("rebalance", numPartitions, mode, service))

    def rescale(
        self, numPartitions: int | None = None, mode: str | None = None, service: str | None = None
    ) -> Stream:
        """Spread rows evenly over a few consumers for each producer, with few connections."""
        return self.exchanged(exchange("rescale"), _choice("rescale", numPartitions, mode, service))

    def random(self, numPartitions: int | None = None, mode: str | None = None, service: str | None = None) -> Stream:
        """Send each row to a consumer drawn at random."""
        return self.exchanged(exchange("random"), _choice("random", numPartitions, mode, service))

    def broadcast(
        self, numPartitions: int | None = None, mode: str | None = None, service: str | None = None
    ) -> Stream:
        """Send all rows to every consumer."""
        return self.exchanged(exchange("broadcast"), _choice("broadcast", numPartitions, mode, service))

    def toOne(self, mode: str | None = None, service: str | None = None) -> KeyedStream:
        """Send all rows to one consumer; aggregations over it are over all rows."""
        return KeyedStream(self, (), exchange("to_one"), _choice("toOne", 1, mode, service))

    def partitionCustom(
        self,
        func: Callable[[pa.RecordBatch], Any],
        numPartitions: int,
        mode: str | None = None,
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
        mode: str | None = None,
        service: str | None = None,
    ) -> Stream:
        """A global order, by sampled ranges: no row of a partition comes behind one of the next.

        `ascending` is for all columns, or a list with one for each. `nulls` is `first` or `last`; left out, nulls are
        first where it ascends and last where it descends, as in Spark. Equal keys are never in two partitions.
        """
        columns = column_arguments(cols, self.schema, "sortBy")
        keys = sort_keys(columns, self.schema, ascending, nulls)
        return sorted_stream(self, keys, _choice("sortBy", numPartitions, mode, service))

    def union(self, *others: Stream) -> Stream:
        """The rows of all; the columns' names and types must be the same."""
        branches = list(self.branches)
        session = self.session
        for other in others:
            if not isinstance(other, Stream):
                raise TypeError(f"union takes streams, not {type(other).__name__}: see penstock.fromDataFrame")
            _check_same_schema(self.schema, other.schema)
            branches += other.branches
            session = session if session is not None else other.session
        if len({id(branch) for branch in branches}) != len(branches):
            raise PlanError(
                "a union whose branches are the same stream is not possible: its one stage would have to feed "
                "both sides; read the source twice, or write the stream out first with toDF()"
            )
        return Stream(tuple(branches), session)

    def toDF(self) -> Any:
        """An ordinary Spark DataFrame; the job runs when an action reads it."""
        session = self._require_session("toDF")
        from penstock.spark.checks import refuse_what_cannot_travel
        from penstock.spark.runtime import SparkRuntime

        runtime = SparkRuntime.of(session)
        settings = runtime.settings()
        outline = PersistedReading(runtime, settings).outline(self.branches)
        refuse_what_cannot_travel(plan_job(outline, settings, PLANNING_SLOTS).graph)

        def build(user: Any) -> Any:
            made = PersistedReading(runtime, settings, user).plan_or_made(self.branches)
            return (made.graph, made.dataframes) if isinstance(made, Plan) else made

        return runtime.dataframe(build, self.schema, settings)

    def run(self) -> Any:
        """Run the job now and drop its output; gives its JobResult."""
        session = self._require_session("run")
        from penstock.spark.runtime import SparkRuntime

        runtime = SparkRuntime.of(session)
        settings = runtime.settings()
        plan = PersistedReading(runtime, settings).plan(self.branches, keep=False)
        return runtime.run(plan.graph, cast("Any", plan.dataframes), settings)

    def persist(self) -> Self:
        """Keep the rows once an action has made them, for all later ones until `unpersist`; gives this stream.

        Nothing runs here. See `penstock.datasets` for what is kept.
        """
        persist_steps(self.branches, self._runtime("persist"))
        return self

    def unpersist(self) -> Self:
        """Release what `persist` keeps; gives this stream. Nothing happens where it is not persisted."""
        unpersist_steps(self.branches, self._runtime("unpersist"))
        return self

    def writeParquet(self, path: str | Path, compression: str = "zstd", overwrite: bool = False) -> ParquetWritten:
        """Run the job now and write its rows as Parquet files into a folder: all of them or none.

        `path` is a folder of this file system or any URI that `pyarrow.fs` knows. What is there already is refused,
        or with `overwrite` replaced once the job has succeeded.
        """
        return write_parquet(self, path, compression, overwrite)

    def explain(self) -> None:
        """Print the plan: stages, operators, exchanges and the task slots needed. Runs nothing."""
        if self.session is not None:
            runtime = self._runtime("explain")
            sys.stdout.write(PersistedReading(runtime, runtime.settings()).explain(self.branches))
        else:
            sys.stdout.write(explain_graph(self.plan(Settings(), PLANNING_SLOTS).graph))

    def plan(self, settings: Settings, slots: int, *, keep: bool = True) -> Plan:
        """The job graph of this stream; raises PlanError for what cannot run."""
        return plan_job(self.branches, settings, slots, keep=keep)

    def applied(self, operator: Operator, schema: pa.Schema) -> Stream:
        """This stream behind any operator; `schema` is what the operator gives."""
        return Stream(tuple(OperatorStep(branch, operator, schema) for branch in self.branches), self.session)

    def exchanged(self, spec: PartitionerSpec, choice: ExchangeChoice) -> Stream:
        """This stream behind any exchange; the verbs above are its named forms."""
        return self.over(ExchangeStep(self.branches, spec, choice))

    def over(self, step: Step) -> Stream:
        """A stream that ends in this step, with the session of this one."""
        return Stream((step,), self.session)

    def timezone(self) -> str:
        """The session's time zone, in which frames show zoned timestamps; UTC without a session."""
        if self.session is None:
            return "UTC"
        return str(self.session.conf.get("spark.sql.session.timeZone"))

    def _runtime(self, verb: str) -> SparkRuntime:
        from penstock.spark.runtime import SparkRuntime

        return SparkRuntime.of(self._require_session(verb))

    def _require_session(self, verb: str) -> Any:
        if self.session is None:
            raise PlanError(
                f"{verb} needs a Spark session and this stream's sources have none: "
                "run it with penstock.testing.local_runner.run_local, or start from fromDataFrame or readParquet"
            )
        return self.session


class KeyedStream(Stream):
    """A stream behind an exchange by key: aggregations and functions over groups."""

    __slots__ = ("_choice", "_keys", "_spec", "_upstream")

    def __init__(
        self, upstream: Stream, keys: tuple[str, ...], spec: PartitionerSpec, choice: ExchangeChoice
    ) -> None:
        super().__init__((ExchangeStep(upstream.branches, spec, choice),), upstream.session)
        self._upstream = upstream
        self._keys = keys
        self._spec = spec
        self._choice = choice

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns; none where all rows are one group."""
        return self._keys

    @property
    def partitions(self) -> int | None:
        """The number of partitions that was asked for."""
        return self._choice.partitions

    def input(self) -> CombineInput:
        """This stream as one side of a combination: what is ahead of its exchange, and the exchange."""
        return CombineInput(self._upstream.branches, self._spec, self._choice)

    def persist(self) -> Self:
        """As `Stream.persist`, of the rows ahead of the exchange, which each verb behind it sends in its own way."""
        self._upstream.persist()
        return self

    def unpersist(self) -> Self:
        """Undo `persist`."""
        self._upstream.unpersist()
        return self

    def agg(self, **aggregations: tuple[str, str]) -> Stream:
        """Aggregate each group: `agg(n=("word", "count"), total=("price", "sum"))`.

        Partial results are made before the exchange and merged behind it. `("*", "count")` counts rows.
        """
        wanted = [_aggregation(name, value) for name, value in aggregations.items()]
        if not wanted:
            raise PlanError("agg needs at least one result column, such as n=('word', 'count')")
        partial, final, plan = aggregate_pair(self._upstream.schema, self._keys, wanted)
        before = self._upstream.applied(partial, plan.state_schema)
        return before.exchanged(self._spec, self._choice).applied(final, plan.result_schema)

    def applyInArrow(self, func: Callable[..., Any], schema: Any) -> Stream:
        """Apply `func([key,] table) -> table`, or its iterator form, to each group."""
        group, declared = self._group(func, schema, "applyInArrow")
        return self.applied(GroupApplyInArrow(group), declared)

    def applyInPandas(self, func: Callable[..., Any], schema: Any) -> Stream:
        """Apply `func([key,] frame) -> frame`, or its iterator form, to each group."""
        require_pandas()
        group, declared = self._group(func, schema, "applyInPandas")
        return self.applied(GroupApplyInPandas(group, self.timezone()), declared)

    def cogroup(self, other: KeyedStream) -> CoGroupedStream:
        """Both streams' groups of the same key side by side: `.applyInArrow` and `.applyInPandas` take both."""
        return CoGroupedStream(self, other)

    def join(
        self, other: KeyedStream, how: str = "inner", on: Sequence[str | tuple[str, str]] | None = None
    ) -> Stream:
        """The equi-join on the keys: inner, left, right, full, left_semi or left_anti; null matches nothing.

        The result has the keys once, then this stream's other columns, then the other's. Where the key columns have
        different names, `on` must give the pairs, `[("mine", "theirs")]`, and the result has the names of this
        stream. The right side is collected, of a right join the left: let that be the smaller one.
        """
        return joined(self, other, how, on)

    def _group(self, func: object, schema: object, verb: str) -> tuple[GroupApply, pa.Schema]:
        refuse_ungroupable(self.schema, self._keys)
        declared = schema_argument(schema, verb)
        function = function_argument(func, verb)
        return GroupApply(self.schema, self._keys, function, group_form(function, verb), declared), declared


def _choice(verb: str, partitions: object, mode: str | None, service: str | None) -> ExchangeChoice:
    check_mode(mode, service)
    return ExchangeChoice(partitions_argument(partitions, verb), mode, service)


def _aggregation(name: str, value: object) -> Aggregation:
    if not (isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value)):
        raise PlanError(f"agg: {name} must be a pair (column name, function name), not {value!r}")
    return Aggregation(name, *value)


def _check_same_schema(one: pa.Schema, other: pa.Schema) -> None:
    if one.names == other.names and one.types == other.types:
        return
    shown = [", ".join(f"{field.name} {field.type}" for field in schema) for schema in (one, other)]
    raise SchemaError(f"union: names and types of columns must be the same; they are ({shown[0]}) and ({shown[1]})")
