# SPDX-License-Identifier: Apache-2.0
"""The records of an application's jobs: all that run, and the last ones that are over.

The JobMaster's thread tells, the page's thread reads. A lock is held while records change, and while a document is
made of one; the JobMaster's thread never waits for it: what it tells lies in a line until the lock is free. A
document is made once for each change, however many read it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from penstock.job.shell.history import JobMoment
from penstock.web.document import document, entry
from penstock.web.record import JobRecord

KEPT = 50
"""Jobs that are over, of which records are kept."""


class JobStore:
    """Listens to a JobMaster, and is what a page shows."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._records: dict[str, JobRecord] = {}
        self._told: deque[Callable[[], None]] = deque()
        self._version = 0
        self._made: tuple[str, int, dict[str, Any]] | None = None
        """The document that was made last, of which job, and when that had changed last."""
        self._changed: dict[str, int] = {}

    # --- a listener's side

    def say(self, job: str, event: str, details: Mapping[str, Any]) -> None:
        """Something has happened to a job."""
        self._tell(lambda: self._change(job, lambda record: record.take(event, details)))

    def look(self, moment: JobMoment) -> None:
        """A job that runs is like this now."""
        self._tell(lambda: self._change(moment.progress.job, lambda record: record.look(moment)))

    def end(self, job: str) -> None:
        """Nothing more happens to a job: the oldest ones that are over make room."""
        self._tell(self._make_room)

    def close(self) -> None:
        """Nothing happens any more; what is known stays."""

    # --- a page's side

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, the newest first."""
        with self._lock:
            self._learn()
            return [entry(record) for record in reversed(self._records.values())]

    def document(self, job: str, *, is_file: bool = False) -> dict[str, Any] | None:
        """A job whole, if it is known."""
        with self._lock:
            self._learn()
            record = self._records.get(job)
            if record is None:
                return None
            if is_file:
                return document(record, is_file=True)
            if self._made is None or self._made[:2] != (job, self._changed[job]):
                self._made = (job, self._changed[job], document(record))
            return self._made[2]

    def documents(self) -> list[dict[str, Any]]:
        """All jobs whole, for a file, in the order of their beginning."""
        with self._lock:
            self._learn()
            return [document(record, is_file=True) for record in self._records.values()]

    def statistics(self) -> dict[str, int]:
        """The sizes of what is kept: each of them is bounded."""
        with self._lock:
            self._learn()
            sizes = Counter({"jobs": len(self._records), "changed": len(self._changed), "told": len(self._told)})
            for record in self._records.values():
                sizes.update(record.statistics())
            return dict(sizes)

    # --- what is told and not yet known

    def _tell(self, change: Callable[[], None]) -> None:
        self._told.append(change)
        if self._lock.acquire(blocking=False):
            try:
                self._learn()
            finally:
                self._lock.release()

    def _learn(self) -> None:
        """Do what was told, in its order; under the lock."""
        while self._told:
            self._told.popleft()()

    def _change(self, job: str, change: Callable[[JobRecord], None]) -> None:
        if job not in self._records:
            self._records[job] = JobRecord(job)
        change(self._records[job])
        self._version += 1
        self._changed[job] = self._version

    def _make_room(self) -> None:
        over = [name for name, record in self._records.items() if record.is_over]
        for name in over[: max(0, len(over) - self._kept)]:
            del self._records[name], self._changed[name]
