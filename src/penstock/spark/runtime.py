# SPDX-License-Identifier: Apache-2.0
"""Penstock on one SparkSession, and the two ways to run a job on it.

`run` runs a job now, and `finished` gives what it left too; `dataframe` gives a lazy DataFrame whose first action
runs it. Job group, tags and pool are those of the thread and moment of the call. `application` has the part that the
sessions of one SparkContext share.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from penstock.errors import (
    ControlError,
    JobCancelledError,
    JobError,
    PenstockError,
    SettingError,
    SlotsError,
)
from penstock.graph.job_graph import JobGraph
from penstock.graph.restoring import ended_sources
from penstock.job.core.ids import SparkJob, SparkJobId, SparkJobKind
from penstock.job.core.result import FinishedJob, JobProgress, JobResult
from penstock.job.last_savepoint import Save
from penstock.job.launcher import Rerun, Submission
from penstock.job.query_storage import QueryStorage, StageNames
from penstock.job.replanning import Replanning
from penstock.job.results.named import NamedResult
from penstock.job.results.result_core import MadeResult
from penstock.job.shell.master import JobHandle, JobMaster
from penstock.machine.memory import machine_memory
from penstock.settings import PREFIX, RestartSettings, Settings
from penstock.shuffle import load_service
from penstock.spark.application import Application
from penstock.spark.checks import (
    refuse_conf,
    refuse_connect,
    refuse_plain_text,
    refuse_stopped,
    refuse_what_cannot_travel,
)
from penstock.spark.collected import CollectedRows
from penstock.spark.datasets import HeldResult, PersistedResults
from penstock.spark.function_errors import as_function_errors
from penstock.spark.hints import hint_parquet
from penstock.spark.job_watch import Frame, is_wanted
from penstock.spark.kept_output import kept_output
from penstock.spark.launcher import SparkPayload, error_text
from penstock.spark.names import place_names
from penstock.spark.planning import plan_scans
from penstock.spark.profiles import profile_of, with_slots
from penstock.spark.result_access import pack_plan
from penstock.spark.result_reader import PersistedSource, read_partitions, reading
from penstock.spark.result_scan import LazyResult, result_frame
from penstock.spark.results_in_use import ResultsInUse
from penstock.spark.shared_workers import in_shared_workers
from penstock.spark.shuffle_service import with_shuffle_service
from penstock.spark.slots import (
    certain_slots,
    environments_now,
    is_local,
    naming_holders,
    refuse_what_cannot_fit,
    total_slots,
)
from penstock.spark.task import STATUS_DDL, Status, TaskPlan, bound_task, dataframe_task, worker_task
from penstock.spark.types import arrow_schema, struct_type
from penstock.spark.user_thread import UserThread

if TYPE_CHECKING:
    from penstock.web.page import WebPage
    from penstock.web.store import JobStore

Plan = tuple[JobGraph, dict[int, DataFrame]]
Planner = Callable[[], Plan]
"""Plans a job for the slots that there are now."""
Build = Callable[[UserThread], Plan | MadeResult]
"""Plans a job, or gives what was made before, on behalf of the thread that asked for the DataFrame."""
OnProgress = Callable[[JobProgress], None]

STREAMING_RESTARTS = RestartSettings(
    "exponential", attempts=1 << 62, delay=0.1, max_delay=60.0, reset_after=60.0, user_errors=3
)
"""The restart settings of a streaming query if no setting says any."""
_LOG = logging.getLogger(__name__)
_PROGRESS_SECONDS = 0.25
_SEPARATOR = "\x01"
_ARROW = " -> "
"""The arrow in Scala's text for a pair of a map."""


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
        refuse_stopped(spark)
        return cls(spark)

    def settings(self) -> Settings:
        """The settings in the session's conf; unknown keys are refused, and what Penstock can't run under."""
        conf = session_conf(self._spark)
        settings = Settings.from_conf({key: value for key, value in conf.items() if key.startswith(PREFIX)})
        load_service(settings.shuffle.service)
        refuse_conf(conf, settings.shuffle.service)
        refuse_plain_text(conf, settings)
        return with_shuffle_service(self._context, conf, settings)

    def page(self) -> WebPage:
        """The web page of the application; raises SettingError where it can't be opened."""
        return self._application.page(self.settings())

    @contextlib.contextmanager
    def recorded(self) -> Iterator[JobStore]:
        """The jobs of a block, as a page shows them."""
        from penstock.web.store import JobStore

        master, store = self._application.master(self.settings()), JobStore()
        master.tell_jobs(store, store.look)
        try:
            yield store
        finally:
            with contextlib.suppress(ControlError):
                master.tell_no_more(store)

    @property
    def is_local(self) -> bool:
        """True if all tasks run on this host."""
        return is_local(self._context)

    def total_slots(self) -> int:
        """The application's task slots; waits for executors to register."""
        return total_slots(self._context, self.settings().job.slots_timeout)

    @property
    def shared_cores(self) -> int | None:
        """The cores that all tasks share, where the session is on this machine alone; None elsewhere."""
        return len(os.sched_getaffinity(0)) if self.is_local else None

    def slots_at_hand(self) -> int:
        """Those that no streaming query keeps, at least one: what a job is planned for that starts now."""
        return max(1, self.total_slots() - self._application.slots_of_queries())

    def certain_slots(self) -> int | None:
        """The task slots that the application will have, without waiting; None if the conf does not tell."""
        return certain_slots(self._context)

    def buffers(self, settings: Settings) -> int | None:
        """The network buffers of the application's environments together, at least; None where that is not known.

        On a cluster each environment has what the setting says, or else no less than the default's lower bound; how
        many there will be is known once executors have registered.
        """
        network = settings.network
        if is_local(self._context):
            return network.memory_on(machine_memory()) // network.segment_size
        count = environments_now(self._context, settings.environment.scope)
        return count * (network.memory_on(0) // network.segment_size) or None

    def refuse(self, graph: JobGraph, slots: int | None) -> None:
        """Refuse, before anything runs, a plan that can never run: SlotsError or PlanError."""
        if slots is not None:
            refuse_what_cannot_fit(graph, slots)
        refuse_what_cannot_travel(graph)

    def run(
        self,
        plan: Planner,
        settings: Settings | None = None,
        on_progress: OnProgress | None = None,
    ) -> JobResult:
        """Run a job to its end; raises its error. Ctrl-C cancels it first."""
        return self.finished(plan, settings or self.settings(), on_progress=on_progress).result

    def streaming_settings(self, options: Mapping[str, str]) -> Settings:
        """The settings of a streaming query: the session's, and over them these.

        If no setting says how it restarts, it does so for ever, after waits that grow; an error of its users' code is
        tried again three times between two checkpoints.
        """
        conf = {**session_conf(self._spark), **options}
        settings = Settings.from_conf({key: value for key, value in conf.items() if key.startswith(PREFIX)})
        settings = with_shuffle_service(self._context, conf, settings)
        self.settings()  # refuses what Penstock can't run under
        if any(key.startswith(f"{PREFIX}restart.") for key in conf):
            return settings
        return replace(settings, restart=STREAMING_RESTARTS)

    def showing(self, settings: Settings) -> Callable[[Frame], AbstractContextManager[None]]:
        """The way to show a query while a caller waits for its end; nothing where no progress is wanted."""
        if is_wanted(session_conf(self._spark), setting=settings.observe.progress):
            return self._application.watch.showing
        return lambda _: contextlib.nullcontext()

    def logs_of(self, job: str, settings: Settings) -> Callable[[int], dict[str, str]]:
        """The way to the output that is kept of a job on this host, by the number of lines of each file."""
        application, directory = self._application.name, settings.environment.directory
        return functools.partial(kept_output, application, directory, job)

    def start(self, graph: JobGraph, settings: Settings, user: UserThread) -> tuple[JobHandle, JobMaster, Save]:
        """Start a streaming query and return at once, with what writes savepoints of it.

        Its location is claimed last, when nothing else can refuse the query: another one may run there.
        """
        options = graph.streaming
        if options is None:
            raise SettingError(f"job {graph.name} is no streaming query")
        from penstock.stream.sources import begun_at, first_positions, sources_of  # not above: batch jobs have none
        from penstock.stream.steps import refuse_other_steps, refuse_rows_again

        agree, begin_anew = functools.partial(refuse_other_steps, graph), functools.partial(refuse_rows_again, graph)
        checkpoints = QueryStorage(options, agree, sources_of(graph), begin_anew, StageNames.of(graph))
        stages = {vertex.uid: vertex.parallelism for vertex in graph.vertices}
        checkpoints.look(stages)
        graph = begun_at(graph, checkpoints.first_positions(first_positions(graph)))
        submission = self._submission(graph, {}, settings, user)
        master = self._application.master(settings)
        checkpoints.claim(stages)
        try:
            handle = master.submit(replace(submission, again=None, checkpoints=checkpoints))
        except BaseException:
            checkpoints.withdraw()
            raise
        if (saved := checkpoints.beginning.saved) is not None:
            sources = {vertex.uid: vertex.name for vertex in graph.vertices if not graph.inputs_of(vertex.id)}
            for sentence in ended_sources(saved, sources):
                _LOG.warning("query %s: %s", options.name, sentence)
        self._application.query_started(handle, sum(vertex.slots for vertex in graph.vertices))
        return handle, master, checkpoints.save

    def finished(
        self,
        plan: Planner,
        settings: Settings,
        user: UserThread | None = None,
        *,
        lost: Callable[[], None] | None = None,
        on_progress: OnProgress | None = None,
    ) -> FinishedJob:
        """As `run`, with the partitions of the job's result, which stay until `release`.

        `lost` is called once, on the JobMaster's thread, should some of them be lost before. If slots go while the
        job runs, and it does not fit the rest, it is planned anew (`job.replanning`).
        """
        user = user or UserThread.capture(self._spark)
        replanning = Replanning()
        while True:
            began = time.monotonic()
            with replanning.naming_loss():
                submission = _timed(self._submission(*plan(), settings, user), began)
            with naming_holders(self._context):
                try:
                    return self._finished(replace(submission, may_wait=replanning.may_wait), lost, on_progress)
                except SlotsError as error:
                    replanning.again_after(error)

    def _finished(
        self, submission: Submission, lost: Callable[[], None] | None, on_progress: OnProgress | None
    ) -> FinishedJob:
        master = self._application.master(submission.settings)
        if lost is not None:
            master.watch_result(submission.job, lost)
        handle = master.submit(submission)
        try:
            with as_function_errors():
                return _wait(handle, on_progress)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                handle.cancel("interrupted")
                with contextlib.suppress(JobCancelledError):
                    handle.wait()
            if lost is not None:
                self.release(submission.job)
            raise
        finally:
            self._application.watch.settle()

    def rows(self, finished: FinishedJob, schema: pa.Schema, settings: Settings) -> list[tuple[Any, ...]]:
        """The rows of a job's result, in order; for small ones, because one process reads them all."""
        if not self.reads_results(settings):
            read = reading(finished.partitions, schema, self._application.launch(settings))
            return [
                tuple(row) for row in self._spark.range(0, 1, 1, 1).mapInArrow(read, struct_type(schema)).collect()
            ]
        batches = self._read(finished, schema, settings, None)
        return [row for batch in batches for row in zip(*(each.to_pylist() for each in batch.columns), strict=True)]

    def reads_results(self, settings: Settings) -> bool:
        """Tell whether this process can read results itself, because the environment that has them is on its host."""
        return self.is_local and settings.environment.scope == "host"

    def collected(
        self, finished: FinishedJob, schema: pa.Schema, settings: Settings, enough: int | None
    ) -> CollectedRows:
        """The rows of a job's result, or the first ones, at least `enough`.

        Only where `reads_results`, and where the types are those that `spark/collected` takes.
        """
        return CollectedRows(self._spark, struct_type(schema), self._read(finished, schema, settings, enough))

    def _read(
        self, finished: FinishedJob, schema: pa.Schema, settings: Settings, enough: int | None
    ) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        began = time.monotonic()
        read = read_partitions(finished.partitions, schema, self._application.launch(settings))
        with contextlib.closing(read):
            for batch in read:
                found.append(batch)
                if enough is not None and (enough := enough - batch.num_rows) <= 0:
                    break
        self._application.result_read(finished.result.job, time.monotonic() - began)
        return found

    def release(self, job: str) -> None:
        """Release the result of a finished job; nothing once the application is closed."""
        self._application.release_result(job)

    def keep_result(self, kept: NamedResult) -> NamedResult:
        """Have a service keep a result under its name; the result as it is found from now on. Blocks."""
        return self._application.master(self.settings()).keep_result(kept)

    def find_result(self, name: str, service: str) -> NamedResult | None:
        """A result that a service keeps under this name, or None. Blocks."""
        return self._application.master(self.settings()).find_result(name, service)

    @property
    def persisted(self) -> PersistedResults:
        """The persisted results of this application."""
        return self._application.persisted

    @property
    def results(self) -> ResultsInUse:
        """The lazy results of this application that can still be read."""
        return self._application.results

    def persisted_source(self, name: str, held: HeldResult, schema: pa.Schema, settings: Settings) -> PersistedSource:
        """A source that reads what is held."""
        wires = tuple(descriptor.to_wire() for descriptor in held.present)
        return PersistedSource(name, schema, wires, self._application.launch(settings))

    def dataframe(
        self, build: Build, schema: pa.Schema, settings: Settings | None = None, title: str = "a pipeline"
    ) -> DataFrame:
        """A lazy DataFrame over a job's result; `build` plans the job when an action first needs it."""
        settings = settings or self.settings()
        self._application.start_ahead(settings, session_conf(self._spark), plans_frames=True)
        user = UserThread.capture(self._spark)
        types = struct_type(schema)
        places = place_names(types.names)
        application = self._application
        result = application.new_result()
        application.master(settings).add_result(result.name, functools.partial(self._build, build, settings, user))
        launch = application.launch(settings)
        if places is None:
            lazy = LazyResult(result, title, schema, types, launch, application.open_result, application.reads)
            return result_frame(self._spark, lazy)
        by_place = StructType([StructField(n, f.dataType, f.nullable) for n, f in zip(places, types, strict=True)])
        lazy = LazyResult(result, title, schema, by_place, launch, application.open_result, application.reads)
        return result_frame(self._spark, lazy).toDF(*types.names)

    def close(self) -> None:
        """Stop what the sessions of this SparkContext share; idempotent."""
        self._application.close()

    def _build(self, build: Build, settings: Settings, user: UserThread) -> Submission | MadeResult:
        """Plan; what Spark raises meanwhile comes out with its reason, because only texts travel from here."""
        began = time.monotonic()
        try:
            made = build(user)
            return made if isinstance(made, MadeResult) else _timed(self._submission(*made, settings, user), began)
        except PenstockError:
            raise
        except Exception as error:
            raise JobError(f"the job could not be planned: {type(error).__name__}: {error_text(error)}") from error

    def _submission(
        self, graph: JobGraph, dataframes: Mapping[int, DataFrame], settings: Settings, user: UserThread
    ) -> Submission:
        missing = [v.name for v in graph.vertices if v.reads_dataframe and v.id not in dataframes]
        if missing:
            raise SettingError(f"job {graph.name}: no DataFrame was given for {', '.join(missing)}")
        refuse_what_cannot_travel(graph)
        conf = session_conf(self._spark)
        self._application.start_ahead(settings, conf, plans_frames=bool(dataframes))
        graph = with_slots(graph, self._context)
        master = self._application.master(settings)
        job = master.new_job()
        self._application.running.progress(master.job_progress)  # forgets what is over
        if graph.streaming is None:  # a query is not drawn or interrupted here: it has a handle
            self._application.running.add(job, graph)
        with self._application.running.planned(job):
            user.apply(self._spark)
            launch = self._application.launch(settings)
            if graph.streaming is None and is_wanted(conf, setting=settings.observe.progress):
                self._application.watch.look()
            sources = {vertex: _frame_source(frame, graph, vertex) for vertex, frame in dataframes.items()}

            def workers(planned: JobGraph, launched: SparkJob) -> RDD[Status]:
                numbers = self._context.parallelize(launched.workers, len(launched.workers))
                tasks = numbers.mapPartitions(worker_task(TaskPlan(launch, job, planned, launched.id)))
                return in_shared_workers(tasks, conf)

            def bound(planned: JobGraph, spark_job: SparkJobId, number: int) -> DataFrame | RDD[Status]:
                vertex = planned.vertex(number)
                profile = None if vertex.resources is None else profile_of(vertex.resources)
                if number in sources:
                    source, schema = sources[number]
                    plan = TaskPlan(launch, job, planned, spark_job, number, schema)
                    return source.mapInArrow(dataframe_task(plan), STATUS_DDL, profile=profile)
                numbers = self._context.parallelize(range(vertex.parallelism), vertex.parallelism)
                tasks = numbers.mapPartitions(bound_task(TaskPlan(launch, job, planned, spark_job, number)))
                return in_shared_workers(tasks if profile is None else tasks.withResources(profile), conf)

            first = {vertex: SparkJobId(SparkJobKind.DATAFRAME, vertex) for vertex in sources}
            frames = {
                vertex: cast("DataFrame", bound(graph, spark_job, vertex)) for vertex, spark_job in first.items()
            }
            for planned in frames.values():
                plan_scans(planned)
            slots = total_slots(self._context, settings.job.slots_timeout)
            payload = SparkPayload(workers, frames, bound, user, self._spark)
            again = functools.partial(self._again, dict(dataframes), settings, user)
            # A job that reads another job's partitions may find those gone too; planned anew, it makes them first.
            reads_persisted = any(isinstance(vertex.source, PersistedSource) for vertex in graph.vertices)
            anew = None if reads_persisted else again
            return Submission(job, graph, settings, slots, payload, anew, place=user.place)

    def _again(
        self, dataframes: Mapping[int, DataFrame], settings: Settings, user: UserThread, graph: JobGraph
    ) -> Rerun:
        """The same job under a new id, by this plan, and what a task packs out that leases it a slot."""
        submission = self._submission(graph, dataframes, settings, user)
        return Rerun(submission, pack_plan(self._application.launch(settings), submission.job, graph))


def _timed(submission: Submission, began: float) -> Submission:
    return replace(submission, planned=time.monotonic() - began)


def _frame_source(frame: DataFrame, graph: JobGraph, vertex: int) -> tuple[DataFrame, pa.Schema]:
    """A DataFrame as the tasks of a vertex read it, and the schema of their rows."""
    hint_parquet(frame)
    schema = arrow_schema(frame.schema)
    if not frame.columns:
        # PySpark loses the number of rows of batches without columns; the task drops this one again.
        frame = frame.selectExpr("true AS row")
    places = place_names(frame.columns)
    if places is not None:
        frame = frame.toDF(*places)
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
