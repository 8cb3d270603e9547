# SPDX-License-Identifier: Apache-2.0
"""Results that are made when they are first opened: what stands behind a lazy DataFrame.

A result has a name from the start and a job when somebody opens it. All who open it share the job. One whose job
failed, or whose partitions were lost, runs again when it is opened again. One that nobody has opened by the end
of its lease is released; one that was opened stays until it is dropped, because Spark keeps what it planned and may
read it at any time.

Spark does not plan a DataFrame again, so its read tasks come here too, before they read. Where their partition is
lost, the job runs again, once for all of them, by the plan of its first run made fit for any number of slots; they
work for it meanwhile, because they may hold all the slots there are. What is left of the earlier run is released when
the new one is there. A Spark stage that has read another run already is refused the new one, unless the plan puts the
same rows into each partition on every run. Nobody who goes away takes the job with him: it runs to its end.

Spark also keeps that planning a DataFrame failed, and would tell the error to every later action. So planning never
fails: it leaves a task that opens the result for its action. The action that was planned is told the error, for any
other the job runs again. The task holds a slot meanwhile, so the job is planned for any number of slots. Limit: where
there is one slot only, none is left.

A result may also be made already: a persisted stream's, whose job whoever persisted it ran. Who keeps such a job's
partitions watches them here, and hears once that they are gone. It is made again when it is opened, not when it is
read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock.graph.job_graph import JobGraph
from penstock.graph.regions import regions, slots_needed
from penstock.graph.reruns import for_any_slots, rows_have_places
from penstock.job.core.result import FinishedJob
from penstock.job.launcher import Rerun, Submission
from penstock.job.replanning import Replanning
from penstock.job.results.reads import StageReads
from penstock.link.master import ReadAnswer, ReadResult
from penstock.shuffle import PartitionId, ShuffleDescriptor
from penstock.shuffle.errors import (
    PartitionExpiredError,
    PartitionLostError,
    PenstockError,
    SlotsError,
)

_ROUND_SECONDS = 5.0
"""How long a read task waits for one answer."""
_PLAN_LIMIT = 8 << 20
"""What a control message to a task may carry of a plan."""

Partitions = tuple[ShuffleDescriptor, ...]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MadeResult:
    """Partitions that are there already, and the jobs that made them."""

    jobs: frozenset[str]
    partitions: Partitions


Build = Callable[[], Submission | MadeResult]
"""Plans the job; called on a thread of its own, when the result is opened."""


@dataclass(frozen=True, slots=True)
class ResultCalls:
    """What results need of the JobMaster, called on its event loop.

    `run` submits a job; `lose` hears that a partition is gone, and why; `release` gives up what is left of a job.
    """

    run: Callable[[Submission], asyncio.Future[FinishedJob]]
    lose: Callable[[PartitionId, str], None] = lambda *_: None
    release: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class _Result:
    build: Build
    opening: asyncio.Future[Partitions] | None = None
    jobs: frozenset[str] = frozenset()
    is_own: bool = False
    """Whether these jobs ran for it alone."""
    bytes: int = 0
    opened: bool = False
    graph: JobGraph | None = None
    """The plan of the last run that went well."""
    again: Callable[[JobGraph], Rerun] | None = None
    planned: asyncio.Future[Rerun] | None = None
    """The run under way, where it is one more."""
    given_up: frozenset[str] = frozenset()
    """Earlier runs, of which something may be left."""
    reads: StageReads = field(default_factory=StageReads)
    is_untold: bool = False
    """Whether its job failed while an action was planned, and the action has not said so yet."""
    told: str = ""
    """The action that was told last that the job failed."""
    failure: PenstockError | None = None
    """A copy of how it failed, without the frames of those who waited."""

    def raise_untold(self, action: str) -> None:
        """Raise the failure where it is of this action's planning, or the action has been told before."""
        if self.failure is not None and (self.is_untold or action == self.told):
            self.is_untold, self.told = False, action
            raise type(self.failure)(str(self.failure))

    def note_failure(self, error: PenstockError, action: str) -> None:
        """Its job failed while an action was planned, or while a task of this action waited for it."""
        self.failure, self.is_untold, self.told = type(error)(str(error)), not action, action or self.told

    @property
    def is_made(self) -> bool:
        """Whether its partitions are there."""
        opening = self.opening
        return opening is not None and opening.done() and not opening.cancelled() and opening.exception() is None


