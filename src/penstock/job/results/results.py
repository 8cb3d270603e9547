# SPDX-License-Identifier: Apache-2.0
"""Results that are made when they are first opened: what stands behind a lazy DataFrame.

A result has a name from the start and a job when it is opened. All who open it share the job. One whose job
failed, or whose partitions were lost, runs again when it is opened again. One that was not opened by the end
of its lease is released; one that was opened stays until it is dropped, because Spark keeps what it planned and may
read it at any time.

Spark does not plan a DataFrame again, so its read tasks come here too, before they read. If their partition is lost,
the job runs again, once for all of them, by the plan of its first run made fit for any number of slots; they work for
it meanwhile, because they may hold all the slots there are. The remains of the earlier run are released when the new
one is there. A Spark stage that has read another run already is refused the new one, unless the plan puts the same
rows into each partition on every run. A reader that goes away does not end the job.

Spark also keeps that planning a DataFrame failed, and would tell the error to every later action. So planning never
fails: it leaves a task that opens the result for its action. The action that was planned is told the error, for any
other the job runs again. The task holds a slot meanwhile, so the job is planned for any number of slots. Limit: where
there is one slot only, none is left.

A result may also be made already: a persisted stream's, whose job ran when it was persisted. A keeper of such a job's
partitions watches them here, and hears once that they are gone. It is made again when it is opened, not when it is
read.

A core for each result decides (`result_core`); here jobs are planned and run, and callers wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock.errors import PartitionExpiredError, PenstockError, SlotsError
from penstock.graph.regions import regions, slots_needed
from penstock.graph.reruns import for_any_slots
from penstock.job.core.result import FinishedJob
from penstock.job.launcher import Submission
from penstock.job.replanning import Replanning
from penstock.job.results.result_core import Begin, Builds, Join, MadeResult, Making, Partitions, ResultCore
from penstock.link.master import ReadAnswer, ReadResult
from penstock.shuffle import PartitionId

_ROUND_SECONDS = 5.0
"""Seconds that a read task waits for one answer."""

_T = TypeVar("_T")

Build = Callable[[], Submission | MadeResult]
"""Plans the job; called on a thread of its own, when the result is opened."""


@dataclass(frozen=True, slots=True)
class ResultCalls:
    """The calls of results on the JobMaster, made on its event loop.

    `run` submits a job; `lose` hears that a partition is gone, and why; `release` gives up what is left of a job.
    """

    run: Callable[[Submission], asyncio.Future[FinishedJob]]
    lose: Callable[[PartitionId, str], None] = lambda *_: None
    release: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class _ResultRun:
    """A run of a result; `planned` is done when those who wait for it may work for its job."""

    number: int
    opening: asyncio.Future[Partitions]
    planned: asyncio.Future[None]

    @property
    def error(self) -> BaseException | None:
        """The error with which it has failed, if it has."""
        return self.opening.exception() if self.opening.done() else None


@dataclass(slots=True)
class _Result:
    build: Build
    core: ResultCore = field(default_factory=ResultCore)
    run: _ResultRun | None = None
    """The run of the core's state."""


