# SPDX-License-Identifier: Apache-2.0
"""Turns the core's instructions into I/O, and what comes back into events. Runs on the JobMaster's event loop.

Every method of this module is called on that loop. Nothing here decides: the rules are in the core.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.connection.listeners import nobody_listens
from penstock.connection.transport import Transport
from penstock.errors import PenstockError
from penstock.graph.streaming import QueryBeginning
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import Deadline
from penstock.job.core.execution.capacity import LEFT_OUT_SECONDS, LOSSES, WITHIN_SECONDS
from penstock.job.core.master_core import MasterCore
from penstock.job.core.result import FinishedJob, JobProgress, JobResult, TraceEntry
from penstock.job.core.throttling import Flags
from penstock.job.launcher import Launcher, LaunchRequest, Submission
from penstock.job.results.named import NamedResult
from penstock.job.shell.calls import Calls
from penstock.job.shell.ended_jobs import EndedJobs
from penstock.job.shell.environments import AttachedEnvironment, Environments
from penstock.job.shell.exports import all_environments, all_tasks, ended_jobs, one_job
from penstock.job.shell.figures import TaskFigures
from penstock.job.shell.history import JobEvents, JobHistory
from penstock.job.shell.processes import ProcessNow, processes_now
from penstock.job.shell.queries import Queries
from penstock.job.shell.shuffle_masters import ShuffleMasters
from penstock.job.shell.timers import WakingTimer
from penstock.link import commands
from penstock.link.leases import WakingClock
from penstock.link.master import Registered
from penstock.link.wire import Done
from penstock.observe.samples import Sample
from penstock.shuffle import PartitionId, ShuffleMasterContext

_LOG = logging.getLogger(__name__)

_FIRST_LOOK_SECONDS = 0.01
_LOOK_SECONDS = 0.25
"""Seconds between two looks whether an environment whose connection ended is still there: soon first, for one that
was killed closes its sockets one after the other."""
_UNSEEN_SECONDS = 5.0
"""Seconds that an environment without an address may be away: it can't be looked for, and holds no rows."""


def _look(progress: JobProgress, trace: tuple[TraceEntry, ...], history: JobHistory) -> None:
    history.looked(progress, trace)


_WHY_GONE = (
    "it was killed, or its host is gone; `penstock logs` there and the host's log say why. If it was for memory, give"
    " it more (on a cluster spark.executor.memoryOverhead)"
)


@dataclass(slots=True)
class _RunningJob:
    submission: Submission
    finished: asyncio.Future[FinishedJob]
    timers: dict[Deadline, WakingTimer] = field(default_factory=dict)
    """Those of the deadlines that are armed."""


