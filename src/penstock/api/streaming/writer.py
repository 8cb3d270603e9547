# SPDX-License-Identifier: Apache-2.0
"""`stream.writeStream`: where a stream's rows go, and the start of its query."""

from __future__ import annotations

import functools
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from penstock.api.actions import require_session
from penstock.api.habits import INSTEAD_OF_WRITER
from penstock.api.lineage import ExchangeChoice, ExchangeStep, OperatorStep, Step
from penstock.api.plan import PLANNING_SLOTS, plan_query
from penstock.api.schemas import column_arguments
from penstock.api.streaming.approximate import approximate
from penstock.api.streaming.batches import BatchFunction, for_each_batch, refuse_without_slots
from penstock.api.streaming.in_flight import most_in_flight
from penstock.api.streaming.modes import COMPLETE, comes_by_key, in_mode, output_mode
from penstock.api.streaming.operating import operate
from penstock.api.streaming.options import TakesOptions
from penstock.api.streaming.places import one_spelling
from penstock.api.streaming.queries import streams
from penstock.api.streaming.query import QueryHooks, StartedQuery, StreamingQuery
from penstock.api.streaming.refusals import (
    is_streaming,
    refuse_batch,
    refuse_in,
    refuse_one_folder,
    refuse_scattered,
    warn_of_rows_again,
)
from penstock.api.streaming.sinks import SINKS, Made, SinkRequest, registered_sink
from penstock.api.streaming.tables import into_table
from penstock.api.streaming.triggers import QueryTrigger, trigger_of
from penstock.api.streaming.uids import with_uids
from penstock.api.streaming.whole_results import group_columns, refuse_sink
from penstock.errors import PlanError
from penstock.graph import JobGraph, Operator
from penstock.graph.streaming import StreamingOptions
from penstock.job.rescaling import WayToRescale
from penstock.operators.exchanges import exchange, hash_exchange
from penstock.settings import Settings, StreamingSettings
from penstock.stream.commit_sink import MESSAGES
from penstock.stream.noop import NoopSink
from penstock.stream.sinks import SinkOperator, StreamSink

if TYPE_CHECKING:
    from penstock.spark.runtime import SparkRuntime


