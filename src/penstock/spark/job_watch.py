# SPDX-License-Identifier: Apache-2.0
"""Shows all jobs of an application while they run, and queries while a caller waits for their end.

One thread, which is there while jobs are, asks the JobMaster how far they are and gives that to a display. Jobs that
take less than a moment are never shown. One that was shown leaves its last frame, which is drawn before the action
that ran it returns: else a notebook would keep a frame of the middle. Spark's own bar would draw into the same lines,
and knows a job of ours as one stage of workers: it is kept silent meanwhile, and comes back by itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyspark import SparkContext

from penstock.errors import ControlError
from penstock.job.core.result import JobEnding, JobProgress
from penstock.observe.displays import JobDisplay, display_here
from penstock.observe.progress import ProgressSnapshot
from penstock.settings.settings import PREFIX
from penstock.spark.job_frames import JobFrames
from penstock.spark.running_jobs import Ask, RunningJob, RunningJobs

_LOG = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_FIRST_SECONDS = 0.5
"""Jobs are shown from then on, like Spark's stages."""
_SETTLE_SECONDS = 1.0
"""An action waits so long for the last frame at most: a terminal may be stopped."""
_SPARK_BAR = "spark.ui.showConsoleProgress"
_OURS = f"{PREFIX}observe.progress"

Frame = Callable[[], ProgressSnapshot]
"""Makes the frame of a query: as it is now, or has ended."""


class JobWatch:
    """Made once for an application; `look` whenever a job has been planned."""

    def __init__(
        self,
        jobs: RunningJobs,
        ask: Ask,
        ending: Callable[[str], JobEnding | None] = lambda _: None,
        find_display: Callable[[], JobDisplay | None] = display_here,
    ) -> None:
        self._jobs = jobs
        self._ask = ask
        self._ending = ending
        self._find_display = find_display
        self._silence: Callable[[], None] = _nothing
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False
        self._asked = self._done = 0
        """The looks that `settle` has asked for, and how many of them were made."""
        self._shown: dict[str, JobFrames] = {}
        self._queries: list[Frame] = []
        self._ended: list[ProgressSnapshot] = []
        """Last frames of queries that are to be drawn."""

    def silencing(self, context: SparkContext) -> JobWatch:
        """The same, and Spark's own bar draws nothing while jobs are shown."""
        self._silence = lambda: _silence_bar(context)
        return self

    def look(self) -> None:
        """There are jobs; returns at once. Nothing happens where there is nowhere to show them."""
        with self._lock:
            if self._thread is None and not self._closed:
                display = self._find_display()
                if display is not None:
                    self._thread = threading.Thread(
                        target=self._watch, args=(display,), name="penstock-progress", daemon=True
                    )
                    self._thread.start()

    def settle(self) -> None:
        """Something has ended: returns once its last frame is drawn, at once where nothing was shown."""
        with self._lock:
            if self._thread is None or not (self._shown or self._ended):
                return
            self._asked += 1
            wanted = self._asked
            self._wake.set()
            self._lock.wait_for(lambda: self._done >= wanted or self._thread is None, _SETTLE_SECONDS)

    @contextlib.contextmanager
    def showing(self, frame: Frame) -> Iterator[None]:
        """Show a query too, for as long as the caller waits; then its last frame."""
        with self._lock:
            self._queries.append(frame)
        self.look()
        try:
            yield
        finally:
            last = frame()
            with self._lock:
                self._queries.remove(frame)
                if self._thread is not None:
                    self._ended.append(last)
            self.settle()

    def close(self) -> None:
        """Show nothing any more; idempotent."""
        self._closed = True
        self._wake.set()

    def _watch(self, display: JobDisplay) -> None:
        try:
            while not self._closed:
                self._wake.wait(_POLL_SECONDS)
                self._wake.clear()
                if not self._look_once(display):
                    return
        except ControlError:  # the JobMaster closes
            pass
        except Exception as error:  # noqa: BLE001 - a display that fails costs no job
            _LOG.debug("jobs are not shown any more: %r", error)
        finally:
            with contextlib.suppress(Exception):  # standard error may be gone by now
                display.clear()
            with self._lock:
                if self._thread is threading.current_thread():  # else another one has begun since
                    self._shown.clear()
                    self._thread = None
                self._lock.notify_all()

    def _look_once(self, display: JobDisplay) -> bool:
        """Draw what there is now; False if there is nothing, and no need to look again."""
        with self._lock:
            asked, queries = self._asked, list(self._queries)
            ended, self._ended = self._ended, []
        begun = self._jobs.progress(self._ask)
        running = [*self._running(begun), *(frame() for frame in queries)]
        for last in [*self._last_frames({job.key for job in running}), *ended]:
            display.end(last)
        if begun or queries:
            self._silence()
        if running:
            display.show(running)
        else:
            display.clear()
        with self._lock:
            self._done = asked
            self._lock.notify_all()
            if running or self._queries or self._ended or self._jobs.all():
                return True
            self._thread = None
            return False

    def _running(self, begun: Sequence[tuple[RunningJob, JobProgress]]) -> list[ProgressSnapshot]:
        found = []
        for job, progress in begun:
            if progress.seconds >= _FIRST_SECONDS:
                frames = self._shown.setdefault(job.job, JobFrames(job.graph))
                found.append(frames.running(progress))
        return found

    def _last_frames(self, running: set[str]) -> list[ProgressSnapshot]:
        """The last frames of jobs that have ended since the last look."""
        over = [job for job in self._shown if job not in running]
        return [self._shown.pop(job).ended(self._ending(job)) for job in over]


def is_wanted(conf: Mapping[str, str], *, setting: bool) -> bool:
    """Tell whether the session's conf wants progress: our setting if it is in there, else Spark's own."""
    return setting and (_OURS in conf or conf.get(_SPARK_BAR, "true").strip().lower() != "false")


def _silence_bar(context: SparkContext) -> None:
    # The call that ends a stage's bar also keeps the next one from being drawn for half a second.
    with contextlib.suppress(Exception):
        bar = context._jsc.sc().progressBar()  # noqa: SLF001 - PySpark has no public way to it
        if bar.isDefined():
            bar.get().finishAll()


def _nothing() -> None:
    pass
