# SPDX-License-Identifier: Apache-2.0
"""Penstock on one SparkSession, and the two ways to run a job on it.

`run` runs a job now, and `finished` gives what it left too; `dataframe` gives a lazy DataFrame whose first action
runs it. Job group, tags and pool are those of the thread and moment of the call. What the sessions of one
SparkContext share is in `application`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark import RDD, cloudpickle
from pyspark.sql import DataFrame, SparkSession

from penstock.graph.job_graph import JobGraph
from penstock.job.driver import FinishedJob
from penstock.job.events import LENT
from penstock.job.launcher import Rerun, Submission
from penstock.job.master import JobHandle
from penstock.job.parts import LaunchPart
from penstock.job.result import JobProgress, JobResult
from penstock.job.results import MadeResult
from penstock.shuffle import Settings, load_service
from penstock.shuffle.errors import JobCancelledError, SettingError
from penstock.shuffle.settings import PREFIX
from penstock.spark.application import Application
from penstock.spark.checks import refuse_conf, refuse_connect, refuse_what_cannot_travel
from penstock.spark.datasets import Held, PersistedResults
from penstock.spark.datasource import NAME, TICKET, PenstockDataSource
from penstock.spark.hints import hint_parquet
from penstock.spark.launcher import SparkPayload
from penstock.spark.planning import plan_scans
from penstock.spark.profiles import profile_of, with_slots
from penstock.spark.result_files import ResultTicket
from penstock.spark.result_reader import PersistedSource, reading
from penstock.spark.slots import total_slots
from penstock.spark.task import STATUS_DDL, Status, TaskPlan, bound_task, dataframe_task, worker_task
from penstock.spark.types import arrow_schema, struct_type
from penstock.spark.user_thread import UserThread

Plan = tuple[JobGraph, dict[int, DataFrame]]
Build = Callable[[UserThread], Plan | MadeResult]
"""Plans a job, or gives what was made before, on behalf of whoever asked for the DataFrame."""
OnProgress = Callable[[JobProgress], None]

_PROGRESS_SECONDS = 0.25
_SEPARATOR = "\x01"
_ARROW = " -> "
"""How Scala writes a pair of a map."""


class SparkRuntime:
    """Made by `of`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._application = Application.of(self._context)

    @classmethod
    def of(cls, spark: SparkSession) -> SparkRuntime:
        """The runtime of this session."""
        refuse_connect(spark)
        return cls(spark)

    def settings(self) -> Settings:
        """The settings in the session's conf; unknown keys are refused, and what Penstock can't run under."""
        conf = session_conf(self._spark)
        settings = Settings.from_conf({key: value for key, value in conf.items() if key.startswith(PREFIX)})
        load_service(settings.shuffle.service)
        refuse_conf(conf, settings.shuffle.service)
        return settings

    def total_slots(self) -> int:
        """The application's task slots; waits for executors to register."""
        return total_slots(self._context, self.settings().job.slots_timeout)

    def run(
        self,
        graph: JobGraph,
        dataframes: Mapping[int, DataFrame],
        settings: Settings | None = None,
        on_progress: OnProgress | None = None,
    ) -> JobResult:
        """Run a job to its end; raises its error. Ctrl-C cancels it first."""
        settings = settings or self.settings()
        return self.finished((graph, dict(dataframes)), settings, on_progress=on_progress).result

    def finished(
        self,
        plan: Plan,
        settings: Settings,
        user: UserThread | None = None,
        *,
        lost: Callable[[], None] | None = None,
        on_progress: OnProgress | None = None,
    ) -> FinishedJob:
        """As `run`, with the partitions of the job's result, which stay until `release`.

        `lost` is called once, on the JobMaster's thread, should some of them be lost before.
        """
        submission = self._submission(*plan, settings, user or UserThread.capture(self._spark))
        master = self._application.master(settings)
        if lost is not None:
            master.watch_result(submission.job, lost)
        handle = master.submit(submission)
        try:
            return _wait(handle, on_progress)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                handle.cancel("interrupted")
                with contextlib.suppress(JobCancelledError):
                    handle.wait()
            if lost is not None:
                self.release(submission.job)
            raise

    def rows(self, finished: FinishedJob, schema: pa.Schema, settings: Settings) -> list[tuple[Any, ...]]:
        """The rows of a job's result, in order; for small ones, because one Spark task reads them all."""
        read = reading(finished.partitions, schema, self._application.launch(settings))
        return [tuple(row) for row in self._spark.range(0, 1, 1, 1).mapInArrow(read, struct_type(schema)).collect()]

    def release(self, job: str) -> None:
        """Release the result of a finished job; nothing once the application is closed."""
        self._application.release_result(job)

    @property
    def persisted(self) -> PersistedResults:
        """The persisted results of this application."""
        return self._application.persisted

    def persisted_source(self, name: str, held: Held, schema: pa.Schema, settings: Settings) -> PersistedSource:
        """A source that reads what is held."""
        wires = tuple(descriptor.to_wire() for descriptor in held.present)
        return PersistedSource(name, schema, wires, self._application.launch(settings))

    def dataframe(self, build: Build, schema: pa.Schema, settings: Settings | None = None) -> DataFrame:
        """A lazy DataFrame over a job's result; `build` plans the job when an action first needs it."""
        settings = settings or self.settings()
        spark = self._spark
        user = UserThread.capture(spark)
        types = struct_type(schema)
        master = self._application.master(settings)
        result = self._application.new_result()
        master.add_result(result, functools.partial(self._build, build, settings, user))
        path = self._application.tickets.write(ResultTicket(result, self._application.launch(settings), schema))
        self._register_format()
        return spark.read.format(NAME).schema(types).option(TICKET, path).load()

    def close(self) -> None:
        """Stop what the sessions of this SparkContext share; idempotent."""
        self._application.close()

    def _build(self, build: Build, settings: Settings, user: UserThread) -> Submission | MadeResult:
        made = build(user)
        return made if isinstance(made, MadeResult) else self._submission(*made, settings, user)

    def _submission(
        self, graph: JobGraph, dataframes: Mapping[int, DataFrame], settings: Settings, user: UserThread
    ) -> Submission:
        missing = [v.name for v in graph.vertices if v.reads_dataframe and v.id not in dataframes]
        if missing:
            raise SettingError(f"job {graph.name}: no DataFrame was given for {', '.join(missing)}")
        refuse_what_cannot_travel(graph)
        graph = with_slots(graph, self._context)
        master = self._application.master(settings)
        job = master.new_job()
        user.apply(self._spark)
        launch = self._application.launch(settings)
        sources = {vertex: _frame_source(frame, graph, vertex) for vertex, frame in dataframes.items()}

        def workers(planned: JobGraph, part: LaunchPart) -> RDD[Status]:
            numbers = self._context.parallelize(part.workers, len(part.workers))
            return numbers.mapPartitions(worker_task(TaskPlan(launch, job, planned, part.part)))

        def bound(part: int, number: int) -> DataFrame | RDD[Status]:
            vertex = graph.vertex(number)
            profile = None if vertex.resources is None else profile_of(vertex.resources)
            if number in sources:
                source, schema = sources[number]
                plan = TaskPlan(launch, job, graph, part, number, schema)
                return source.mapInArrow(dataframe_task(plan), STATUS_DDL, profile=profile)
            numbers = self._context.parallelize(range(vertex.parallelism), vertex.parallelism)
            tasks = numbers.mapPartitions(bound_task(TaskPlan(launch, job, graph, part, number)))
            return tasks if profile is None else tasks.withResources(profile)

        frames = {vertex: cast("DataFrame", bound(vertex, vertex)) for vertex in sources}
        for planned in frames.values():
            plan_scans(planned)
        slots = total_slots(self._context, settings.job.slots_timeout)
        payload = SparkPayload(workers, frames, bound, user, self._spark)
        again = functools.partial(self._again, dict(dataframes), settings, user)
        # What reads another job's partitions may find those gone too; planned anew, it makes them first.
        reads_persisted = any(isinstance(vertex.source, PersistedSource) for vertex in graph.vertices)
        return Submission(job, graph, settings, slots, payload, None if reads_persisted else again)

    def _again(
        self, dataframes: Mapping[int, DataFrame], settings: Settings, user: UserThread, graph: JobGraph
    ) -> Rerun:
        """The same job under a new id, by this plan, and what a task packs out that lends it a slot."""
        submission = self._submission(graph, dataframes, settings, user)
        plan = TaskPlan(self._application.launch(settings), submission.job, graph, LENT)
        return Rerun(submission, cloudpickle.dumps(plan))

    def _register_format(self) -> None:
        if self._spark not in self._application.sessions:
            self._spark.dataSource.register(PenstockDataSource)
            self._application.sessions.add(self._spark)