class StreamWriter(TakesOptions):
    """A sink in the making: its format, the query's name and options. `start` starts the query."""

    def __init__(self, branches: tuple[Step, ...], session: Any) -> None:
        super().__init__("writeStream", INSTEAD_OF_WRITER)
        self._branches = branches
        self._session = session
        self._format: str | StreamSink = "parquet"
        self._name: str | None = None
        self._mode: str | None = None
        self._trigger = QueryTrigger()
        self._partition_by: tuple[str, ...] = ()
        self._table = ""
        self._function: BatchFunction | None = None

    def format(self, sink: str | StreamSink) -> Self:
        """`parquet`, `csv`, `json`, `memory`, `console`, `noop`, a registered data source, or a sink of your own.

        `spark.dataSource.register` makes PySpark's Python data sources known; yours is in `penstock.stream.sinks`.
        """
        if not isinstance(sink, str) and not hasattr(sink, "open"):
            raise TypeError(f"writeStream.format takes a name or a sink with open(), not {type(sink).__name__}")
        self._format = sink
        return self

    def queryName(self, queryName: str) -> Self:
        """The query's name, of which only one may run; with `memory` it is the table's."""
        self._name = queryName
        return self

    def outputMode(self, outputMode: str) -> Self:
        """`append`: each row once; `update`: of an aggregation a row for each key or window that has changed.

        `complete`: all groups of an aggregation by keys, with each checkpoint; of `memory`, `console` and `delta`.

        Left out it is what the query can do: `append` for windows with a watermark, `update` for any other
        aggregation, else the two are the same. An aggregation by keys alone in `append` is refused at `start`, as its
        rows change as long as the query runs.
        """
        self._mode = output_mode(outputMode)
        return self

    def partitionBy(self, *cols: str | list[str]) -> Self:
        """Files into folders named by the values of these columns, `day=2026-01-31/`, as Spark names them."""
        names = cols[0] if len(cols) == 1 and isinstance(cols[0], list) else cols
        self._partition_by = tuple(column_arguments(list(names), self._branches[0].schema, "partitionBy"))
        return self

    def foreachBatch(self, func: BatchFunction) -> Self:
        """Call a function of the driver's with the rows since the last checkpoint, a DataFrame, and their number.

        It is called once for each number, and again with the same number and rows only where the last call did not
        end well. An exception out of it ends the query. Its Spark jobs need task slots beside those of the query.
        """
        if not callable(func):
            raise TypeError(f"writeStream.foreachBatch takes a function of a DataFrame and a number, not {func!r}")
        self._function = func
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> Self:
        """Set the interval of checkpoints, which show rows, or with `availableNow` that the query ends by itself.

        `availableNow=True`: it reads what is there as it starts, takes a last checkpoint and stops; the next run with
        the same checkpointLocation goes on. `processingTime="10 seconds"`, like `continuous` and `realTime`: rows
        flow as they come, and appear with a checkpoint each so often. `once=True` is `availableNow=True`, and warns.
        """
        self._trigger = trigger_of(processingTime, once, continuous, availableNow, realTime)
        return self

    def start(self, path: str | None = None) -> StreamingQuery:
        """Start the query and return at once.

        Raises PlanError or SettingError for what can't run, SlotsError where there are too few task slots, and
        CheckpointError or OSError where checkpointLocation can't be used.
        """
        if not is_streaming(self._branches):
            raise PlanError(
                "writeStream is for streams of penstock.readStream: this one has writeParquet() and toDF()"
            )
        refuse_batch(self._branches)
        in_mode(self._branches, self._mode)
        self._trigger.check(self._branches, self._options)
        session = require_session(self._session, "writeStream")
        from penstock.spark.application import Application
        from penstock.spark.runtime import SparkRuntime

        runtime = SparkRuntime.of(session)
        settings = runtime.streaming_settings(self._options.as_settings())
        location = settings.streaming.checkpoint_location
        is_kept = bool(location)
        refuse_scattered(is_kept=is_kept, is_local=runtime.is_local)
        location = one_spelling(location) if is_kept else ""
        # An id that a later run finds again without reading anything.
        id_ = str(uuid.uuid5(uuid.NAMESPACE_URL, location) if is_kept else uuid.uuid4())
        streams(session).refuse_twice(id_, self._name)
        schema, by = self._branches[0].schema, self._partition_by
        request = SinkRequest(session, schema, self._options, self._name, path, id_, is_kept, by, self._groups())
        place = location or tempfile.mkdtemp(prefix="penstock-checkpoints-")
        try:
            sink, hooks = self._sink(request, place)
            refuse_one_folder(self._branches, sink, location)
            if not is_kept:
                is_for_looking = self._format in ("memory", "console") or self._function is not None
                warn_of_rows_again(self._title, sink, is_for_looking=is_for_looking)
                hooks = _removing(place, hooks)
            options = self._trigger.of(query_options(id_, self._name or id_, place, settings.streaming))
            query = self._start(runtime, settings, options, sink, hooks)
        except BaseException:
            if not is_kept:
                shutil.rmtree(place, ignore_errors=True)
            raise
        streams(session).add(query)
        Application.of(session.sparkContext).operated_by(functools.partial(operate, streams(session)), settings)
        return query

    def toTable(
        self,
        tableName: str,
        format: str | None = None,  # noqa: A002 - PySpark's name
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start the query into a table of the session's catalog, and make the table where it is not there yet.

        A table of files, of `parquet`, `csv` or `json`. Raises as `start`, and PlanError for another table.
        """
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(*([partitionBy] if isinstance(partitionBy, str) else partitionBy))
        if queryName is not None:
            self.queryName(queryName)
        if self._function is not None:
            raise PlanError("writeStream: foreachBatch is where the rows go, so there is no table: leave one out")
        self.options(**options)
        self._table = tableName
        return self.start()

    def _start(
        self,
        runtime: SparkRuntime,
        settings: Settings,
        options: StreamingOptions,
        sink: StreamSink,
        hooks: QueryHooks,
    ) -> StreamingQuery:
        from penstock.spark.user_thread import UserThread

        session = require_session(self._session, "writeStream")
        run, name, user, tell = str(uuid.uuid4()), self._name, UserThread.capture(session), streams(session).tell
        branches, cores, has_function = in_mode(self._branches, self._mode), runtime.shared_cores, self._function
        is_kept = bool(settings.streaming.checkpoint_location)
        showing = runtime.showing(settings)

        def planned(tasks: int | None = None, held: int = 0) -> JobGraph:
            """The job, where it can run; with a number of `tasks` in the place of these slots."""
            total, at_hand = runtime.total_slots(), runtime.slots_at_hand() + held
            graph = query_graph(branches, sink, settings, at_hand, options, is_kept=is_kept, cores=cores, tasks=tasks)
            runtime.refuse(graph, total if tasks is None else at_hand)
            if has_function is not None:
                refuse_without_slots(graph, at_hand, total)
            return graph

        def started(graph: JobGraph) -> StartedQuery:
            handle, master, save = runtime.start(graph, settings, user)
            most = most_in_flight(graph, settings.network, one_host=runtime.is_local) if options.unaligned else 0
            total, logs, way = (
                runtime.total_slots(),
                runtime.logs_of(handle.job, settings),
                WayToRescale(planned, started),
            )
            first = (options.query, run, name, graph, total, handle, master, hooks)
            return StartedQuery(*first, most, tell, showing, save, logs, way)

        return StreamingQuery(started(planned()))

    def _groups(self) -> tuple[str, ...] | None:
        """The columns that name the groups of a result that is to be whole; None where it is not."""
        if self._mode != COMPLETE:
            return None
        keys = group_columns(self._branches)
        named = self._format.lower() if isinstance(self._format, str) else self._format.name
        refuse_sink("foreachBatch" if self._function is not None else "toTable" if self._table else named, keys)
        return keys

    @property
    def _title(self) -> str:
        return "the query" if self._name is None else f"query {self._name}"

    def _sink(self, request: SinkRequest, location: str) -> Made:
        if self._function is not None:
            return for_each_batch(self._function, request, location)
        if self._table:
            return into_table(self._table, self._format, request)
        if not isinstance(self._format, str):
            request.refuse_others(self._format.name)
            return self._format, QueryHooks()
        make: Callable[[SinkRequest], Made] | None = SINKS.get(self._format.lower())
        return registered_sink(self._format, request) if make is None else make(request)


def query_options(id_: str, name: str, location: str, streaming: StreamingSettings) -> StreamingOptions:
    """The options of a query, out of the settings."""
    return StreamingOptions(
        id_,
        name,
        location,
        interval=streaming.checkpoint_interval or None,
        timeout=streaming.checkpoint_timeout,
        min_pause=streaming.min_pause,
        max_concurrent=streaming.max_concurrent_checkpoints,
        tolerable_failures=streaming.tolerable_failed_checkpoints,
        retained=streaming.retained_checkpoints,
        consistency=streaming.consistency,
        recovery=streaming.recovery,
        buffer_timeout=streaming.buffer_timeout,
        unaligned=streaming.unaligned,
        aligned_timeout=streaming.aligned_checkpoint_timeout,
        recover_without_in_flight=streaming.recover_without_in_flight,
        rescale_by_function=streaming.rescale_by_function,
        persist_in_flight=streaming.persist_in_flight,
        savepoint=one_spelling(streaming.savepoint) if streaming.savepoint else "",
    )


def sketched_query(branches: tuple[Step, ...], session: Any) -> JobGraph:
    """The job of the query that `start` would begin now, without its sink."""
    slots, cores, settings = PLANNING_SLOTS, None, Settings()
    if session is not None:
        from penstock.spark.runtime import SparkRuntime

        runtime = SparkRuntime.of(session)
        slots, cores, settings = runtime.slots_at_hand(), runtime.shared_cores, runtime.settings()
    options = query_options("", "(the query's name)", "", settings.streaming)
    return query_graph(in_mode(branches, None), _AnySink(), settings, slots, options, cores=cores)


class _AnySink(NoopSink):
    """Stands for the sink that `writeStream` will name."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "(the sink of writeStream)"


def query_graph(
    branches: tuple[Step, ...],
    sink: StreamSink,
    settings: Settings,
    slots: int,
    options: StreamingOptions,
    *,
    is_kept: bool = False,
    cores: int | None = None,
    tasks: int | None = None,
) -> JobGraph:
    """The job of a query, checked; raises PlanError for what can't run as one.

    If no argument says how many tasks there are, one slot is left to jobs that read what the query writes, and
    a stage has no more of them than these `cores`, which all tasks share. `is_kept`: a later run may go on from its
    checkpoints. With a number of `tasks` each stage that may have any number has that one.
    """
    refuse_batch(branches)
    last = branches[0]
    if len(branches) > 1:  # one stage writes, so that its subtasks' numbers are the writers' own
        last = ExchangeStep(branches, exchange("rebalance"), ExchangeChoice())
    keys = getattr(sink, "keys", ())
    if keys and not comes_by_key(last, keys):
        last = ExchangeStep((last,), hash_exchange(last.schema, keys, spark_compatible=True), ExchangeChoice())
    writing: Operator | None = getattr(sink, "writing", None)
    if writing is not None:  # its messages come together in one task, which commits them
        last = ExchangeStep((OperatorStep(last, writing, MESSAGES),), exchange("to_one"), ExchangeChoice(1))
    written = OperatorStep(last, SinkOperator(sink), last.schema)
    graph = plan_query((written,), settings, slots, options, cores, tasks)
    if sum(vertex.slots for vertex in graph.vertices) >= slots > len(graph.vertices):
        graph = plan_query((written,), settings, slots - 1, options, cores, tasks)
    refuse_in(graph)
    if options.restarts_alone:
        graph = approximate(graph, sink, available_now=options.available_now)
    return with_uids(_pinned(graph, options), is_kept=is_kept)


def _pinned(graph: JobGraph, options: StreamingOptions) -> JobGraph:
    """With sources as all tasks of the run are to see them."""
    for vertex in graph.vertices:
        if options.available_now and vertex.source is not None:
            vertex = replace(vertex, source=vertex.source.available_now())  # type: ignore[attr-defined]  # noqa: PLW2901
            graph = graph.with_vertex(vertex)
        pinned = getattr(vertex.source, "pinned", None)
        if pinned is not None:
            graph = graph.with_vertex(replace(vertex, source=pinned()))
    return graph


def _removing(location: str, hooks: QueryHooks) -> QueryHooks:
    """A query that no later run can go on with leaves no checkpoints."""

    def ended() -> None:
        hooks.ended()
        shutil.rmtree(location, ignore_errors=True)

    return replace(hooks, ended=ended)
