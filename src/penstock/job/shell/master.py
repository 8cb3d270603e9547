# SPDX-License-Identifier: Apache-2.0
"""The JobMaster: one per application, with a thread and an event loop of its own.

Its methods are called from any thread and are synchronous. `close` cancels what runs, tells the environments to
shut down, and leaves no thread, socket or timer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import threading
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock.connection.certificate import Certificate
from penstock.connection.handshake import MAX_IDENTITY, Credentials
from penstock.connection.principals import own_secret
from penstock.connection.protection import Protection, decided, protection_of
from penstock.connection.transport import join_host, split_host
from penstock.errors import ControlError, PenstockError, SettingError
from penstock.job.core import events
from penstock.job.core.master_core import MasterCore
from penstock.job.core.result import FinishedJob, JobEnding, JobProgress
from penstock.job.launcher import Launcher, Submission
from penstock.job.results.named import NamedResult
from penstock.job.results.result_core import Partitions
from penstock.job.results.results import Build, ResultCalls, Results
from penstock.job.shell.driver import JobDriver
from penstock.job.shell.exporting import Exports
from penstock.job.shell.history import JobEvents, JobHistory, Look
from penstock.job.shell.operators import Office
from penstock.job.shell.processes import ProcessNow
from penstock.job.shell.server import MasterServer
from penstock.link.commands import Shutdown
from penstock.link.control import carried_error, error_message
from penstock.link.leases import TICK_SECONDS
from penstock.link.operator import MasterSecrets
from penstock.settings import Settings
from penstock.shuffle import PartitionId, ShuffleMasterContext

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

_CLOSE_SECONDS = 5.0
_SEE = "see spark.driver.bindAddress and spark.penstock.driver.port"
ANSWER_WAITS = 10
_BEGUN_SECONDS = 60.0
"""Seconds that something may take that the loop has begun."""
_CLOSED = "the JobMaster is closed: its SparkSession was stopped"


@dataclass(frozen=True, slots=True)
class MasterIdentity:
    """The identity of this JobMaster and the address it listens at.

    `advertised` is the name that hosts reach it by.
    """

    application: str
    secret: bytes = field(repr=False)
    host: str = "127.0.0.1"
    advertised: str = "127.0.0.1"
    port: int = 0


class JobHandle:
    """A submitted job."""

    def __init__(self, master: JobMaster, job: str, finished: concurrent.futures.Future[FinishedJob]) -> None:
        self._master = master
        self._finished = finished
        self.job = job

    def wait(self, timeout: float | None = None) -> FinishedJob:
        """The job's end; raises its error, or TimeoutError while it still runs."""
        return self._finished.result(timeout)

    def cancel(self, cause: str) -> None:
        """Ask the job to stop; `wait` then raises JobCancelledError."""
        self._master.cancel(self.job, cause)

    def progress(self) -> JobProgress | None:
        """A snapshot while the job runs."""
        return self._master.job_progress(self.job)

    @property
    def is_over(self) -> bool:
        """True if `wait` would return at once."""
        return self._finished.done()