class Results:
    """All lazy results of one application. Lives on the JobMaster's event loop."""

    def __init__(self, calls: ResultCalls) -> None:
        self._calls = calls
        self._results: dict[str, _Result] = {}
        self._watchers: dict[str, Callable[[], None]] = {}
        self._builds = Builds()

    def add(self, name: str, build: Build) -> None:
        """Make a result known; nothing runs."""
        self._results[name] = _Result(build)

    def drop(self, name: str) -> None:
        """It is not read any more: what its own jobs made is released, now or when they are over."""
        result = self._results.pop(name, None)
        if result is None:
            return
        if result.run is not None and isinstance(result.core.state, Making):
            result.run.opening.add_done_callback(lambda _: self._release(result.core.drop()))
        else:
            self._release(result.core.drop())

    def bytes_of(self, name: str) -> int:
        """The number of bytes of the partitions that were made last for this result."""
        result = self._results.get(name)
        return 0 if result is None else result.core.bytes

    async def open(self, name: str, action: str = "") -> Partitions:
        """The partitions of a result, whose job is run if it has not been; raises what the job raises.

        A task that opens what planning could not names its action: is that the one that was planned, it is told how
        planning failed, else the job runs, for any number of slots.
        """
        result = self._results.get(name)
        if result is None:
            raise PartitionExpiredError(f"result {name} is not known to this application any more")
        answer = result.core.open(action)
        if isinstance(answer, PenstockError):
            raise answer
        run = self._run_of(result, answer)
        try:
            partitions = await asyncio.shield(run.opening)
        except PenstockError as error:
            result.core.was_told(error, action)
            raise
        result.core.got(run.number)
        return partitions

    async def read(self, request: ReadResult) -> ReadAnswer:
        """The next step of a task that is going to read a partition; raises PartitionLostError if there is no way."""
        result = self._results.get(request.result)
        if result is None:
            return ReadAnswer()
        if request.lost and result.core.loses(request):
            self._calls.lose(request.partition, request.lost)
            self.forget(request.job)
        answer = result.core.read(request)
        if isinstance(answer, ReadAnswer):
            return answer
        run = self._run_of(result, answer)
        if not run.opening.done() and not result.core.has_answer(run.number, request):
            # With a deadline, because the question passes an environment. The job does not end with who asks.
            waited_for: list[asyncio.Future[Any]] = [run.opening]
            if not run.planned.done():
                waited_for.append(run.planned)
            await asyncio.wait(waited_for, timeout=_ROUND_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return result.core.waited(run.number, request, run.error)

    def watch(self, job: str, lost: Callable[[], None]) -> None:
        """Call `lost` on the loop's thread, once, when partitions of this job's result are gone unasked."""
        self._watchers[job] = lost

    def lost(self, job: str) -> bool:
        """Partitions of a job's result are gone: the next who opens or reads it runs the job again.

        True if a keeper watched the job's result and was told: the caller then releases what is left of it.
        """
        watcher = self._watchers.get(job)
        self.forget(job)
        if watcher is not None:
            watcher()
        return watcher is not None

    def forget(self, job: str) -> None:
        """A job's partitions are gone or going to be: no keeper is told, and the next reader runs it anew."""
        self._watchers.pop(job, None)
        self._builds.forget(job)
        for result in self._results.values():
            if result.core.forget(job):
                result.run = None

    def is_opened(self, job: str) -> bool:
        """Tell whether a reader has got the partitions that this job made, or waits for them to be made again."""
        return any(result.core.is_opened(job) for result in self._results.values())

    def _run_of(self, result: _Result, answer: Begin | Join) -> _ResultRun:
        """The run that the core means; one that is to begin begins."""
        if isinstance(answer, Begin):
            planned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            opening = asyncio.ensure_future(self._make(result, answer, planned))
            result.run = _ResultRun(answer.run, opening, planned)
            opening.add_done_callback(functools.partial(_forget_failure, result))
        if result.run is None or result.run.number != answer.run:
            raise PenstockError(f"run {answer.run} of a result was lost from sight")
        return result.run

    async def _make(self, result: _Result, begin: Begin, planned: asyncio.Future[None]) -> Partitions:
        recipe = begin.recipe
        if recipe is not None:
            rerun = await _on_own_thread(functools.partial(recipe.again, for_any_slots(recipe.graph)))
            result.core.planned(begin.run, rerun)
            planned.set_result(None)
            made: Submission | MadeResult = rerun.submission
        else:
            made = await self._built(result)
            if begin.holds_slot and isinstance(made, Submission):
                made = await _for_fewer_slots(made)
        partitions = await self._ran(result, begin.run, made)
        result.core.made(begin.run, partitions)
        return partitions

    async def _ran(self, result: _Result, run: int, made: Submission | MadeResult) -> Partitions:
        """The partitions that a job makes; where its slots go meanwhile, those of the job as it is planned anew."""
        replanning = Replanning()
        while True:
            result.core.runs(run, made)
            if isinstance(made, MadeResult):
                return made.partitions
            try:
                finished = await self._calls.run(replace(made, may_wait=replanning.may_wait))
                break
            except SlotsError as error:
                replanning.again_after(error)
            with replanning.naming_loss():
                made = await self._built(result)
        self._release(result.core.finished(made, finished))
        return finished.partitions

    def _release(self, jobs: frozenset[str]) -> None:
        for job in jobs:
            self._calls.release(job)

    async def _built(self, result: _Result) -> Submission | MadeResult:
        """The result of the build; made once more if partitions that it found were given up meanwhile."""
        while True:
            number, made = self._builds.begin(), None
            try:
                made = await _on_own_thread(result.build)
            finally:
                is_there = self._builds.end(number, made)
            if is_there:
                return made


async def _for_fewer_slots(made: Submission) -> Submission:
    """The same job where a task that waits for it holds a slot; one that would be refused stays as it is."""
    graph, again = made.graph, made.again
    if again is None or any(slots_needed(graph, region) > made.slots_total for region in regions(graph)):
        return made
    return (await _on_own_thread(functools.partial(again, for_any_slots(graph)))).submission


def _forget_failure(result: _Result, opening: asyncio.Future[Partitions]) -> None:
    # A kept exception would keep the frames of all who waited for it, and the next opening is to run anew.
    has_failed = opening.cancelled() or opening.exception() is not None
    if has_failed and result.run is not None and result.run.opening is opening:
        result.core.failed(result.run.number)
        result.run = None


async def _on_own_thread(work: Callable[[], _T]) -> _T:
    """The result of `work`. Not on the loop's few threads: a build may wait for another one, of a stream it reads."""
    done: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="penstock-plan", daemon=True).start()
    return await asyncio.wrap_future(done)