class JobDriver:
    """The core's shell. `transport` is the one by which environments serve each other."""

    def __init__(
        self, core: MasterCore, launcher: Launcher, context: ShuffleMasterContext, transport: Transport
    ) -> None:
        self.calls = Calls()
        self.clock = WakingClock()
        self.environments = Environments()
        self.figures = TaskFigures()
        self.flags = Flags()
        self.histories: list[JobHistory] = []
        """Those who are told the lives of jobs: event logs, a page."""
        self.endings = EndedJobs()
        self.on_result_lost: Callable[[str], None] = lambda _: None
        self.is_ending = False
        """True if the application ends: environments that go then have not failed."""
        self._core = core
        self._launcher = launcher
        self._masters = ShuffleMasters(context, self._partitions_lost)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self.queries = Queries(self.handle, self.calls)
        self._jobs: dict[str, _RunningJob] = {}
        self._ended: Counter[str] = Counter(finished=0, failed=0)
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False

    def handle(self, event: events.Event) -> None:
        """Give the core an event and do what it says; nothing once this is closed.

        An instruction that can't be carried out keeps no other one, and fails its job.
        """
        if self._closed:
            return
        for instruction in self._core.handle(event, self.clock.now()):
            try:
                self._carry_out(instruction)
            except Exception as error:  # noqa: BLE001 - whatever it is, the job waits for what it leads to
                what = f"{do.name_of(instruction)} could not be carried out"
                _LOG.exception("%s", what)
                cause = f"{what}: {type(error).__name__}: {error}"
                self._loop.call_soon(self.handle, events.InstructionFailed(do.job_of(instruction), cause))

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.LaunchSparkJobs():
                self._launch(instruction)
            case do.CancelSparkJobs():
                self._cancel_spark_jobs(instruction)
            case do.RegisterPartition():
                self._in_background(self._registering(instruction))
            case do.AnswerRegistration():
                self._answer_registration(instruction)
            case do.ReleaseWorker(call):
                self.calls.answer(call, Registered())
            case do.AnswerProducers(call, _, error):
                self.calls.answer(call, error or Done())
            case do.TellEnvironment(environment, command):
                self.environments.tell(environment, command)
            case do.StartDeadline():
                self._start_deadline(instruction)
            case do.WithdrawDeadline():
                self._withdraw_deadline(instruction)
            case do.ReleaseDescriptors():
                self._release_partitions(instruction)
            case do.ReleaseJobEverywhere():
                self._release_job(instruction)
            case do.FailJob(job, result, error):
                self._tell_end(result, str(error))
                self._end(job, error)
            case do.CompleteJob(job, result, partitions, graph):
                self._tell_end(result)
                self._end(job, FinishedJob(result, partitions, graph))
            case do.ResultLost(job):
                self.on_result_lost(job)
            case do.LeaveOut():
                self._leave_out(instruction)
            case do.WarnOfWait(_, text):
                _LOG.warning("%s", text)
            case _:
                self.queries.carry_out(instruction)

    def submit(self, submission: Submission) -> asyncio.Future[FinishedJob]:
        """Submit a job; the future is its end."""
        job = submission.job
        finished: asyncio.Future[FinishedJob] = self._loop.create_future()
        finished.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._jobs[job] = _RunningJob(submission, finished)
        self.figures.open_job(job)
        self._tell_all(lambda history: history.opened(submission))
        settings = submission.settings
        timeout, target = settings.job.slots_timeout, settings.blocking.target_bytes
        slots, beginning = submission.slots_total, QueryBeginning()
        if submission.checkpoints is not None:
            beginning = submission.checkpoints.beginning
            self.queries.open(job, submission.checkpoints)
            if submission.graph.streaming is not None and submission.graph.streaming.available_now:
                self.queries.stopping(job)
        submitted = (job, submission.graph, slots, timeout, target, settings.restart, beginning)
        self.handle(events.JobSubmitted(*submitted, may_wait=submission.may_wait))
        return finished

    def progress(self, job: str) -> JobProgress | None:
        """A snapshot of a job that is not over."""
        return self._core.progress(job, self.figures.of, self.clock.now())

    def tell(self, history: JobHistory) -> None:
        """Tell a listener the lives of all jobs from now on, and of running ones what has happened before."""
        for job, running in self._jobs.items():
            progress = self.progress(job)
            history.opened(running.submission, 0.0 if progress is None else progress.seconds)
        self.histories.append(history)

    def tell_no_more(self, listener: JobEvents) -> None:
        """Tell this one nothing any more."""
        self.histories = [each for each in self.histories if each.listener is not listener]

    def tell_progress(self) -> None:
        """Tell the listeners, if there are any, how far the jobs are."""
        for job in self._core.jobs if self.histories else ():
            progress = self.progress(job)
            if progress is not None:
                self._tell_all(functools.partial(_look, progress, self._core.trace(job)))

    def tell_read(self, job: str, seconds: float) -> None:
        """The result of a job that is over was read, which took so long."""
        self._tell_all(lambda history: history.read(job, seconds))

    def _tell_end(self, result: JobResult, error: str = "") -> None:
        self.endings.add(result, error)
        self._tell_all(lambda history: history.ended(result, error))

    def _tell_all(self, tell: Callable[[JobHistory], None]) -> None:
        """Tell all listeners; one that raises misses this event, and the others miss nothing."""
        for history in self.histories:
            try:
                tell(history)
            except Exception:  # noqa: BLE001 - whatever it is, no job ends for its log or its page
                _LOG.exception("a log or a page lacks what has happened just now")

    def samples(self) -> Iterator[Sample]:
        """All that is known here now, as metrics."""
        yield from all_environments(self.environments)
        yield from all_tasks(self.figures, self._masters.metrics)
        for job in self._core.jobs:
            progress = self.progress(job)
            if progress is not None:
                yield from one_job(progress)
        yield from ended_jobs(self._ended)

    def processes(self) -> tuple[ProcessNow, ...]:
        """The environment processes that are attached."""
        running = (progress for job in self._core.jobs if (progress := self.progress(job)) is not None)
        return processes_now(self.environments, running, self.figures, self.clock.now())

    def tell_all(self, told: Iterable[commands.Command]) -> None:
        """Queue these for all environments."""
        for command in told:
            self.environments.tell_all(command)

    def lose_environment(self, name: str, cause: str) -> None:
        """An environment is gone; known ones only."""
        if self.environments.lose(name):
            self.tell_all(self.flags.lost(name))
            self.handle(events.EnvironmentLost(name, cause))

    def line_broke(self, environment: AttachedEnvironment) -> None:
        """An environment is not connected any more: its process is gone, or its connection broke.

        One whose process is there has the rest of its lease to come back.
        """
        if not self._closed:
            _LOG.info("the line to environment %s broke", environment.name)
            self._in_background(self._wait_for(environment))

    def cancel_all(self, cause: str) -> None:
        """Cancel every job."""
        for job in self._core.jobs:
            self.handle(events.CancelRequested(job, cause))

    async def wait_jobs(self) -> None:
        """Wait until no job is left."""
        await asyncio.gather(*(job.finished for job in self._jobs.values()), return_exceptions=True)

    async def close(self) -> None:
        """Stop timers and background work, close the ShuffleMasters; jobs must be over or are given up."""
        self._closed = True
        for name in list(self._jobs):
            job = self._jobs.pop(name)
            for timer in job.timers.values():
                timer.cancel()
            if not job.finished.done():
                job.finished.set_exception(PenstockError(f"job {name} was given up: the JobMaster is closing"))
        self.calls.close()
        self.queries.close()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._masters.close()

    async def _wait_for(self, environment: AttachedEnvironment) -> None:
        pause = _FIRST_LOOK_SECONDS
        end = self._loop.time() + _UNSEEN_SECONDS
        while self.environments.is_waited_for(environment):
            if await self._is_gone(environment) or (not environment.address and self._loop.time() > end):
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS)
        self._lose_if_silent(environment)

    async def _is_gone(self, environment: AttachedEnvironment) -> bool:
        """Tell whether no process listens any more where it served others, if it did."""
        return bool(environment.address) and await nobody_listens(self._transport, environment.address)

    def _lose_if_silent(self, environment: AttachedEnvironment) -> None:
        if environment.listener is None:
            where = f"no process of it is at {environment.address}" if environment.address else "it served nobody"
            cause = f"its connection ended, and {where}: {_WHY_GONE}"
            self.lose_environment(environment.name, cause)

    def _returned(self, event: events.SparkJobReturned) -> None:
        if self.environments.silent() and not self._closed:
            self._in_background(self._handle_return(event))
        else:
            self.handle(event)

    async def _handle_return(self, event: events.SparkJobReturned) -> None:
        """Tasks end when their environment does: then that comes first, as the reason of theirs."""
        for environment in self.environments.silent():
            if not environment.address or await self._is_gone(environment):
                self._lose_if_silent(environment)
        self.handle(event)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("background work of the JobMaster failed", exc_info=task.exception())

    def _launch(self, instruction: do.LaunchSparkJobs) -> None:
        job = instruction.job
        running = self._jobs[job]

        def returned(event: events.SparkJobReturned) -> None:
            try:
                self._loop.call_soon_threadsafe(self._returned, event)
            except RuntimeError:  # the loop is closed, so the job has been given up
                _LOG.debug("Spark job %s of %s returned after the JobMaster closed", event.spark_job, job)

        try:
            request = LaunchRequest(running.submission, instruction.graph, instruction.spark_jobs, returned)
            self._launcher.launch(request)
        except Exception as error:  # noqa: BLE001 - whatever the launcher raises fails the job
            _LOG.exception("job %s could not be launched", job)
            for launched in instruction.spark_jobs:
                event = events.SparkJobReturned(job, launched.id, f"not launched: {error}")
                self._loop.call_soon(self.handle, event)

    def _cancel_spark_jobs(self, instruction: do.CancelSparkJobs) -> None:
        # A thread of its own: at the interpreter's end the loop's executor takes no more work.
        name = f"penstock-{instruction.job}-cancel"
        what = (instruction.job, instruction.spark_job)
        threading.Thread(target=self._launcher.cancel, args=what, name=name, daemon=True).start()

    async def _registering(self, instruction: do.RegisterPartition) -> None:
        attempt = instruction.producer.attempt
        try:
            descriptor = await self._masters.register(instruction)
        except Exception as error:  # noqa: BLE001 - whatever a plug-in raises fails the attempt
            self.handle(events.PartitionRefused(attempt, f"{type(error).__name__}: {error}"))
        else:
            self.handle(events.PartitionRegistered(attempt, instruction.edge, descriptor))

    def _answer_registration(self, instruction: do.AnswerRegistration) -> None:
        answer = instruction.answer
        if isinstance(answer, PenstockError):
            self.calls.answer(instruction.call, answer)
        else:
            self.calls.answer(instruction.call, Registered(answer.to_wire()))

    def _start_deadline(self, instruction: do.StartDeadline) -> None:
        timers = self._jobs[instruction.job].timers
        event = events.DeadlinePassed(instruction.job, instruction.deadline)

        def passed() -> None:
            timers.pop(instruction.deadline, None)
            self.handle(event)

        timers[instruction.deadline] = WakingTimer(self.clock, instruction.seconds, passed)

    def _withdraw_deadline(self, instruction: do.WithdrawDeadline) -> None:
        timer = self._jobs[instruction.job].timers.pop(instruction.deadline, None)
        if timer is not None:
            timer.cancel()

    def _release_partitions(self, instruction: do.ReleaseDescriptors) -> None:
        partitions = tuple(descriptor.partition for descriptor in instruction.descriptors)
        kind = commands.ExpirePartitions if instruction.expired else commands.ReleasePartitions
        self.environments.tell(instruction.environment, kind(partitions))
        self._in_background(self._masters.release(do.job_of(instruction), instruction.descriptors))

    def _release_job(self, instruction: do.ReleaseJobEverywhere) -> None:
        for environment in instruction.environments:
            self.environments.tell(environment, commands.ReleaseJob(instruction.job))
        self._in_background(self._masters.unregister_job(instruction.job))

    async def keep_result(self, kept: NamedResult) -> NamedResult:
        """Have a service keep a result under its name; the result with the words that find it from now on."""
        results = await self._masters.named_results(kept.service)
        return replace(kept, partitions=tuple(await results.keep_result(kept.name, kept.schema, kept.partitions)))

    async def find_result(self, name: str, service: str) -> NamedResult | None:
        """A result that was kept under this name."""
        found = await (await self._masters.named_results(service)).find_result(name)
        return None if found is None else NamedResult(name, service, found[0], tuple(found[1]))

    def stop_query(self, job: str, *, goes_on: bool = False) -> None:
        """A streaming query is to end well, or goes on at once with other numbers of tasks."""
        self.queries.stopping(job)
        self.handle(events.StopAsked(job, goes_on))

    def _end(self, job: str, outcome: FinishedJob | PenstockError) -> None:
        self.figures.forget_job(job)
        self.tell_all(self.flags.ended(job))
        running = self._jobs.pop(job)
        self._ended["failed" if isinstance(outcome, PenstockError) else "finished"] += 1
        for timer in running.timers.values():
            timer.cancel()
        is_well = isinstance(outcome, FinishedJob)
        self.queries.end(job, lambda: self._settle(running, outcome), is_well=is_well)

    @staticmethod
    def _settle(running: _RunningJob, outcome: FinishedJob | PenstockError) -> None:
        """Tell the one that waits for a job."""
        if running.finished.done():
            return
        if isinstance(outcome, PenstockError):
            running.finished.set_exception(outcome)
        else:
            running.finished.set_result(outcome)

    def _leave_out(self, instruction: do.LeaveOut) -> None:
        if self.is_ending:
            return
        _LOG.warning(
            "host %s has lost its environment %d times within %g s, the last one for this: %s. For %g s it gets no"
            " tasks where jobs can go on with other hosts",
            instruction.host,
            LOSSES,
            WITHIN_SECONDS,
            instruction.cause,
            LEFT_OUT_SECONDS,
        )

    def _partitions_lost(self, partitions: tuple[PartitionId, ...], cause: str) -> None:
        self._loop.call_soon_threadsafe(self.handle, events.PartitionsLost(partitions, cause))