class JobMaster:
    """Accepts jobs, environments and planners. `start` before anything else.

    Raises SettingError where its connections are to be encrypted and can't be, or its user has no key.
    """

    def __init__(self, identity: MasterIdentity, launcher: Launcher, settings: Settings | None = None) -> None:
        wished = settings or Settings()
        beside = wished.environment.bind_address.partition("/")[0]
        tls, made = decided(wished.tls, (identity.host, identity.advertised, beside or identity.advertised))
        access, secret = own_secret(wished.access, identity.application, identity.secret)
        self.identity = replace(identity, secret=secret)
        self.settings = replace(wished, tls=tls, access=access)
        """The settings with what is decided about TLS and the user, which holds for all jobs of the application."""
        self.certificate: Certificate | None = made
        """The certificate that was made for the application; it travels as its secret does."""
        self.address = ""
        self.url = ""
        """The address with its scheme, as a program is given it that knows nothing of the session's settings."""
        self.metrics_address = ""
        """The place, `host:port`, of the metrics; empty where they are not served."""
        self._launcher = launcher
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._every: list[tuple[float, Callable[[], None]]] = []
        self._outcomes: set[concurrent.futures.Future[FinishedJob]] = set()
        """Of jobs that are not over: the threads that submitted them may wait."""
        self._fault: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._driver: JobDriver
        self._exports: Exports
        self._results: Results
        self._server: MasterServer

    @property
    def is_closed(self) -> bool:
        """True if it does not run, or was told to close: all of its jobs end soon."""
        return self._thread is None

    def start(self) -> str:
        """Listen; the address `host:port`. Raises ControlError where the host can't be bound."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-jobmaster", daemon=True)
                self._thread.start()
        self._started.result()
        return self.address

    def every(self, seconds: float, work: Callable[[], None]) -> None:
        """Call `work` on the loop's thread again and again; before `start`. It must not block for long."""
        self._every.append((seconds, work))

    def submit(self, submission: Submission) -> JobHandle:
        """Submit a job; it may be refused at once, which `wait` raises."""

        def run() -> concurrent.futures.Future[FinishedJob]:
            outcome: concurrent.futures.Future[FinishedJob] = concurrent.futures.Future()
            finished = self._driver.submit(submission)
            self._outcomes.add(outcome)
            outcome.add_done_callback(self._outcomes.discard)
            finished.add_done_callback(lambda future: _copy_outcome(future, outcome))
            return outcome

        return JobHandle(self, submission.job, self._call(run))

    def new_job(self) -> str:
        """An id for a job that is going to be submitted."""
        return f"j{next(self._numbers)}"

    def add_result(self, name: str, build: Build) -> None:
        """Make a result known that is made when it is first opened."""
        self._call(lambda: self._results.add(name, build))

    def drop_result(self, name: str) -> None:
        """This result is not read any more: release it soon. Does not block; unknown ones are ignored."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and all results with it
            self._loop.call_soon_threadsafe(self._results.drop, name)

    def watch_result(self, job: str, lost: Callable[[], None]) -> None:
        """Before a job is submitted: call `lost` once when partitions of its result are lost. It must not block."""
        self._call(lambda: self._results.watch(job, lost))

    def release_result(self, job: str) -> None:
        """Release what is left of a finished job's result; unknown ones are ignored."""
        self._call(lambda: self._release_result(job), is_order=True)

    def keep_result(self, kept: NamedResult) -> NamedResult:
        """Have a service keep a result under its name; the result as it is found from now on. Blocks."""
        return self._await(lambda: self._driver.keep_result(kept))

    def find_result(self, name: str, service: str) -> NamedResult | None:
        """A result that was kept under this name, or None. Blocks."""
        return self._await(lambda: self._driver.find_result(name, service))

    def cancel(self, job: str, cause: str) -> None:
        """Ask a job to stop; unknown ones are ignored."""
        self._call(lambda: self._driver.handle(events.CancelRequested(job, cause)), is_order=True)

    def stop_query(self, job: str, *, goes_on: bool = False) -> None:
        """Ask a streaming query to end well: its sources stop, a last checkpoint, its sinks commit.

        `goes_on`: it goes on at once, so no run of it ends.
        """
        self._call(lambda: self._driver.stop_query(job, goes_on=goes_on), is_order=True)

    def checkpoint(self, job: str, seconds: float) -> int:
        """A checkpoint of a streaming query, now: its number.

        Raises CheckpointError where there is none, TimeoutError where there is none in time; it may still come then.
        Raises ControlError where the loop has ended.
        """
        return self._await(lambda: self._driver.queries.checkpoint(job), seconds)

    def open_result(self, name: str) -> tuple[Partitions, int]:
        """The partitions of a result and their bytes, when its job is over, which begins now if it has not. Blocks.

        Raises what the job raises, ControlError where the loop has ended. Its own deadlines end the job.
        """

        async def opened() -> tuple[Partitions, int]:
            return await self._results.open(name), self._results.bytes_of(name)

        try:
            return self._await(opened)
        except PenstockError as error:  # others wait for it too, and each is to raise one of its own
            raise carried_error(error_message(error)) from None

    def result_read(self, job: str, seconds: float) -> None:
        """The result of a job was read, which took so long: for those who are told of jobs."""
        self._call(lambda: self._driver.tell_read(job, seconds), is_order=True)

    def set_slots(self, total: int) -> None:
        """The application has so many task slots now; nothing happens where the jobs know that."""
        self._call(lambda: self._driver.handle(events.SlotsChanged(total)), is_order=True)

    def job_progress(self, job: str) -> JobProgress | None:
        """A snapshot of a job that is not over."""
        return self._call(lambda: self._driver.progress(job))

    def tell_jobs(self, listener: JobEvents, look: Look) -> None:
        """Tell a listener what happens to jobs, and every second how running jobs stand; on the loop's thread."""
        self._call(lambda: self._exports.tell(JobHistory(listener, look)))

    def tell_no_more(self, listener: JobEvents) -> None:
        """Tell this one nothing any more; unknown ones are ignored."""
        self._call(lambda: self._driver.tell_no_more(listener), is_order=True)

    def processes(self) -> concurrent.futures.Future[tuple[ProcessNow, ...]]:
        """The environment processes that are attached, soon; raises ControlError where the loop has ended."""

        async def told() -> tuple[ProcessNow, ...]:
            return self._driver.processes()

        work = told()
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise self._gone() from error

    def job_ending(self, job: str) -> JobEnding | None:
        """The end of a job that was over not long ago."""
        return self._call(lambda: self._driver.endings.of(job))

    def operated_by(self, office: Office) -> None:
        """Have operators answered from now on: `office` is called on threads of their own."""

        def install() -> None:
            self._server.operators.office = office

        self._call(install)

    def close(self) -> None:
        """Cancel jobs, shut environments down, stop; idempotent."""
        thread = self.close_nowait()
        if thread is not None and thread is not threading.current_thread():
            thread.join(4 * _CLOSE_SECONDS)

    def close_nowait(self) -> threading.Thread | None:
        """Begin to close; the thread that does it, once."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        return thread

    def _call(self, act: Callable[[], _T], *, is_order: bool = False) -> _T:
        """Call `act` on the loop's thread; raises its error, or ControlError if the loop has ended.

        Raises ControlError too where the loop does not come to it in time. `act` is then not done later either,
        unless it is an order: to release or to cancel is right at any time.
        """
        claim: concurrent.futures.Future[None] = concurrent.futures.Future()

        async def run() -> _T:
            if not is_order and not claim.set_running_or_notify_cancel():
                raise ControlError("whoever asked this of the JobMaster has given up")
            return act()

        if self._thread is None:
            raise ControlError(_CLOSED)
        work = run()
        try:
            return _result(asyncio.run_coroutine_threadsafe(work, self._loop), claim)
        except (RuntimeError, concurrent.futures.CancelledError) as error:
            work.close()
            raise self._gone() from error

    def _await(self, begin: Callable[[], Coroutine[Any, Any, _T]], seconds: float | None = None) -> _T:
        """Wait for work on the loop's thread; raises what it raises, ControlError, or TimeoutError."""
        if self._thread is None:
            raise ControlError(_CLOSED)
        work = begin()
        try:
            asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise self._gone() from error
        try:
            return asked.result(seconds)
        except concurrent.futures.CancelledError as error:
            raise self._gone() from error
        finally:
            asked.cancel()

    def _gone(self) -> ControlError:
        """This JobMaster does nothing any more, for a fault or because it was told to close."""
        if self._fault is None:
            return ControlError("the JobMaster is closing")
        return ControlError(f"the JobMaster ended, for it has a fault: {self._fault!r}")

    def _run(self) -> None:
        # Not asyncio's own runner: it ends its executor in a new thread, and there are none at the interpreter's end.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the threads that wait for the start, or for a job
            if not self._started.done():
                self._started.set_exception(error)
            else:
                # As text, because its frames would keep the server and its sockets.
                _LOG.error("the JobMaster ended\n%s", traceback.format_exc())
                self._fault = error.with_traceback(None)
        finally:
            _end_loop(loop)
            for outcome in list(self._outcomes):
                outcome.set_exception(self._gone())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        context = ShuffleMasterContext(
            self.identity.application, self.settings, self._on_fatal_error, self.identity.secret
        )
        core = MasterCore()
        protection = protection_of(self.settings.tls, self.certificate)
        self._driver = JobDriver(core, self._launcher, context, protection.transport(self.settings.network.transport))
        self._results = Results(ResultCalls(self._run_for_result, self._lose_partition, self._release_result))
        self._driver.on_result_lost = self._result_lost
        own = Credentials(self.identity.application[:MAX_IDENTITY], self.identity.secret)
        server = self._server = MasterServer(self._driver, MasterSecrets.of(own), self._results)
        await self._bind(server, protection)
        exports = self._exports = Exports(self.settings.observe, self.identity.application, self._driver)
        self.metrics_address = await exports.open()
        workers: list[asyncio.Task[Any]] = [asyncio.create_task(self._watch_leases())]
        workers += [asyncio.create_task(_repeat(seconds, work)) for seconds, work in self._every]
        self._started.set_result(None)
        workers.append(asyncio.create_task(self._stop.wait(), name="stop"))
        cause = "the application is stopping"
        try:
            ended, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            for worker in ended:  # none of them ends by itself, so without the others this would be half a JobMaster
                worker.result()
        except Exception as error:
            cause = f"the JobMaster has a fault: {error!r}"
            raise
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await exports.end_figures()
            await self._shut_down(server, cause)
            exports.close()

    async def _bind(self, server: MasterServer, protection: Protection) -> None:
        """Listen where the driver is to be reached: by TCP, whatever transport carries partitions."""
        transport = protection.transport()
        address = join_host(self.identity.host, self.identity.port, transport.scheme)
        try:
            _, port = split_host(await server.start(transport, address), transport.scheme)
        except (OSError, SettingError) as error:
            raise ControlError(f"the JobMaster cannot listen on {address}, {_SEE}: {error}") from error
        self.address = join_host(self.identity.advertised, port).removeprefix("tcp://")
        self.url = f"{transport.scheme}://{self.address}"

    async def _shut_down(self, server: MasterServer, cause: str) -> None:
        self._driver.is_ending = True
        self._driver.cancel_all(cause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS / 2):
                await self._driver.wait_jobs()
        self._driver.environments.tell_all(Shutdown())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS / 2):
                await self._driver.environments.wait_empty()
        await self._driver.close()
        await server.close()
        self._launcher.close()

    async def _watch_leases(self) -> None:
        lease = self.settings.environment.lease_timeout
        while True:
            await asyncio.sleep(min(TICK_SECONDS, lease / 4))
            now = self._driver.clock.now()
            for environment in self._driver.environments.silent_since(now - lease):
                self._driver.lose_environment(environment.name, f"no heartbeat for {lease:g} s")

    def _lose_partition(self, partition: PartitionId, cause: str) -> None:
        self._driver.handle(events.PartitionsLost((partition,), cause))

    def _run_for_result(self, submission: Submission) -> asyncio.Future[FinishedJob]:
        finished = self._driver.submit(submission)

        async def leased() -> FinishedJob:
            done = await asyncio.shield(finished)
            if not submission.graph.keeper.kind.persistent:
                self._loop.call_later(submission.settings.job.result_lease, self._expire, submission.job)
            return done

        return asyncio.ensure_future(leased())

    def _result_lost(self, job: str) -> None:
        if self._results.lost(job):
            # Called out of the driver's handling of an event; the next one waits until that is over.
            self._loop.call_soon(self._release_result, job)

    def _release_result(self, job: str, *, expired: bool = False) -> None:
        self._results.forget(job)
        self._driver.handle(events.ResultReleased(job, expired))

    def _expire(self, job: str) -> None:
        if not self._results.is_opened(job):
            self._release_result(job, expired=True)

    @staticmethod
    def _on_fatal_error(error: BaseException) -> None:
        _LOG.error("a shuffle service reported a fatal error", exc_info=error)


