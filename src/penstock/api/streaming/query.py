# SPDX-License-Identifier: Apache-2.0
"""The handle of a streaming query."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.api.habits import INSTEAD_OF_QUERY, missing_step
from penstock.api.schemas import partitions_argument
from penstock.api.streaming.frames import QueryFrames
from penstock.api.streaming.listeners import IDLE, PROGRESS, STARTED, TERMINATED
from penstock.api.streaming.places import one_spelling
from penstock.api.streaming.progress import ProgressReports, checkpoint_reports, restart_cause, timestamp
from penstock.errors import ControlError, JobCancelledError, PenstockError
from penstock.graph import JobGraph, explain_graph
from penstock.job.core.result import JobProgress
from penstock.job.core.states import JobState
from penstock.job.last_savepoint import LastSavepoint, Save, saved
from penstock.job.rescaling import Rescaling, WayToRescale
from penstock.observe.progress import ProgressSnapshot

if TYPE_CHECKING:
    from penstock.job.shell.master import JobHandle, JobMaster  # a server, which reading a plan needs not

_LOG = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0
"""Time between two reports of a query."""
IDLE_SECONDS = 10.0
"""Time after which listeners hear that a query is idle."""
STOP_SECONDS = 120.0
"""Time that `stop` waits for the query to end well, before it is cancelled."""
CANCEL_SECONDS = 60.0
"""Time that it waits for one that was cancelled."""
_KEPT_REPORTS = 100


@dataclass(frozen=True, slots=True)
class QueryHooks:
    """The driver's part for a query's sink: when a checkpoint is complete, and when the query has ended.

    `finish` may take its time for what was completed, ahead of the query's end; `failure` is why the query must end.
    """

    completed: Callable[[], None] = lambda: None
    ended: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None
    failure: Callable[[], PenstockError | None] = lambda: None


@dataclass(frozen=True, slots=True)
class StartedQuery:
    """A query that was submitted."""

    id: str
    run_id: str
    name: str | None
    graph: JobGraph
    slots: int
    handle: JobHandle
    master: JobMaster
    hooks: QueryHooks
    most_in_flight: int = 0
    tell: Callable[[str, Mapping[str, Any]], None] = lambda _, __: None
    """Tells the listeners of an event."""
    showing: Callable[[Callable[[], ProgressSnapshot]], AbstractContextManager[None]] = lambda _: nullcontext()
    """Shows the query's frames while a caller waits for its end."""
    save: Save = lambda _, __: 0
    """Writes a savepoint."""
    logs: Callable[[int], dict[str, str]] = lambda _: {}
    """Gives so many last lines of each file that is kept of its output."""
    way: WayToRescale[StartedQuery] | None = None
    """The way to go on with other numbers of tasks."""


