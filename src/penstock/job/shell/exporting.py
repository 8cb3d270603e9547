# SPDX-License-Identifier: Apache-2.0
"""The ways out for a JobMaster's figures and events: its endpoint, a collector, the logs of its jobs, a page.

On its event loop. A fault in here costs figures, and no job: it is logged, and the next moment is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time

from penstock.job.shell.driver import JobDriver
from penstock.job.shell.history import JobHistory
from penstock.observe.endpoint import MetricsEndpoint
from penstock.observe.job_logs import JobLogs
from penstock.observe.otlp import OtlpSender
from penstock.settings import ObserveSettings

_LOG = logging.getLogger(__name__)
_LOG_SECONDS = 1.0
_SHARE = 0.05
"""The share of the loop's time that looks at jobs may take: those of many thousand tasks are seldom looked at."""


class Exports:
    """Those that the settings want. Raises SettingError for a collector without the extra that it needs."""

    def __init__(self, settings: ObserveSettings, application: str, driver: JobDriver) -> None:
        self._settings = settings
        self._driver = driver
        self._endpoint = MetricsEndpoint(settings, driver.samples)
        self._sender = OtlpSender(settings.otlp_url, application) if settings.otlp_url else None
        self._loops: list[asyncio.Task[None]] = []
        self._telling: asyncio.Task[None] | None = None
        self._logs = JobLogs(settings.event_log, application) if settings.event_log else None

    async def open(self) -> str:
        """Begin; the address of the endpoint, empty for none. Raises SettingError where no port can be had."""
        await self._endpoint.open()
        if self._sender is not None:
            send = self._sender.send_every(self._settings.otlp_interval, self._driver.samples)
            self._loops.append(asyncio.create_task(send))
        if self._logs is not None:
            self.tell(JobHistory(self._logs))
        return self._endpoint.address

    def tell(self, history: JobHistory) -> None:
        """Tell a listener the lives of all jobs from now on."""
        self._driver.tell(history)
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell_progress())
            self._loops.append(self._telling)

    async def end_figures(self) -> None:
        """Figures go out no more; events do until `close`."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._endpoint.close()
        if self._sender is not None:
            self._sender.close()

    def close(self) -> None:
        """Write what waits, when all jobs have ended."""
        for history in self._driver.histories:
            history.close()

    async def _tell_progress(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(max(_LOG_SECONDS, took / _SHARE))
            began = time.perf_counter()
            try:
                self._driver.tell_progress()
            except Exception:  # noqa: BLE001 - whatever it is, no job ends for its log
                _LOG.exception("event logs and page lack what has happened just now")
            took = time.perf_counter() - began
