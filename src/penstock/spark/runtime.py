# SPDX-License-Identifier: Apache-2.0
"""Penstock on one SparkSession, and the two ways to run a job on it.

`run` runs a job now; `dataframe` gives a lazy DataFrame whose first action runs it. Job group, tags and pool are
those of the thread and moment of the call. What the sessions of one SparkContext share is in `application`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.graph.job_graph import JobGraph
from penstock.job.events import RANGE_PART
from penstock.job.launcher import Submission
from penstock.job.master import JobHandle
from penstock.job.result import JobProgress, JobResult
from penstock.shuffle import Settings, load_service
from penstock.shuffle.errors import JobCancelledError, SettingError
from penstock.shuffle.settings import PREFIX
from penstock.spark.application import Application
from penstock.spark.checks import refuse_conf, refuse_connect, refuse_what_cannot_travel
from penstock.spark.datasource import NAME, TICKET, PenstockDataSource
from penstock.spark.hints import hint_parquet
from penstock.spark.launcher import SparkPayload
from penstock.spark.planning import plan_scans
from penstock.spark.result_files import ResultTicket
from penstock.spark.slots import total_slots
from penstock.spark.task import STATUS_DDL, TaskPlan, task_of
from penstock.spark.types import arrow_schema, struct_type
from penstock.spark.user_thread import UserThread

Plan = tuple[JobGraph, dict[int, DataFrame]]
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
        user = UserThread.capture(self._spark)
        submission = self._submission(graph, dataframes, settings, user)
        handle = self._application.master(settings).submit(submission)
        try:
            return _wait(handle, on_progress)
        except KeyboardInterrupt:
            handle.cancel("interrupted")
            with contextlib.suppress(JobCancelledError):
                handle.wait()
            raise

    def dataframe(self, build: Callable[[], Plan], schema: pa.Schema, settings: Settings | None = None) -> DataFrame:
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

    def _build(self, build: Callable[[], Plan], settings: Settings, user: UserThread) -> Submission:
        graph, dataframes = build()
        return self._submission(graph, dataframes, settings, user)

    def _submission(
        self, graph: JobGraph, dataframes: Mapping[int, DataFrame], settings: Settings, user: UserThread
    ) -> Submission:
        missing = [v.name for v in graph.vertices if v.reads_dataframe and v.id not in dataframes]
        if missing:
            raise SettingError(f"job {graph.name}: no DataFrame was given for {', '.join(missing)}")
        refuse_what_cannot_travel(graph)
        master = self._application.master(settings)
        job = master.new_job()
        user.apply(self._spark)
        parts = self._parts(job, graph, dataframes, settings)
        slots = total_slots(self._context, settings.job.slots_timeout)
        return Submission(job, graph, settings, slots, SparkPayload(parts, user))

    def _parts(
        self, job: str, graph: JobGraph, dataframes: Mapping[int, DataFrame], settings: Settings
    ) -> dict[int, DataFrame]:
        launch = self._application.launch(settings)
        parts: dict[int, DataFrame] = {}
        ranged = [v for v in graph.vertices if not v.reads_dataframe]
        table = tuple((v.id, subtask) for v in ranged for subtask in range(v.parallelism))
        if table:
            rows = self._spark.range(0, len(table), 1, len(table))
            parts[RANGE_PART] = rows.mapInArrow(task_of(TaskPlan(launch, job, graph, table)), STATUS_DDL)
        for vertex in graph.vertices:
            if vertex.reads_dataframe:
                frame = dataframes[vertex.id]
                hint_parquet(frame)
                schema = arrow_schema(frame.schema)
                if not frame.columns:
                    # PySpark loses the number of rows of batches without columns; the task drops this one again.
                    frame = frame.selectExpr("true AS row")
                plan = TaskPlan(launch, job, graph, dataframe_vertex=vertex.id, dataframe_schema=schema)
                part = frame.coalesce(vertex.parallelism).mapInArrow(task_of(plan), STATUS_DDL)
                plan_scans(part)
                parts[vertex.id] = part
        return parts

    def _register_format(self) -> None:
        if self._spark not in self._application.sessions:
            self._spark.dataSource.register(PenstockDataSource)
            self._application.sessions.add(self._spark)


def session_conf(spark: SparkSession) -> dict[str, str]:
    """The session's whole conf, the context's included.

    In one call: PySpark's own ways fetch key by key, which takes longer than a small job.
    """
    conf = spark._jsparkSession.sessionState().conf().getAllConfs()  # noqa: SLF001 - see above
    pairs = (pair.partition(_ARROW) for pair in conf.mkString(_SEPARATOR).split(_SEPARATOR))
    return {key: value for key, arrow, value in pairs if arrow}


def _wait(handle: JobHandle, on_progress: OnProgress | None) -> JobResult:
    # Short waits: a wait without limit in the main thread would keep Ctrl-C from getting through.
    while True:
        began = time.monotonic()
        try:
            return handle.wait(_PROGRESS_SECONDS).result
        except TimeoutError:
            if time.monotonic() - began < _PROGRESS_SECONDS / 2:
                raise
        progress = handle.progress() if on_progress is not None else None
        if on_progress is not None and progress is not None:
            on_progress(progress)
