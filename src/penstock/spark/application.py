# SPDX-License-Identifier: Apache-2.0
"""What all sessions of one SparkContext share: one JobMaster, one secret, one folder of tickets.

The JobMaster starts when a session first needs it, bound to the address Spark uses for its driver. It closes when
the SparkContext has stopped (looked at twice a second) or the driver's Python ends.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import secrets
import threading
import weakref

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.job.master import JobMaster, MasterIdentity
from penstock.services.local.launch import EnvironmentLaunch
from penstock.shuffle import Settings
from penstock.shuffle.errors import ControlError
from penstock.spark.datasets import PersistedResults
from penstock.spark.launcher import SparkLauncher
from penstock.spark.result_files import ResultFolder

_WATCH_SECONDS = 0.5
_WORKERS_SECONDS = 1.0
"""How long a close waits for workers whose job has just ended."""

_applications: dict[int, Application] = {}
_lock = threading.Lock()


class Application:
    """Made by `of`."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.name = f"{context.applicationId}-{secrets.token_hex(4)}"
        self.tickets = ResultFolder()
        self.sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
        """The sessions that know our data source format."""
        self.persisted = PersistedResults(self.release_result)
        self._secret = secrets.token_bytes(32)
        self._results = itertools.count(1)
        self._lock = threading.Lock()
        self._master: JobMaster | None = None
        self._launcher: SparkLauncher | None = None
        self._closed = False

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
        """Whether the SparkContext has stopped, or `close` was called."""
        return self._closed or self._context._jsc is None  # noqa: SLF001 - how PySpark itself tells

    def master(self, settings: Settings) -> JobMaster:
        """The JobMaster, started with these settings if it is the first use."""
        with self._lock:
            if self.is_closed:
                raise ControlError("this SparkSession was stopped: build a new one")
            if self._master is None:
                launcher = SparkLauncher(self._context)
                master = JobMaster(self._identity(), launcher, settings)
                master.every(_WATCH_SECONDS, self._close_if_stopped)
                master.start()
                atexit.register(self.close)
                self._master, self._launcher = master, launcher
            return self._master

    def launch(self, settings: Settings) -> EnvironmentLaunch:
        """What tasks need to reach their host's environment."""
        return EnvironmentLaunch(self.name, self._secret, self.master(settings).address, settings.to_conf())

    def new_result(self) -> str:
        """A name for a result."""
        return f"r{next(self._results)}"

    def release_result(self, job: str) -> None:
        """Release the result of a finished job; nothing where the JobMaster is closed, and with it all results."""
        master = self._master
        if master is not None:
            with contextlib.suppress(ControlError):
                master.release_result(job)

    def close(self) -> None:
        """Stop the JobMaster and with it the environments; idempotent."""
        self._closed = True
        with self._lock:
            master, self._master = self._master, None
        if master is not None:
            if self._launcher is not None and self._context._jsc is not None:  # noqa: SLF001 - as in `is_closed`
                self._launcher.wait(_WORKERS_SECONDS)
            master.close()
        self.tickets.close()
        atexit.unregister(self.close)

    def _identity(self) -> MasterIdentity:
        conf = self._context.getConf()
        advertised = conf.get("spark.driver.host") or "127.0.0.1"
        host = conf.get("spark.driver.bindAddress") or advertised
        return MasterIdentity(self.name, self._secret, host, advertised)

    def _close_if_stopped(self) -> None:
        # Runs beside the JobMaster's own thread, which must not wait for itself.
        if self.is_closed:
            self._closed = True
            master = self._master
            if master is not None:
                master.close_nowait()
            self.tickets.close()
