# SPDX-License-Identifier: Apache-2.0
"""The event logs of jobs, one file each, written beside the threads that tell of events.

A thread writes, because a disk may be slow or hang; events wait for it in a queue of bounded length. Those
that do not fit, or come after a file could not be written, are dropped with one warning: no job fails for its log.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path

from penstock.observe.event_log import EventLog

_LOG = logging.getLogger(__name__)

WAITING = 20_000
"""Events that wait to be written at most."""
_CLOSE_SECONDS = 5.0

_Said = tuple[str, str, Mapping[str, object]]
"""Job, event, details; an event without a name closes the job's file."""


class JobLogs:
    """The logs of one application in a folder; each job's is `<application>-<job>.jsonl`."""

    def __init__(self, folder: str, application: str) -> None:
        self._folder = folder
        self._application = application
        self._said: queue.Queue[_Said | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._write, name="penstock-event-log", daemon=True)
        self._thread.start()
        self._has_warned = False

    def path(self, job: str) -> Path:
        """The file of a job."""
        return Path(self._folder, f"{self._application}-{job}.jsonl")

    def say(self, job: str, event: str, details: Mapping[str, object]) -> None:
        """Something has happened to a job; never waits."""
        try:
            self._said.put_nowait((job, event, details))
        except queue.Full:
            if not self._has_warned:
                self._has_warned = True
                _LOG.warning("events of job %s and of later ones are dropped: %s is too slow", job, self._folder)

    def end(self, job: str) -> None:
        """Nothing more happens to a job."""
        self.say(job, "", {})

    def close(self) -> None:
        """Write what waits, for some seconds at most."""
        try:
            self._said.put(None, timeout=_CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(_CLOSE_SECONDS)

    def _write(self) -> None:
        logs: dict[str, EventLog | None] = {}
        while (said := self._said.get()) is not None:
            job, event, details = said
            try:
                if job not in logs:
                    logs[job] = EventLog(self.path(job), job)
                log = logs[job]
                if log is not None and event:
                    log.append(event, details)
            except (OSError, ValueError) as error:
                _LOG.warning("the event log of job %s ends: %s can't be written: %s", job, self.path(job), error)
                _close(logs.get(job))
                logs[job] = None
            if not event:
                _close(logs.pop(job, None))
        for log in logs.values():
            _close(log)


def _close(log: EventLog | None) -> None:
    if log is not None:
        log.close()
