# SPDX-License-Identifier: Apache-2.0
"""The work in Spark's Python process: a worker, which runs one subtask after the other, or a DataFrame's task.

Rules. A worker asks the JobMaster for a subtask, runs it, reports, and asks again until it is told that there is
nothing more to do. The end of a subtask is told to the JobMaster, not raised: Spark then neither retries it nor
prints a stack of its own. Only a host whose environment or JobMaster can't be reached raises; a worker whose
environment is lost later just ends, because the JobMaster knows and starts another one. Workers are an RDD's tasks,
which Spark starts without planning a query, and drain their input, so that Spark reuses their processes; the tasks
that read a DataFrame are a `mapInArrow` over it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.attachment.launch import EnvironmentLaunch
from penstock.errors import (
    EnvironmentLostError,
    FailureKind,
    JobCancelledError,
    PenstockError,
    StaleError,
    TaskCancelledError,
)
from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph
from penstock.job.core.ids import SparkJobId, TaskId, WorkerId, WorkerNumber
from penstock.link.calls import ShareWork
from penstock.link.master import AwaitProducers, RegisterTask, TaskEnd, TaskFinished
from penstock.machine.work_sign import WORK
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    PartitionId,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    TaskHost,
    load_service,
)
from penstock.spark.first_contact import Sent
from penstock.spark.kept_output import keeping_output
from penstock.spark.python_worker import settle_in
from penstock.spark.task_watch import TaskWatch
from penstock.task.allocation import warm_memory
from penstock.task.runner import SubtaskPlan, SubtaskReport, run_subtask

if TYPE_CHECKING:
    from penstock.attachment.attachment import Attachment

STATUS_DDL = "vertex int, subtask int, state string, error string"
_STATUS_SCHEMA = pa.schema(
    [("vertex", pa.int32()), ("subtask", pa.int32()), ("state", pa.string()), ("error", pa.string())]
)
LOST = "LOST"
"""The end of a task whose own environment is gone: the JobMaster knows."""
_UNHEARD = 3
"""The number of times that a task asks for the first time, while its environments are lost."""
_TEXT_LIMIT = 16 << 10
_QUIET = (StaleError, JobCancelledError, TaskCancelledError)
"""Endings that are no failures: the job goes on without this attempt, or is over."""

Batches = Iterator[pa.RecordBatch]
Status = tuple[int, int, str, str]
"""Vertex, subtask, state, error."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """All that a task of this Spark job needs; travels in Spark's closure.

    Tasks that are bound to their subtasks have a `vertex`, and those that read a DataFrame its rows' `schema`.
    """

    launch: EnvironmentLaunch
    job: str
    graph: JobGraph = field(repr=False)
    spark_job: SparkJobId
    vertex: int | None = None
    schema: pa.Schema | None = None


def worker_task(plan: TaskPlan) -> Callable[[Iterator[int]], Iterator[Status]]:
    """The function for an RDD's `mapPartitions`: each partition holds the number of one worker."""
    sent = Sent(plan)

    def penstock_worker(numbers: Iterator[int]) -> Iterator[Status]:
        (number,) = list(numbers)
        yield run_worker(sent.plan, number, _spark_attempt())

    return penstock_worker


def run_worker(plan: TaskPlan, number: int, attempt: int) -> Status:
    """Be worker `number` until there is nothing more to do; `attempt` tells its processes apart."""
    worker = WorkerId(plan.job, WorkerNumber(number), attempt)
    return (worker.to_attempt().vertex, number, *_run(plan, worker, None))


def lease_slot(plan: TaskPlan) -> tuple[str, str]:
    """Work for a job in a Spark task that waits for its end: the state and error of the last subtask.

    Raises what the job refuses this task with. A leased worker's number is its own choice: negative, so that it is
    none of the job's own workers', and no other Spark task's.
    """
    task = _spark_attempt()
    return _run(plan, WorkerId(plan.job, WorkerNumber(-1 - task), task), None)