def _frame_source(frame: DataFrame, graph: JobGraph, vertex: int) -> tuple[DataFrame, pa.Schema]:
    """A DataFrame as the tasks of a vertex read it, and the schema of their rows."""
    hint_parquet(frame)
    schema = arrow_schema(frame.schema)
    if not frame.columns:
        # PySpark loses the number of rows of batches without columns; the task drops this one again.
        frame = frame.selectExpr("true AS row")
    return frame.coalesce(graph.vertex(vertex).parallelism), schema


def session_conf(spark: SparkSession) -> dict[str, str]:
    """The session's whole conf, the context's included.

    In one call: PySpark's own ways fetch key by key, which takes longer than a small job.
    """
    conf = spark._jsparkSession.sessionState().conf().getAllConfs()  # noqa: SLF001 - see above
    pairs = (pair.partition(_ARROW) for pair in conf.mkString(_SEPARATOR).split(_SEPARATOR))
    return {key: value for key, arrow, value in pairs if arrow}


def _wait(handle: JobHandle, on_progress: OnProgress | None) -> FinishedJob:
    # Short waits: a wait without limit in the main thread would keep Ctrl-C from getting through.
    while True:
        began = time.monotonic()
        try:
            return handle.wait(_PROGRESS_SECONDS)
        except TimeoutError:
            if time.monotonic() - began < _PROGRESS_SECONDS / 2:
                raise
        progress = handle.progress() if on_progress is not None else None
        if on_progress is not None and progress is not None:
            on_progress(progress)
