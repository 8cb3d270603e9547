# SPDX-License-Identifier: Apache-2.0
"""Shows all jobs of an application while they run.

One thread, which is there while jobs are, asks the JobMaster how far they are and gives that to a display. Jobs that
take less than a moment are never shown. Spark's own bar would draw into the same lines, and knows a job of ours as
one stage of workers: it is kept silent meanwhile, and comes back by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

from pyspark import SparkContext

from penstock.errors import ControlError
from penstock.graph.job_graph import JobGraph
from penstock.job.core.result import JobProgress
from penstock.job.core.result import VertexProgress as Figures
from penstock.observe.displays import JobDisplay, display_here
from penstock.observe.progress import ProgressSnapshot, VertexProgress
from penstock.spark.running_jobs import Ask, RunningJobs

_POLL_SECONDS = 0.25
_FIRST_SECONDS = 0.5
"""Jobs are shown from then on, like Spark's stages."""
_SPARK_BAR = "spark.ui.showConsoleProgress"


class JobWatch:
    """Made once for an application; `look` whenever a job has been planned."""

    def __init__(
        self, jobs: RunningJobs, ask: Ask, find_display: Callable[[], JobDisplay | None] = display_here
    ) -> None:
        self._jobs = jobs
        self._ask = ask
        self._find_display = find_display
        self._silence: Callable[[], None] = _nothing
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    def silencing(self, context: SparkContext) -> JobWatch:
        """The same, and Spark's own bar draws nothing while jobs are shown."""
        self._silence = lambda: _silence_bar(context)
        return self

    def look(self) -> None:
        """There are jobs; returns at once. Nothing happens where there is nowhere to show them."""
        with self._lock:
            if self._thread is None and not self._end.is_set():
                display = self._find_display()
                if display is not None:
                    self._thread = threading.Thread(
                        target=self._watch, args=(display,), name="penstock-progress", daemon=True
                    )
                    self._thread.start()

    def close(self) -> None:
        """Show nothing any more; idempotent."""
        self._end.set()

    def _watch(self, display: JobDisplay) -> None:
        try:
            while not self._end.wait(_POLL_SECONDS):
                shown = self._snapshots()
                if shown:
                    self._silence()
                    display.show(shown)
                else:
                    display.clear()
                with self._lock:
                    if not shown and not self._jobs.all():
                        self._thread = None
                        return
        except ControlError:  # the JobMaster closes
            pass
        finally:
            with contextlib.suppress(ValueError, OSError):  # standard error may be gone by now
                display.clear()
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _snapshots(self) -> list[ProgressSnapshot]:
        running = self._jobs.progress(self._ask)
        return [snapshot_of(job.graph, progress) for job, progress in running if progress.seconds >= _FIRST_SECONDS]


def is_wanted(conf: Mapping[str, str], *, setting: bool) -> bool:
    """Tell whether the session's conf wants progress: our setting, and Spark's own if somebody has set it."""
    return setting and conf.get(_SPARK_BAR, "true").strip().lower() != "false"


def snapshot_of(graph: JobGraph, progress: JobProgress) -> ProgressSnapshot:
    """A job's progress as displays take it."""
    figures = {item.vertex: item for item in progress.vertices}
    vertices = tuple(
        VertexProgress(
            item.name,
            item.running,
            item.parallelism,
            int(item.metrics.get("rows_in", 0)),
            _share(graph, figures, item),
        )
        for item in progress.vertices
    )
    return ProgressSnapshot(progress.title, vertices, progress.seconds)


def _share(graph: JobGraph, figures: Mapping[int, Figures], item: Figures) -> float | None:
    """The share that is done: of the rows if all producers have ended and so all are known, else of the tasks."""
    done = item.finished / item.parallelism
    producers = [figures[edge.producer] for edge in graph.inputs_of(item.vertex) if not edge.is_broadcast]
    if producers and all(producer.finished >= producer.parallelism for producer in producers):
        rows = sum(producer.metrics.get("rows_out", 0.0) for producer in producers)
        if rows:
            done = max(done, min(1.0, item.metrics.get("rows_in", 0.0) / rows))
    return done if done or not item.running else None


def _silence_bar(context: SparkContext) -> None:
    # The call that ends a stage's bar also keeps the next one from being drawn for half a second.
    with contextlib.suppress(Exception):
        bar = context._jsc.sc().progressBar()  # noqa: SLF001 - PySpark has no public way to it
        if bar.isDefined():
            bar.get().finishAll()


def _nothing() -> None:
    pass