def bound_task(plan: TaskPlan) -> Callable[[Iterator[int]], Iterator[Status]]:
    """As `worker_task`, for tasks that are one subtask each: the number is the subtask's."""
    sent = Sent(plan)

    def penstock_task(numbers: Iterator[int]) -> Iterator[Status]:
        (number,) = list(numbers)
        plan = sent.plan
        vertex = plan.vertex
        if vertex is None:
            raise PenstockError("a bound task was started without its stage")
        yield (vertex, number, *_run(plan, AttemptId(plan.job, vertex, number, _spark_attempt()), None))

    return penstock_task


def dataframe_task(plan: TaskPlan) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow` over a DataFrame."""
    sent = Sent(plan)

    def penstock_task(batches: Batches) -> Batches:
        from pyspark import TaskContext

        plan = sent.plan
        vertex, context = plan.vertex, TaskContext.get()
        if vertex is None or context is None:
            raise PenstockError("a Penstock task was run outside a Spark task, or without its DataFrame")
        subtask = context.partitionId()
        attempt = AttemptId(plan.job, vertex, subtask, _spark_attempt())
        state, error = _run(plan, attempt, _conformed(batches, plan.schema))
        columns = [_number(vertex), _number(subtask), _text(state), _text(error)]
        yield pa.RecordBatch.from_arrays(columns, schema=_STATUS_SCHEMA)

    return penstock_task


def _spark_attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise PenstockError("a Penstock task was run outside a Spark task")
    return int(context.taskAttemptId())


def _number(value: int) -> pa.Array:
    # Out of buffers, because `pa.array` of a list imports pandas: a fifth of a second of every new worker.
    return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(value.to_bytes(4, "little", signed=True))])


def _text(value: str) -> pa.Array:
    data = value.encode(errors="replace")
    offsets = (0).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def launch_here(launch: EnvironmentLaunch) -> EnvironmentLaunch:
    """The launch with this worker's scope: its host, or its executor's JVM."""
    scope = Settings.from_conf(launch.settings).environment.scope
    return dataclasses.replace(launch, scope_key=_executor_pid() if scope == "executor" else "")


def _run(plan: TaskPlan, task: TaskId, rows: Batches | None) -> tuple[str, str]:
    """Run what the JobMaster gives this task: its state and error at the end."""
    settle_in()
    identity = task.to_attempt() if isinstance(task, WorkerId) else task
    try:
        attachment, deployment = _begin(plan, identity)
    except _QUIET as refusal:
        return TaskEnd.CANCELED, str(refusal)
    try:
        outcome: tuple[str, str] = (TaskEnd.FINISHED, "")
        while True:
            if deployment is None:
                return outcome
            outcome = _run_deployed(plan, attachment, deployment, rows)
            if not isinstance(task, WorkerId):
                return outcome
            attachment.begin()
            deployment = _ask(attachment, identity, plan)
    except _QUIET as refusal:
        return TaskEnd.CANCELED, str(refusal)
    except EnvironmentLostError as lost:
        return LOST, str(lost)
    finally:
        attachment.close()


def _begin(plan: TaskPlan, identity: AttemptId) -> tuple[Attachment, TaskDeployment | None]:
    """Attach to the environment and ask for the first time.

    If the environment is lost meanwhile, the JobMaster may never have heard of this task, and would wait for it: so
    it asks again, beside the next environment. Raises where that is lost too, so that Spark knows.
    """
    from penstock.attachment.attachment import attach

    for attempts_left in reversed(range(_UNHEARD)):
        attachment = attach(launch_here(plan.launch), identity)
        try:
            attachment.begin()
            if WORK.descriptor >= 0:
                attachment.tell(ShareWork(WORK.descriptor), lambda _: None)
            return attachment, _ask(attachment, identity, plan)
        except BaseException as error:
            attachment.close()
            if not isinstance(error, EnvironmentLostError) or not attempts_left:
                raise
    raise PenstockError("a task was to ask no times")


def _ask(attachment: Attachment, identity: AttemptId, plan: TaskPlan) -> TaskDeployment | None:
    """The next deployment, or None: nothing more."""
    request = RegisterTask(identity, plan.spark_job.to_wire(), uses_data_plane=_uses_data_plane(plan.graph))
    wire: Any = attachment.ask(request).deployment
    return None if wire is None else TaskDeployment.from_wire(tuple(wire))


def _uses_data_plane(graph: JobGraph) -> bool:
    """Tell whether any service of a job needs the environments to serve each other."""
    services = {edge.service for edge in graph.edges}
    if graph.kept_by is not None:
        services.add(graph.kept_by.service)
    return any(load_service(service).capabilities.uses_data_plane for service in services)


def _run_deployed(
    plan: TaskPlan,
    attachment: Attachment,
    deployment: TaskDeployment,
    rows: Batches | None,
) -> tuple[str, str]:
    state, error, kind, lost = TaskEnd.FINISHED, "", FailureKind.CAUSE, None
    is_profiled = Settings.from_conf(plan.launch.settings).observe.profile
    report, watch = SubtaskReport({}, {}, {}), TaskWatch(is_profiled=is_profiled)
    attachment.beside = watch.figures
    try:
        with warm_memory(), contextlib.closing(watch):
            report = _run_kept(plan, attachment, deployment, rows)
    except TaskCancelledError as cancelled:
        state, error, kind = TaskEnd.CANCELED, str(cancelled), cancelled.failure
    except EnvironmentLostError as failure:
        lost = failure.partition
        if lost is None:
            raise  # it is this host's own
        state, error, kind = TaskEnd.FAILED, str(failure), failure.failure
    except BaseException as failure:  # noqa: BLE001 - users raise anything, SystemExit too
        from penstock.task.failure import failure_kind

        state, error, kind = TaskEnd.FAILED, error_text(failure), failure_kind(failure)
        lost = getattr(failure, "partition", None) if isinstance(failure, PenstockError) else None
    finally:
        WORK.tell("")
    unread = None if lost is None else PartitionId.from_wire(lost)
    figures = {**report.metrics, **watch.figures()}
    attempt, metrics = deployment.attempt, {name: float(value) for name, value in figures.items()}
    ended = TaskFinished(
        attempt,
        state,
        metrics,
        report.sizes,
        report.fingerprints,
        error,
        kind,
        unread,
        report.left,
        report.is_cut,
    )
    attachment.ask(ended)  # without a deadline: the driver may pause, and an environment that is gone ends the wait
    return state, error


def _run_kept(
    plan: TaskPlan,
    attachment: Attachment,
    deployment: TaskDeployment,
    rows: Batches | None,
) -> SubtaskReport:
    """Run the subtask; what it prints is kept, and the error that ends it."""
    settings, attempt = Settings.from_conf(plan.launch.settings), deployment.attempt
    if not settings.observe.keep_output:
        return _run_subtask(plan, attachment, deployment, rows)
    stage = plan.graph.vertex(attempt.vertex).name
    title = f"{plan.graph.name}: {stage} (stage {attempt.vertex}, subtask {attempt.subtask})"
    with keeping_output(plan.launch.application, settings.environment.directory, attempt, title) as kept:
        try:
            return _run_subtask(plan, attachment, deployment, rows)
        except BaseException as failure:
            if kept is not None and not isinstance(failure, (*_QUIET, EnvironmentLostError)):
                kept.write(f"{error_text(failure)}\n")
            raise


def _run_subtask(
    plan: TaskPlan,
    attachment: Attachment,
    deployment: TaskDeployment,
    rows: Batches | None,
) -> SubtaskReport:
    settings = Settings.from_conf(plan.launch.settings)
    environments = TaskEnvironments(environment_context(plan.launch, attachment, settings))
    subtask = SubtaskPlan(plan.graph, plan.graph.vertex(deployment.attempt.vertex), deployment)
    try:
        if plan.graph.streaming is not None:
            from penstock.spark.stream_task import run_streaming

            return run_streaming(subtask, plan.graph.streaming, attachment, environments.of, settings)
        return run_subtask(
            subtask,
            environments.of,
            AttachedControl(attachment, deployment.attempt),
            rows,
            settings,
        )
    finally:
        environments.close()


def environment_context(launch: EnvironmentLaunch, host: TaskHost, settings: Settings) -> ShuffleEnvironmentContext:
    """The context that the shuffle environments of one task are made with; they share its host."""
    return ShuffleEnvironmentContext(launch.application, launch.secret, settings, host)


class TaskEnvironments:
    """The shuffle environments one task uses, by service."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        self._context = context
        self._environments: dict[str, ShuffleEnvironment] = {}

    def of(self, service: str) -> ShuffleEnvironment:
        """The environment of a service, made on first use."""
        if service not in self._environments:
            self._environments[service] = load_service(service).create_shuffle_environment(self._context)
        return self._environments[service]

    def close(self) -> None:
        """Close all; idempotent."""
        for environment in self._environments.values():
            environment.close()
        self._environments.clear()


class AttachedControl:
    """The questions that a running task may ask, over its attachment."""

    def __init__(self, attachment: Attachment, attempt: AttemptId) -> None:
        self._attachment = attachment
        self._attempt = attempt

    @property
    def arrivals(self) -> int:
        """The number of things that have come for the task."""
        return self._attachment.arrivals

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Return when `arrivals` is not `seen`, or after so many seconds."""
        self._attachment.wait(seen, seconds)

    def await_producers(self) -> None:
        """Wait until the JobMaster has confirmed this task's producers; raises what it answers instead."""
        try:
            self._attachment.ask(AwaitProducers(self._attempt))
        except (JobCancelledError, StaleError) as error:
            raise TaskCancelledError(str(error)) from error

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError if the task was told to stop."""
        self._attachment.check_cancelled()

    def report(self, metrics: Mapping[str, float]) -> None:
        """Say how far the task is."""
        self._attachment.report(metrics)


def error_text(failure: BaseException) -> str:
    """The text for the user: the message of an error of ours, the traceback of his own code's."""
    if isinstance(failure, PenstockError) and not getattr(failure, "__notes__", None):
        return _short(str(failure))
    from penstock.task.failure import failure_text

    return _short(failure_text(failure).strip())


def _short(text: str) -> str:
    """Its begin and its end, as text that can travel: users' messages hold what is no UTF-8, and megabytes."""
    if len(text) > _TEXT_LIMIT:
        cut = len(text) - _TEXT_LIMIT
        text = f"{text[: _TEXT_LIMIT // 4]}\n... {cut:,} characters ...\n{text[-_TEXT_LIMIT * 3 // 4 :]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class DataFrameInputError(PenstockError):
    """Spark broke the task's input off: the cause is in Spark's own error."""

    failure = FailureKind.INPUT_CUT_OFF


def _unbroken(batches: Batches) -> Batches:
    try:
        yield from batches
    except Exception as error:
        raise DataFrameInputError(f"the DataFrame's rows broke off: {type(error).__name__}: {error}") from error


def _conformed(batches: Batches, schema: pa.Schema | None) -> Batches:
    batches = _unbroken(batches)
    if schema is None:
        return batches
    from penstock.spark.types import spark_batches

    return spark_batches(batches, schema)


def _executor_pid() -> str:
    """The executor's JVM: the nearest ancestor that runs `java`."""
    pid = os.getppid()
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if name == "java":
            return str(pid)
        pid = int(rest.split()[1])
    return str(os.getppid())
