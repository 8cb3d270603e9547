# SPDX-License-Identifier: Apache-2.0
"""Runs workers and the tasks that read a DataFrame as Spark jobs: one for the workers of a launch, one per DataFrame.

Each is collected on a thread of its own; a task gives one small status row. The workers are submitted first, so
that under FIFO a DataFrame's own stages never take the slots of the tasks that wait for its rows. All jobs of one
of ours carry the tag `penstock-<job>` beside what the user's thread had, and one of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import PenstockError
from penstock.graph.job_graph import JobGraph
from penstock.job.core.events import SparkJobReturned
from penstock.job.core.ids import SparkJob, SparkJobId
from penstock.job.launcher import LaunchRequest
from penstock.spark.checks import python_hint, worker_hint
from penstock.spark.dataframe_actions import looker, unseen
from penstock.spark.frame_failures import note
from penstock.spark.task_errors import error_of_task
from penstock.spark.user_thread import UserThread

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.005
_ORDER_SECONDS = 5.0
_CANCELLED = ("SPARK_JOB_CANCELLED", "OPERATION_CANCELED", "cancelled because SparkContext was shut down")
_ERROR_LIMIT = 8000
_CANCEL_SECONDS = 30.0
_CANCEL_AGAIN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class SparkPayload:
    """The needs of this launcher from a submission.

    `workers` makes the tasks of workers; `dataframes` are those of each DataFrame for its first Spark job, planned
    before the job took any slot; `bound` makes those of any bound vertex for a Spark job, by the plan as it is then;
    `user` and `session` are the user's.
    """

    workers: Callable[[JobGraph, SparkJob], RDD[Any]]
    dataframes: Mapping[int, DataFrame]
    bound: Callable[[JobGraph, SparkJobId, int], DataFrame | RDD[Any]]
    user: UserThread
    session: SparkSession

    def tasks(self, graph: JobGraph, launched: SparkJob) -> DataFrame | RDD[Any]:
        """The tasks of a Spark job; each gives a status row."""
        if launched.vertex is None:
            return self.workers(graph, launched)
        planned = self.dataframes.get(launched.vertex) if launched.is_first else None
        return self.bound(graph, launched.id, launched.vertex) if planned is None else planned


class SparkLauncher:
    """A `Launcher` over one SparkContext."""

    def __init__(self, context: SparkContext) -> None:
        self.page = ""
        """The address of the web page, where there is one: Spark's descriptions name it, without its token."""
        self._context = context
        self._lock = threading.Condition()
        self._running: dict[str, set[SparkJobId]] = {}
        self._cancelled: set[str] = set()
        """Tags of which nothing is to run any more."""

    @property
    def is_stopped(self) -> bool:
        """True if the SparkContext was stopped."""
        return self._context._jsc is None  # noqa: SLF001 - how PySpark itself tells

    def launch(self, request: LaunchRequest) -> None:
        """Start the Spark jobs; returns at once."""
        payload = request.submission.payload
        if not isinstance(payload, SparkPayload):
            raise TypeError("the submission has no Spark payload")
        job = request.submission.job
        with self._lock:
            self._running.setdefault(job, set()).update(launched.id for launched in request.spark_jobs)
        submitted = threading.Event()
        if all(launched.vertex is not None for launched in request.spark_jobs):
            submitted.set()
        for launched in request.spark_jobs:
            work = _SparkJobWork(self, request, launched, payload, submitted)
            threading.Thread(target=work.run, name=f"penstock-{job}-{launched.id}", daemon=True).start()

    def cancel(self, job: str, spark_job: SparkJobId | None = None) -> None:
        """Cancel what is left of a job's Spark jobs, or of one, and what comes a moment later; blocks meanwhile."""
        tag = tag_of(job, spark_job)
        with self._lock:
            if not self._is_running(job, spark_job):
                return
            self._cancelled.add(tag)
        deadline = time.monotonic() + _CANCEL_SECONDS
        while time.monotonic() < deadline:
            with self._lock:
                if not self._is_running(job, spark_job):
                    return
            try:
                self._context.cancelJobsWithTag(tag)
            except Exception:  # noqa: BLE001 - a stopped context has cancelled them already
                _LOG.debug("the Spark jobs of %s could not be cancelled", job, exc_info=True)
                return
            time.sleep(_CANCEL_AGAIN_SECONDS)

    def is_cancelled(self, job: str, spark_job: SparkJobId) -> bool:
        """Tell whether a Spark job is not to run any more."""
        with self._lock:
            return not self._cancelled.isdisjoint((tag_of(job), tag_of(job, spark_job)))

    def _is_running(self, job: str, spark_job: SparkJobId | None) -> bool:
        running = self._running.get(job, set())
        return bool(running) if spark_job is None else spark_job in running

    def jobs(self) -> tuple[str, ...]:
        """Our jobs of which Spark jobs are left."""
        with self._lock:
            return tuple(self._running)

    def wait(self, seconds: float, jobs: Collection[str]) -> None:
        """Wait until these have no Spark job left, for so long at most: workers end a moment after their job."""
        with self._lock:
            self._lock.wait_for(lambda: self._running.keys().isdisjoint(jobs), seconds)

    def close(self) -> None:
        """Forget everything; idempotent."""
        with self._lock:
            self._running.clear()

    def returned(self, job: str, spark_job: SparkJobId) -> None:
        """One Spark job of a job is over."""
        with self._lock:
            running = self._running.get(job, set())
            running.discard(spark_job)
            self._cancelled.discard(tag_of(job, spark_job))
            if not running:
                self._running.pop(job, None)
                self._cancelled.discard(tag_of(job))
                self._lock.notify_all()