class Results:
    """All lazy results of one application. Lives on the JobMaster's event loop."""

    def __init__(self, calls: ResultCalls) -> None:
        self._calls = calls
        self._results: dict[str, _Result] = {}
        self._watchers: dict[str, Callable[[], None]] = {}
        self._numbers = itertools.count()
        self._builds: dict[int, set[str]] = {}
        """The builds under way, and the jobs that were forgotten meanwhile."""

    def add(self, name: str, build: Build) -> None:
        """Make a result known; nothing runs."""
        self._results[name] = _Result(build)

    def drop(self, name: str) -> None:
        """Nobody reads it any more: what its own jobs made is released, now or when they are over."""
        result = self._results.pop(name, None)
        if result is None:
            return
        opening = result.opening
        if opening is not None and not opening.done():
            opening.add_done_callback(lambda _: self._release(result))
        else:
            self._release(result)

    def bytes_of(self, name: str) -> int:
        """How many bytes the partitions have that were made last for this result."""
        result = self._results.get(name)
        return 0 if result is None else result.bytes

    async def open(self, name: str, action: str = "") -> Partitions:
        """The partitions of a result, whose job is run if it has not been; raises what the job raises.

        A task that opens what planning could not names its action: is that the one that was planned, it is told how
        planning failed, else the job runs, for any number of slots.
        """
        result = self._results.get(name)
        if result is None:
            raise PartitionExpiredError(f"result {name} is not known to this application any more")
        if action and not result.is_made:
            result.raise_untold(action)
        try:
            partitions = await asyncio.shield(self._opening(result, holds_slot=bool(action)))
        except PenstockError as error:
            result.note_failure(error, action)
            raise
        result.opened = True
        return partitions

    async def read(self, request: ReadResult) -> ReadAnswer:
        """What a task does that is going to read a partition; raises PartitionLostError where there is no way."""
        result = self._results.get(request.result)
        if result is None:
            return ReadAnswer()
        if request.lost:
            result.reads.undo(request)
            if request.job in result.jobs:
                self._calls.lose(request.partition, request.lost)
                self.forget(request.job)
        if result.is_made and request.job in result.jobs:
            result.reads.note(request, request.job)
            return ReadAnswer()
        if result.again is None or result.graph is None:
            return ReadAnswer()
        return await self._remade(result, result.graph, request)

    def watch(self, job: str, lost: Callable[[], None]) -> None:
        """Call `lost` on the loop's thread, once, when partitions of this job's result are gone unasked."""
        self._watchers[job] = lost

    def lost(self, job: str) -> bool:
        """Partitions of a job's result are gone: the next who opens or reads it runs the job again.

        Whether somebody watched the job's result, who has been told now and gives up what is left of it.
        """
        watcher = self._watchers.get(job)
        self.forget(job)
        if watcher is not None:
            watcher()
        return watcher is not None

    def forget(self, job: str) -> None:
        """A job's partitions are gone or going to be: nobody is told, and the next who needs them runs it anew."""
        self._watchers.pop(job, None)
        for forgotten in self._builds.values():
            forgotten.add(job)
        for result in self._results.values():
            if job in result.jobs:
                if result.again is not None:
                    result.given_up |= result.jobs
                result.opening, result.jobs = None, frozenset()

    def is_opened(self, job: str) -> bool:
        """Whether somebody has got the partitions that this job made."""
        return any(job in result.jobs and result.opened for result in self._results.values())

    def _opening(self, result: _Result, *, holds_slot: bool = False) -> asyncio.Future[Partitions]:
        if result.opening is None:
            result.planned = None
            if result.again is not None and result.graph is not None:
                result.planned = asyncio.get_running_loop().create_future()
            result.opening = asyncio.ensure_future(self._make(result, result.planned, holds_slot=holds_slot))
            result.opening.add_done_callback(functools.partial(_forget_failure, result))
        return result.opening

    async def _make(self, result: _Result, planned: asyncio.Future[Rerun] | None, *, holds_slot: bool) -> Partitions:
        if planned is not None and result.again is not None and result.graph is not None:
            rerun = await _on_own_thread(functools.partial(result.again, for_any_slots(result.graph)))
            planned.set_result(rerun)
            made: Submission | MadeResult = rerun.submission
        else:
            made = await self._built(result)
            if holds_slot and isinstance(made, Submission):
                made = await _for_fewer_slots(made)
        return await self._ran(result, made, opened=planned is not None)

    async def _ran(self, result: _Result, made: Submission | MadeResult, *, opened: bool) -> Partitions:
        """The partitions that a job makes; where its slots go meanwhile, those of the job as it is planned anew."""
        replanning = Replanning()
        while True:
            if result.opening is asyncio.current_task():  # else it was given up, and a newer one makes it again
                result.is_own = isinstance(made, Submission)
                result.jobs = frozenset((made.job,)) if isinstance(made, Submission) else made.jobs
                result.opened = opened
            if isinstance(made, MadeResult):
                return made.partitions
            try:
                finished = await self._calls.run(replace(made, may_wait=replanning.may_wait))
                break
            except SlotsError as error:
                replanning.again_after(error)
            with replanning.naming_loss():
                made = await self._built(result)
        result.graph, result.again, result.bytes = finished.graph, made.again, finished.result_bytes
        given_up, result.given_up = result.given_up, frozenset()
        for job in given_up:
            self._calls.release(job)
        return finished.partitions

    def _release(self, result: _Result) -> None:
        for job in result.given_up | (result.jobs if result.is_own else frozenset()):
            self._calls.release(job)

    async def _built(self, result: _Result) -> Submission | MadeResult:
        """What the result's build gives; once more where what it found was given up meanwhile."""
        while True:
            number, forgotten = next(self._numbers), set[str]()
            self._builds[number] = forgotten
            try:
                made = await _on_own_thread(result.build)
            finally:
                del self._builds[number]
            if not (isinstance(made, MadeResult) and made.jobs & forgotten):
                return made

    async def _remade(self, result: _Result, graph: JobGraph, request: ReadResult) -> ReadAnswer:
        """What a reader of a partition that is not there does: work for the job that makes it, wait, or read."""
        opening = self._opening(result)
        planned = result.planned
        if not opening.done() and not _is_told(planned, request):
            # With a deadline, because the question passes an environment. The job does not end with who asks.
            waited_for: list[asyncio.Future[Any]] = [opening]
            if planned is not None and not planned.done():
                waited_for.append(planned)
            await asyncio.wait(waited_for, timeout=_ROUND_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            return self._given(result, opening, graph, request)
        if planned is not None and _is_told(planned, request):
            return _lending(planned.result(), request)
        return ReadAnswer(ask_again=True)

    def _given(
        self, result: _Result, opening: asyncio.Future[Partitions], graph: JobGraph, request: ReadResult
    ) -> ReadAnswer:
        """The new partition, if the task's stage may read it."""
        error = opening.exception()
        if error is not None:
            raise PartitionLostError(
                f"partition {request.partition} is lost, and could not be made again: {error}"
            ) from None
        if result.opening is not opening:
            return ReadAnswer(ask_again=True)  # lost once more
        (job,) = result.jobs
        if result.reads.has_read_another(request, job) and not rows_have_places(graph):
            raise PartitionLostError(
                f"partition {request.partition} is lost. It was made again, but its pipeline deals rows out by the"
                " order in which they come, and other tasks of this Spark stage have read of the earlier run: run the"
                " action again, which reads the new one"
            )
        result.reads.note(request, job)
        result.opened = True
        return ReadAnswer(opening.result()[request.index])


async def _for_fewer_slots(made: Submission) -> Submission:
    """The same job where somebody who waits for it holds a slot; one that would be refused stays as it is."""
    graph, again = made.graph, made.again
    if again is None or any(slots_needed(graph, region) > made.slots_total for region in regions(graph)):
        return made
    return (await _on_own_thread(functools.partial(again, for_any_slots(graph)))).submission


def _is_told(planned: asyncio.Future[Rerun] | None, request: ReadResult) -> bool:
    """Whether there is a job that this reader can work for, and has not."""
    return planned is not None and planned.done() and planned.result().submission.job != request.lent


def _lending(rerun: Rerun, request: ReadResult) -> ReadAnswer:
    if len(rerun.plan) > _PLAN_LIMIT:
        raise PartitionLostError(
            f"partition {request.partition} is lost and is being made again, but the plan of its pipeline has"
            f" {len(rerun.plan) >> 20} MB, too much to let waiting tasks work for it: run the action again"
        )
    return ReadAnswer(job=rerun.submission.job, plan=rerun.plan)


def _forget_failure(result: _Result, opening: asyncio.Future[Partitions]) -> None:
    # A kept exception would keep the frames of all who waited for it, and the next opening is to run anew.
    if (opening.cancelled() or opening.exception() is not None) and result.opening is opening:
        result.opening = None


async def _on_own_thread(work: Callable[[], _T]) -> _T:
    """What `work` gives. Not on the loop's few threads: a build may wait for another one, of a stream it reads."""
    done: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="penstock-plan", daemon=True).start()
    return await asyncio.wrap_future(done)
