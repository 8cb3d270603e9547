# SPDX-License-Identifier: Apache-2.0
"""Results that are made when they are first opened: what stands behind a lazy DataFrame.

A result has a name from the start and a job when somebody opens it. All who open it share the job. One whose job
failed, or whose partitions were lost, runs again when it is opened again. One that nobody has opened by the end
of its lease is released; one that was opened stays until the JobMaster closes, because Spark keeps what it
planned and may read it at any time.

A result may also be made already: a persisted stream's, whose job whoever persisted it ran. Who keeps such a job's
partitions watches them here, and hears once that they are gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.job.launcher import Submission
from penstock.shuffle import ShuffleDescriptor
from penstock.shuffle.errors import PartitionExpiredError

Partitions = tuple[ShuffleDescriptor, ...]


@dataclass(frozen=True, slots=True)
class MadeResult:
    """Partitions that are there already, and the jobs that made them."""

    jobs: frozenset[str]
    partitions: Partitions


Build = Callable[[], Submission | MadeResult]
"""Plans the job; called on a thread of its own, when the result is opened."""
Run = Callable[[Submission], asyncio.Future[Partitions]]
"""Submits a job: its result's partitions, when it is over."""


@dataclass(slots=True)
class _Result:
    build: Build
    opening: asyncio.Future[Partitions] | None = None
    jobs: frozenset[str] = frozenset()
    opened: bool = False


class Results:
    """All lazy results of one application. Lives on the JobMaster's event loop."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._results: dict[str, _Result] = {}
        self._watchers: dict[str, Callable[[], None]] = {}
        self._numbers = itertools.count()
        self._builds: dict[int, set[str]] = {}
        """The builds under way, and the jobs that were forgotten meanwhile."""

    def add(self, name: str, build: Build) -> None:
        """Make a result known; nothing runs."""
        self._results[name] = _Result(build)

    async def open(self, name: str) -> Partitions:
        """The partitions of a result, whose job is run if it has not been; raises what the job raises."""
        result = self._results.get(name)
        if result is None:
            raise PartitionExpiredError(f"result {name} is not known to this application any more")
        if result.opening is None:
            result.opening = asyncio.ensure_future(self._make(result))
        opening = result.opening
        try:
            partitions = await asyncio.shield(opening)
        except BaseException:
            # A kept exception would keep the frames of all who waited for it, and the next opening is to run anew.
            if opening.done() and result.opening is opening:
                result.opening = None
            raise
        result.opened = True
        return partitions

    def watch(self, job: str, lost: Callable[[], None]) -> None:
        """Call `lost` on the loop's thread, once, when partitions of this job's result are gone unasked."""
        self._watchers[job] = lost

    def lost(self, job: str) -> bool:
        """Partitions of a job's result are gone: the next who opens it runs the job again.

        Whether somebody watched the job's result, who has been told now and gives up what is left of it.
        """
        watcher = self._watchers.get(job)
        self.forget(job)
        if watcher is not None:
            watcher()
        return watcher is not None

    def forget(self, job: str) -> None:
        """A job's partitions are going to be released: nobody is told, and the next who opens them runs anew."""
        self._watchers.pop(job, None)
        for forgotten in self._builds.values():
            forgotten.add(job)
        for result in self._results.values():
            if job in result.jobs:
                result.opening, result.jobs = None, frozenset()

    def is_opened(self, job: str) -> bool:
        """Whether somebody has got the partitions that this job made."""
        return any(job in result.jobs and result.opened for result in self._results.values())

    async def _make(self, result: _Result) -> Partitions:
        made = await self._built(result)
        if result.opening is asyncio.current_task():  # else this one was given up, and a newer one makes it again
            result.jobs = made.jobs if isinstance(made, MadeResult) else frozenset((made.job,))
            result.opened = False
        return made.partitions if isinstance(made, MadeResult) else await self._run(made)

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


async def _on_own_thread(build: Build) -> Submission | MadeResult:
    """What `build` gives. Not on the loop's few threads: a build may wait for another one, of a stream it reads."""
    built: concurrent.futures.Future[Submission | MadeResult] = concurrent.futures.Future()

    def run() -> None:
        built.set_running_or_notify_cancel()
        try:
            built.set_result(build())
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            built.set_exception(error)

    threading.Thread(target=run, name="penstock-plan", daemon=True).start()
    return await asyncio.wrap_future(built)