@dataclass(frozen=True, slots=True)
class _SparkJobWork:
    launcher: SparkLauncher
    request: LaunchRequest
    launched: SparkJob
    payload: SparkPayload
    workers_submitted: threading.Event

    def run(self) -> None:
        """Run one Spark job and tell how it went."""
        job, error, cancelled, task_error = self.request.submission.job, "it did not return", False, ""
        try:
            self._run()
            error = ""
        except Exception as failure:  # noqa: BLE001 - whatever Spark raises is the job's error
            error, cancelled = self._said(failure)
            if self.launched.vertex is not None and looker(self.payload.session) is not None:
                note(error, failure)
            error += python_hint(error) + worker_hint(error, self.payload.session.sparkContext.master)
            if self.launcher.is_stopped:  # all that Spark raises then follows from it, and trying again can't help
                error, cancelled = "its SparkSession was stopped", True
            elif self.launched.vertex is not None:
                task_error = error_of_task(self.payload.session.sparkContext, tag_of(job, self.launched.id))
        finally:
            self.workers_submitted.set()
            self.launcher.returned(job, self.launched.id)
            self.request.returned(SparkJobReturned(job, self.launched.id, error or None, cancelled, task_error))

    @staticmethod
    def _said(failure: Exception) -> tuple[str, bool]:
        """Spark's words, and whether it was cancelled."""
        try:
            return error_text(failure), any(word in str(failure) for word in _CANCELLED)
        except Exception as unread:  # noqa: BLE001 - the words are in Spark's JVM, which may be gone
            return f"{type(failure).__name__}, of which Spark does not say more: {unread!r}", False

    def _run(self) -> None:
        submission = self.request.submission
        spark = self.payload.session
        self.payload.user.apply(spark)
        spark.sparkContext.addJobTag(tag_of(submission.job))
        spark.sparkContext.setJobDescription(self._description())
        spark.sparkContext.addJobTag(tag_of(submission.job, self.launched.id))
        if self.launched.vertex is None:
            self._announce_when_active(spark)
        else:
            self.workers_submitted.wait(_ORDER_SECONDS)
        if self.launcher.is_cancelled(submission.job, self.launched.id):
            raise PenstockError(f"{_CANCELLED[0]}: cancelled before it was submitted")
        with unseen():
            self.payload.tasks(self.request.graph, self.launched).collect()

    def _description(self) -> str:
        submission, place = self.request.submission, self.payload.user.place
        link = f", see {self.launcher.page}?job={submission.job}" if self.launcher.page else ""
        return f"Penstock {submission.graph.name} ({submission.job})" + (f" at {place}" if place else "") + link

    def _announce_when_active(self, spark: SparkSession) -> None:
        if len(self.request.spark_jobs) > 1:
            name = f"penstock-{self.request.submission.job}-watch"
            threading.Thread(target=self._watch, args=(spark,), name=name, daemon=True).start()

    def _watch(self, spark: SparkSession) -> None:
        tracker = spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 - by tag it is not public in PySpark
        tag = tag_of(self.request.submission.job, self.launched.id)
        deadline = time.monotonic() + _ORDER_SECONDS
        try:
            while not self.workers_submitted.is_set() and time.monotonic() < deadline:
                if len(tracker.getJobIdsForTag(tag)):
                    break
                time.sleep(_POLL_SECONDS)
        except Exception:  # noqa: BLE001 - without the order the job still runs
            _LOG.debug("could not watch for the range job", exc_info=True)
        finally:
            self.workers_submitted.set()


def tag_of(job: str, spark_job: SparkJobId | None = None) -> str:
    """The tag that our Spark jobs of one job carry, or the one of one of them."""
    return f"penstock-{job}" if spark_job is None else f"penstock-{job}-{spark_job}"


def error_text(failure: Exception) -> str:
    """Spark's message without the JVM's stack."""
    java = getattr(failure, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(failure)
    text = text.partition("\n\nDriver stacktrace:")[0].partition("\nJVM stacktrace:")[0].strip()
    return text[:_ERROR_LIMIT] or type(failure).__name__