class StreamingQuery:
    """A query that runs, or has ended. Any thread may use it."""

    def __init__(self, started: StartedQuery) -> None:
        self._started = started
        self._reports: deque[dict[str, Any]] = deque(maxlen=_KEPT_REPORTS)
        self._ended = threading.Event()
        self._stopping = self._ended_well = False
        self._savepoint = LastSavepoint(self._save)
        self._rescaling = Rescaling()
        self._error: PenstockError | None = None
        names = self._names = {"id": started.id, "runId": started.run_id, "name": started.name or ""}
        self._checkpoints: list[dict[str, Any]] = []
        self._begin()
        self._restored = 0
        """Bytes of the rows in flight with which it began, or restarted."""
        streaming = started.graph.streaming
        self._is_bounded = streaming is not None and streaming.available_now
        self._late, self._warned = 0, False
        """Rows that this run has dropped as late, and whether that was said."""
        self._silence = ""
        """Why it is not known what the query does, while that is so."""
        self._tell_most()
        self._told_idle = time.monotonic()
        started.tell(STARTED, {**names, "name": started.name, "timestamp": timestamp(), "jobTags": []})
        title = f"penstock-query-{started.name or started.id[:8]}"
        threading.Thread(target=self._watch, name=title, daemon=True).start()

    def _begin(self) -> None:
        """Nothing is known yet of the job that was started."""
        started = self._started
        self._progress = ProgressReports(started.graph, self._names)
        self._frames = QueryFrames(started.graph, f"query {started.name or started.id[:8]}", started.run_id)
        self._seen = 0
        self._state = JobState.WAITING_FOR_SLOTS
        self._starting = sum(self.tasks)
        """The tasks that do not run yet, or not again."""
        self._restarts = (0, "")
        """The number of times it restarted, and the last reason."""

    @property
    def id(self) -> str:
        """The id that all runs with one checkpointLocation share."""
        return self._started.id

    @property
    def runId(self) -> str:
        """The id of this run."""
        return self._started.run_id

    @property
    def name(self) -> str | None:
        """The name that `queryName` set."""
        return self._started.name

    @property
    def isActive(self) -> bool:
        """True while it runs."""
        return not self._ended.is_set()

    @property
    def mostInFlightBytes(self) -> int:
        """The bytes of rows in flight that a checkpoint holds at most, about; 0 where barriers overtake none.

        That is what its exchanges can hold, and the rows in flight of the checkpoint with which it began, or
        restarted: it grows with a restart. A function that makes many rows of few in one call is not in it.
        """
        return self._started.most_in_flight + self._restored if self._started.most_in_flight else 0

    @property
    def slots(self) -> int:
        """The number of the application's task slots that it holds."""
        return sum(vertex.slots for vertex in self._started.graph.vertices) if self.isActive else 0

    @property
    def tasks(self) -> tuple[int, ...]:
        """The number of tasks of each stage, in the order of `explain`."""
        return tuple(vertex.parallelism for vertex in self._started.graph.vertices)

    @property
    def status(self) -> dict[str, Any]:
        """The state of the query now, in PySpark's words and ours."""
        held, total = self.slots, self._started.slots
        if not self.isActive:
            message = "Stopped" if self._error is None else f"Terminated with exception: {self._error}"
        elif self._state is JobState.WAITING_FOR_SLOTS:
            message = f"Waiting for {held} of {total} task slots"
        elif self._silence:
            message = f"Running, as far as is known: {self._silence}"
        elif self._starting:
            again = f"; it restarted after: {self._restarts[1]}" if self._restarts[1] else ""
            tasks = f"({held - self._starting} of {held} run)"
            message = f"Starting its tasks {tasks}; it leaves {total - held} slots{again}"
        else:
            does = "Waiting for data to arrive" if self._progress.is_idle else "Processing new data"
            message = f"{does}; it holds {held} of {total} task slots and leaves {total - held}"
        running = self.isActive and not self._starting and not self._progress.is_idle
        return {
            "message": message,
            "isDataAvailable": running,
            "isTriggerActive": running,
            "slots": held,
            "slotsLeft": total - held,
        }

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """The last report, one a second; None before the first."""
        return self._reports[-1] if self._reports else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        """The last hundred reports, oldest first."""
        return list(self._reports)

    @property
    def recentCheckpoints(self) -> list[dict[str, Any]]:
        """The last ten checkpoints that are complete or failed, oldest first, with the metrics of each task."""
        with suppress(ControlError):  # where the JobMaster does not answer, those that were seen last
            progress = self._started.handle.progress() if self.isActive else None
            if progress is not None:
                self._checkpoints = checkpoint_reports(progress.checkpoints)
        return self._checkpoints

    def logs(self, lines: int = 20) -> dict[str, str]:
        """The last lines of what its functions have printed and raised on this host, and of its environments' logs.

        By the name of their file, as `penstock logs --job` shows them; hosts of a cluster each keep their own.
        """
        return self._started.logs(lines)

    def exception(self) -> PenstockError | None:
        """The error that ended it; None while it runs, and if it ended well."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until it has ended; raises what ended it.

        With a `timeout` in seconds: whether it has ended by then. On a terminal, and in a notebook, its stages are
        shown meanwhile.
        """
        with self._started.showing(lambda: self._frames.now(self._waits, self._end if self._ended.is_set() else "")):
            ended = self._wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended if timeout is not None else None

    def stop(self, timeout: float = STOP_SECONDS, *, savepoint: str | None = None) -> None:
        """End it well: sources stop, all that was read is processed, a last checkpoint, sinks commit.

        With a `savepoint`, a folder that is not there yet, the last checkpoint is copied to it. Raises
        CheckpointError where that can't be: at once where nothing can be written there, and the query goes on.

        A query that has not ended after `timeout` seconds is cancelled: what its last checkpoint does not hold was
        not committed, and a query with the same checkpointLocation goes on from there. No error is raised for it.
        Raises ControlError where it could not be cancelled either, and may go on.
        """
        if savepoint is not None:
            self._savepoint.ask(one_spelling(savepoint), is_active=self.isActive)
        self._end_well(timeout)
        self._savepoint.check(self._error)

    def _end_well(self, timeout: float) -> None:
        self._stopping = True
        self._rescaling.end()
        until = time.monotonic() + timeout
        self._insist(lambda: self._started.master.stop_query(self._started.handle.job), timeout)
        if self._wait(until - time.monotonic()):
            return
        cause = f"it did not end within {timeout:g} s after stop()"
        self._insist(lambda: self._started.handle.cancel(cause), CANCEL_SECONDS)
        if not self._wait(CANCEL_SECONDS):
            raise ControlError(
                f"query {self.name or self.id} was told to stop and then cancelled, and has not ended: the driver "
                "may be too busy; stop the SparkSession if it stays so"
            )

    def checkpoint(self, timeout: float = STOP_SECONDS, *, savepoint: str | None = None) -> int:
        """Take a checkpoint now, and give its number once it is complete; sinks then commit what is before it.

        With a `savepoint`, a folder that is not there yet, it is copied to that, or a newer one is; the number is of
        that one. Raises CheckpointError where it failed, TimeoutError after `timeout` seconds; the query goes on.
        """
        take = functools.partial(self._started.master.checkpoint, self._started.handle.job, timeout)
        return take() if savepoint is None else saved(self._started.save, one_spelling(savepoint), take)

    def rescale(self, numPartitions: int, timeout: float = STOP_SECONDS) -> None:
        """Go on with so many tasks for each stage: it stops well, takes a last checkpoint, and begins with that.

        A stage keeps its number where its exchange fixes it (`toOne`, `partitionCustom`), and a source has no more
        tasks than it has parts to read. State by key is redistributed. The program's next run has the numbers that it
        says. Returns when the query goes on. Raises SlotsError or PlanError, before anything is stopped, for what
        can't run, CheckpointError where it has ended or is told to stop, and TimeoutError after `timeout` seconds.
        """
        way, title = self._started.way, self.name or self.id
        wanted = partitions_argument(numPartitions, "rescale")
        if way is not None and wanted is not None:
            self._rescaling.ask(way.planned(wanted, self.slots), title)
            self._insist(lambda: self._started.master.stop_query(self._started.handle.job, goes_on=True), timeout)
            self._rescaling.wait(title, timeout)

    def explain(self) -> None:
        """Print its plan: stages, operators, exchanges and the task slots it holds."""
        sys.stdout.write(explain_graph(self._started.graph))
        if self.mostInFlightBytes:
            sys.stdout.write(f"a checkpoint holds {_megabytes(self.mostInFlightBytes)} of rows in flight at most\n")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A sentence for what PySpark's users try."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing_step("a query", name, INSTEAD_OF_QUERY, dir(self))

    def __repr__(self) -> str:
        """One line for people."""
        return f"StreamingQuery({self.name or self.id}: {self.status['message']})"

    def _repr_html_(self) -> str:
        """For notebooks: its graph, coloured by the last report, its stages, and what holds it back."""
        return self._frames.page(self._waits, "" if self.isActive else self._end)

    @property
    def _waits(self) -> str:
        """A message of its status where its tasks do not all run."""
        is_told = self.isActive and (self._starting or self._silence or self._state is JobState.WAITING_FOR_SLOTS)
        return str(self.status["message"]) if is_told else ""

    @property
    def _end(self) -> str:
        """The word for its end in messages."""
        return "failed" if self._error is not None else "ended"

    def _save(self, path: str, number: int) -> int:
        return self._started.save(path, number)

    def wait_end(self, seconds: float) -> bool:
        """Wait so long at most; whether it has ended."""
        return self._ended.wait(seconds)

    def _wait(self, timeout: float | None) -> bool:
        # Short waits: one without a limit in the main thread would keep Ctrl-C from getting through.
        left = float("inf") if timeout is None else timeout
        while not self._ended.is_set() and left > 0:
            self._ended.wait(min(left, PROGRESS_SECONDS))
            left -= PROGRESS_SECONDS
        return self._ended.is_set()

    def _insist(self, ask: Callable[[], None], seconds: float) -> None:
        """Ask until the JobMaster has heard it, the query has ended, or so many seconds have passed."""
        until = time.monotonic() + seconds
        while True:
            try:
                ask()
            except ControlError as error:
                _LOG.debug("query %s is asked again: %s", self.name or self.id, error)
            else:
                return
            if self._wait(min(PROGRESS_SECONDS, until - time.monotonic())) or time.monotonic() >= until:
                return

    def _watch(self) -> None:
        """Until the query's own end, whatever else fails."""
        try:
            while True:
                while not self._is_over():
                    self._if_possible(self._look)
                    if self._started.hooks.failure() is not None:
                        self._started.handle.cancel("the driver's part of its sink has failed")
                if not self._goes_on():
                    break
            self._ended_well = True
        except PenstockError as error:
            self._error = None if self._stopping and isinstance(error, JobCancelledError) else error
        except Exception as error:  # noqa: BLE001 - whatever ended it, who waits for the end is told
            self._error = PenstockError(f"the query ended: {type(error).__name__}: {error}")
        finally:
            self._call(self._started.hooks.completed)
            self._call(self._started.hooks.finish)
            self._error = self._started.hooks.failure() or self._error
            if self._savepoint.write(is_well=self._ended_well):
                self._call(self._started.hooks.ended)
            self._ended.set()
            self._rescaling.end(self._error or PenstockError(f"query {self.name or self.id} was told to stop"))
            cause = None if self._error is None else str(self._error)
            end = {"id": self.id, "runId": self.runId, "exception": cause, "errorClassOnException": None}
            self._started.tell(TERMINATED, end)

    def _goes_on(self) -> bool:
        """It has stopped: whether that was for another number of tasks, with which it has begun then."""
        graph, way = self._rescaling.take(), self._started.way
        if graph is None or way is None:
            return False
        self._call(self._started.hooks.completed)
        self._started = way.started(graph)
        self._begin()
        self._rescaling.gone_on()
        if self._stopping:  # meanwhile, of the job that had ended
            self._started.master.stop_query(self._started.handle.job)
        return True

    def _is_over(self) -> bool:
        try:
            finished = self._started.handle.wait(PROGRESS_SECONDS)
        except TimeoutError:
            return False
        self._frames.end(finished.result)
        if finished.result.stages:
            self._if_possible(lambda: self._last_look(finished.result.last_progress()))
        return True

    def _if_possible(self, look: Callable[[], None]) -> None:
        """A report that is late or fails says nothing of the query: it is logged once, and asked for again."""
        try:
            look()
        except Exception as error:  # noqa: BLE001 - no fault in here ends the query
            if not self._silence and not self._started.master.is_closed:
                _LOG.warning(
                    "query %s: it is not known what it does, and it is asked again: %s", self.name or self.id, error
                )
            self._silence = str(error) or type(error).__name__
        else:
            self._silence = ""

    def _look(self) -> None:
        progress = self._started.handle.progress()
        if progress is None:
            return
        self._state = progress.state
        if progress.checkpoints.restored_bytes != self._restored:
            self._restored = progress.checkpoints.restored_bytes
            self._tell_most()
        self._checkpoints = checkpoint_reports(progress.checkpoints)
        self._tell_restart(progress.checkpoints.restarts, restart_cause(progress.checkpoints) or "")
        self._starting = sum(max(0, each.parallelism - each.running - each.finished) for each in progress.vertices)
        report = None
        if progress.state is not JobState.WAITING_FOR_SLOTS:
            report = self._progress.report(progress)
            # A run that ends is one batch: what is left of it is the last report with rows.
            if not (self._is_bounded and self._progress.is_idle):
                self._keep(report)
        self._frames.look(progress, report)
        if progress.checkpoints.completed != self._seen:
            self._seen = progress.checkpoints.completed
            self._call(self._started.hooks.completed)

    def _last_look(self, progress: JobProgress) -> None:
        """The rows since the last look; a query that was too short for one has this report."""
        self._checkpoints = checkpoint_reports(progress.checkpoints)
        report = self._progress.report(progress)
        if not self._progress.is_idle or not self._reports:
            self._keep(report)
        self._warn_of_late(is_last=True)

    def _keep(self, report: dict[str, Any]) -> None:
        self._reports.append(report)
        self._tell_progress(report)
        self._late += sum(each["numRowsDroppedByWatermark"] for each in report["stateOperators"])
        self._warn_of_late(is_last=False)

    def _warn_of_late(self, *, is_last: bool) -> None:
        """Say once that rows were late: with the number of the run where it ends by itself, else with the first."""
        if not self._late or self._warned or (self._is_bounded and not is_last):
            return
        self._warned = True
        so_far = "" if is_last else " so far"
        _LOG.warning(
            "query %s: %d rows%s came after the watermark, too late for their results, and were dropped:"
            " lastProgress says how many of which stage; withWatermark takes a longer delay",
            self.name or self.id,
            self._late,
            so_far,
        )

    def _tell_progress(self, report: dict[str, Any]) -> None:
        """Listeners hear of each report, but of those of an idle query only that it is, once in a while."""
        now = time.monotonic()
        if not self._progress.is_idle:
            self._told_idle = now
            self._started.tell(PROGRESS, report)
        elif now - self._told_idle >= IDLE_SECONDS:
            self._told_idle = now
            self._started.tell(IDLE, {"id": self.id, "runId": self.runId, "timestamp": report["timestamp"]})

    def _tell_restart(self, count: int, cause: str) -> None:
        if count > self._restarts[0]:
            _LOG.warning("query %s restarts, for the %d. time: %s", self.name or self.id, count, cause)
            self._restarts = (count, cause)

    def _tell_most(self) -> None:
        if (most := self.mostInFlightBytes) > 0:
            text = "query %s: a checkpoint holds %s of rows in flight at most, of these %s that were restored"
            _LOG.info(text, self.name or self.id, _megabytes(most), _megabytes(self._restored))

    @staticmethod
    def _call(hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception as error:  # noqa: BLE001 - what a display can't show does not end the query
            _LOG.warning("the driver's side of a sink failed: %s", error)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