async def _repeat(seconds: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            began = asyncio.get_running_loop().run_in_executor(None, work)
        except RuntimeError:  # the interpreter ends, and starts no thread any more: `close` comes soon
            continue
        try:
            await began
        except Exception:  # noqa: BLE001 - the work is a caller's, and is tried again
            _LOG.exception("what the JobMaster does every %g s failed; it is tried again", seconds)


def _result(future: concurrent.futures.Future[_T], claim: concurrent.futures.Future[None]) -> _T:
    """The result; ControlError where the loop does not answer. A wait that the process overslept counts as one.

    A call that the loop has begun is waited for: else the caller could not tell whether it was done. `claim` says
    whether it has begun.
    """
    for _ in range(ANSWER_WAITS):
        with contextlib.suppress(TimeoutError):
            return future.result(TICK_SECONDS)
    if not claim.cancel():
        with contextlib.suppress(TimeoutError):
            return future.result(_BEGUN_SECONDS)
    raise ControlError(
        f"the JobMaster did not answer within {ANSWER_WAITS * TICK_SECONDS:g} s: the driver is too busy"
    )


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _copy_outcome(source: asyncio.Future[FinishedJob], target: concurrent.futures.Future[FinishedJob]) -> None:
    if source.cancelled():
        target.set_exception(PenstockError("the JobMaster closed before the job was over"))
        return
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())
