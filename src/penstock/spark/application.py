# SPDX-License-Identifier: Apache-2.0
"""The part that all sessions of one SparkContext share: one JobMaster, one secret, one door for who opens a result.

The JobMaster starts when a session first needs it, bound to the address Spark uses for its driver. It closes when
the SparkContext has stopped (looked at twice a second) or the driver's Python ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import SparkContext

from penstock.attachment.launch import EnvironmentLaunch, start_early
from penstock.errors import ControlError, PenstockError, SettingError
from penstock.job.core.result import JobEnding, JobProgress
from penstock.job.shell.master import JobHandle, JobMaster, MasterIdentity
from penstock.job.shell.operators import Office
from penstock.link.operator import operator_key
from penstock.link.session_files import SessionFacts, SessionFile
from penstock.settings import Settings
from penstock.shuffle import ShuffleDescriptor
from penstock.spark.datasets import PersistedResults
from penstock.spark.interrupts import forget, on_interrupt
from penstock.spark.job_watch import JobWatch
from penstock.spark.kept_output import kept_output
from penstock.spark.launcher import SparkLauncher
from penstock.spark.preflight import import_ahead, run_workers_in_this_python, warn_of_what_is_wrong
from penstock.spark.read_times import ReadTimes
from penstock.spark.results_in_use import ResultInUse, ResultsInUse
from penstock.spark.running_jobs import RunningJobs
from penstock.spark.shared_workers import in_shared_workers
from penstock.spark.slots import SlotWatch, is_local, may_shrink, naming_holders, only_local_folder, slots_now

if TYPE_CHECKING:
    from penstock.web.page import WebPage
    from penstock.web.store import JobStore

_LOG = logging.getLogger(__name__)
_WATCH_SECONDS = 0.5
_SLOTS_SECONDS = 1.0
_WORKERS_SECONDS = 1.0
"""Seconds that a close waits for workers whose job has just ended."""

_applications: dict[int, Application] = {}
_lock = threading.Lock()


class Application:
    """Made by `of`."""

    def __init__(self, context: SparkContext) -> None:
        run_workers_in_this_python(context)
        import_ahead(context)
        self._context = context
        self.name = f"{context.applicationId}-{secrets.token_hex(4)}"
        self.persisted = PersistedResults(self.release_result)
        self.running = RunningJobs()
        self.watch = JobWatch(self.running, self._progress, self._ending).silencing(context)
        self.results = ResultsInUse(context._jvm, self._drop_result)  # noqa: SLF001 - as PySpark itself
        self.reads = ReadTimes(context, self.result_read)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._master: JobMaster | None = None
        self._launcher: SparkLauncher | None = None
        self._closed = False
        self._slots = SlotWatch()
        self._started = False
        self._page: WebPage | None = None
        self._queries: list[tuple[JobHandle, int]] = []
        self._file: SessionFile | None = None

    @classmethod
    def of(cls, context: SparkContext) -> Application:
        """The application of a running SparkContext."""
        # The entry keeps the context alive, so no other one can have its id until the entry is dropped.
        key = id(context)
        with _lock:
            for stopped in [name for name, known in _applications.items() if known.is_closed]:
                del _applications[stopped]
            if key not in _applications:
                _applications[key] = cls(context)
            return _applications[key]

    @property
    def is_closed(self) -> bool:
        """True if the SparkContext has stopped, or `close` was called."""
        return self._closed or self._context._jsc is None  # noqa: SLF001 - how PySpark itself tells

    def master(self, settings: Settings) -> JobMaster:
        """The JobMaster, started with these settings if it is the first use."""
        with self._lock:
            is_first = self._master is None
            if self.is_closed:
                raise ControlError("this SparkSession was stopped: build a new one")
            if self._master is None:
                warn_of_what_is_wrong(settings)
                launcher = SparkLauncher(self._context)
                master = JobMaster(self._identity(settings.driver.port), launcher, settings)
                master.every(_WATCH_SECONDS, self._close_if_stopped)
                if may_shrink(self._context):
                    master.every(_SLOTS_SECONDS, self._look_at_slots)
                master.start()
                atexit.register(self.close)
                before_stop(self._context, self._let_workers_end)
                self._master, self._launcher = master, launcher
            master = self._master
        on_interrupt(id(self), self.cancel_jobs)
        if is_first and settings.observe.page:
            self._open_page_if_it_can(settings)
        return master

    def page(self, settings: Settings) -> WebPage:
        """The web page, which is opened now where it is not; raises SettingError where it can't be."""
        from penstock.web.page import PagePlace, WebPage
        from penstock.web.store import JobStore

        master = self.master(settings)
        with self._lock:
            if self._page is None or not self._page.is_open:
                store = JobStore()
                place = PagePlace.of(settings.observe, master.identity.advertised)
                closed = functools.partial(self._page_closed, store)
                logs = functools.partial(kept_output, self.name, settings.environment.directory)
                self._page = WebPage(place, store, master.processes, closed, logs).open()
                master.tell_jobs(store, store.look)
                if self._launcher is not None:
                    self._launcher.page = self._page.address
                _LOG.info("the page is at %s", self._page.address)
            return self._page

    def _page_closed(self, store: JobStore) -> None:
        """The page is closed: it is told of jobs no more."""
        master, launcher = self._master, self._launcher
        if launcher is not None:
            launcher.page = ""
        if master is not None:
            with contextlib.suppress(ControlError):
                master.tell_no_more(store)

    def _open_page_if_it_can(self, settings: Settings) -> None:
        """Open the page, and write its address to standard error. No job fails for it: a failure is a warning."""
        try:
            page = self.page(settings)
        except PenstockError as error:
            _LOG.warning("there is no web page: %s", error)
        else:
            sys.stderr.write(f"Penstock's page is at {page.url}\n")

    def launch(self, settings: Settings) -> EnvironmentLaunch:
        """The launch that tasks need to reach their host's environment."""
        master = self.master(settings)
        own = master.settings  # what is decided once for all jobs of an application
        conf = replace(settings, tls=own.tls, access=own.access).to_conf()
        return EnvironmentLaunch(
            self.name,
            master.identity.secret,
            master.address,
            conf,
            certificate=master.certificate,
            title=self._context.appName,
        )

    def start_ahead(self, settings: Settings, conf: Mapping[str, str], *, plans_frames: bool) -> None:
        """If tasks run on this machine, start what they need beside the planning of the first job.

        That is the environment, and, where there are DataFrames to plan, the daemon of Spark's Python workers.
        """
        with self._lock:
            is_first, self._started = not self._started, True
        if not (is_first and is_local(self._context)):
            return
        if plans_frames:
            work = functools.partial(start_workers, self._context, conf)
            threading.Thread(target=work, name="penstock-start-workers", daemon=True).start()
        if settings.environment.scope == "host":
            launch, folder = self.launch(settings), only_local_folder(self._context)
            if folder:
                work = functools.partial(_start_environment, launch, folder)
                threading.Thread(target=work, name="penstock-start", daemon=True).start()

    def query_started(self, handle: JobHandle, slots: int) -> None:
        """A streaming query asks for so many slots, and keeps them until it is over."""
        with self._lock:
            self._queries = [*self._running_queries(), (handle, slots)]

    def operated_by(self, office: Office, settings: Settings) -> None:
        """Have other processes of this user lead the queries; does something once. No query fails for it."""
        master = self.master(settings)
        with self._lock:
            if self._file is not None:
                return
            master.operated_by(office)
            facts = SessionFacts(
                self.name, self._context.appName, os.getpid(), master.url, operator_key(master.identity.secret).hex()
            )
            try:
                self._file = SessionFile(facts, settings.environment.directory)
            except (OSError, SettingError) as error:
                _LOG.warning("`penstock queries` will not see this session's queries: %s", error)

    def slots_of_queries(self) -> int:
        """The slots that streaming queries have, or wait for."""
        return sum(slots for _, slots in self._running_queries())

    def _running_queries(self) -> list[tuple[JobHandle, int]]:
        return [(handle, slots) for handle, slots in self._queries if not handle.is_over]

    def new_result(self) -> ResultInUse:
        """A new result, which is released when nothing refers any more to what this gives."""
        return self.results.use(f"r{next(self._numbers)}")

    def open_result(self, result: ResultInUse) -> list[ShuffleDescriptor]:
        """The partitions of a result, which is made now where it is not; raises what its job raises. Blocks."""
        master = self._master
        if master is None:
            raise ControlError("the SparkSession of this DataFrame was stopped: make it again in a new one")
        with naming_holders(self._context):
            try:
                partitions, size = master.open_result(result.name)
            finally:
                self.watch.settle()
        result.takes(size)
        return list(partitions)

    def release_result(self, job: str) -> None:
        """Release the result of a finished job; nothing where the JobMaster is closed, and with it all results."""
        master = self._master
        if master is not None:
            with contextlib.suppress(ControlError):
                master.release_result(job)

    def result_read(self, job: str, seconds: float) -> None:
        """The result of a job was read, which took so long; nothing where the JobMaster is closed."""
        master = self._master
        if master is not None:
            with contextlib.suppress(ControlError):
                master.result_read(job, seconds)

    def cancel_jobs(self, cause: str) -> None:
        """Ask all jobs of this application to stop, on a thread of its own: a signal's handler may call it."""
        threading.Thread(target=self._cancel_jobs, args=(cause,), name="penstock-cancel", daemon=True).start()

    def close(self) -> None:
        """Stop the JobMaster and with it the environments; idempotent."""
        self._closed = True
        forget(id(self))
        self.watch.close()
        with self._lock:
            master, self._master = self._master, None
            page, self._page = self._page, None
            file, self._file = self._file, None
        if file is not None:
            file.close()
        if page is not None:
            page.close()
        if master is not None:
            if self._launcher is not None and self._context._jsc is not None:  # noqa: SLF001 - as in `is_closed`
                self._launcher.wait(_WORKERS_SECONDS, self._launcher.jobs())
            master.close()
        atexit.unregister(self.close)

    def _drop_result(self, name: str) -> None:
        """This result can't be read any more. Called by garbage collectors: it must not block."""
        master = self._master
        if master is not None:
            master.drop_result(name)

    def _cancel_jobs(self, cause: str) -> None:
        master = self._master
        if master is not None:
            for job in self.running.stop(cause):
                with contextlib.suppress(ControlError):
                    master.cancel(job, cause)

    def _progress(self, job: str) -> JobProgress | None:
        master = self._master
        return None if master is None else master.job_progress(job)

    def _ending(self, job: str) -> JobEnding | None:
        master = self._master
        return None if master is None else master.job_ending(job)

    def _identity(self, port: int) -> MasterIdentity:
        conf = self._context.getConf()
        advertised = conf.get("spark.driver.host") or "127.0.0.1"
        host = conf.get("spark.driver.bindAddress") or advertised
        return MasterIdentity(self.name, secrets.token_bytes(32), host, advertised, port)

    def _look_at_slots(self) -> None:
        """While jobs run: those that need more slots than are left would wait for ever."""
        master = self._master
        if master is None or self.is_closed or not self.running.all():
            return
        slots = self._slots.look(slots_now(self._context), time.monotonic())
        if slots is not None:
            master.set_slots(slots)

    def _let_workers_end(self) -> None:
        """The SparkContext is going to stop: Spark reports each task that ends meanwhile as an error of its own.

        Workers end a moment after their job is over. Those of jobs that still run end with the context.
        """
        master, launcher = self._master, self._launcher
        if master is not None and launcher is not None:
            with contextlib.suppress(ControlError):
                over = [job for job in launcher.jobs() if master.job_progress(job) is None]
                launcher.wait(_WORKERS_SECONDS, over)

    def _close_if_stopped(self) -> None:
        # Runs beside the JobMaster's own thread, which must not wait for itself.
        if self.is_closed:
            self._closed = True
            forget(id(self))
            master, page, file = self._master, self._page, self._file
            if file is not None:
                file.close()
            if page is not None:
                page.close()
            if master is not None:
                master.close_nowait()


def before_stop(context: SparkContext, act: Callable[[], None]) -> None:
    """Call `act` when this context is to stop, and then stop it."""
    stop = context.stop

    def stopped() -> None:
        context.__dict__.pop("stop", None)
        act()
        stop()

    context.stop = stopped  # PySpark has no hook for it


def start_workers(context: SparkContext, conf: Mapping[str, str]) -> None:
    """Run a task that does nothing: Spark starts the daemon for it, which imports what all workers need."""
    try:
        in_shared_workers(context.parallelize([0], 1).mapPartitions(iter), conf).collect()
    except Exception as error:  # noqa: BLE001 - a stopped session, a cancelled job: the first real task tries again
        _LOG.debug("the Python workers could not be started ahead of the tasks: %r", error)


def _start_environment(launch: EnvironmentLaunch, folder: str) -> None:
    try:
        start_early(launch, {"SPARK_LOCAL_DIRS": folder})
    except (PenstockError, OSError, subprocess.SubprocessError) as error:
        _LOG.debug("the environment could not be started ahead of the tasks: %r", error)  # a task tries again
