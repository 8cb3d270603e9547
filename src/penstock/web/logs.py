# SPDX-License-Identifier: Apache-2.0
"""Event logs as a page shows them: files of jobs, whole or still being written, into one store.

A log that grows is read on from where it was; a line that is not whole yet waits. One that can't be read any more
stays as it was, with a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import SettingError
from penstock.web.store import JobStore

_LOG = logging.getLogger(__name__)

LOGS = 200
"""Read of a folder, the newest ones."""


class JobLogFiles:
    """The jobs of some logs; the newest one is shown first."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._store = JobStore(len(paths))
        self._read: dict[Path, int] = dict.fromkeys(paths, 0)
        for path in paths:
            self._read_on(path)

    @classmethod
    def at(cls, path: Path) -> JobLogFiles:
        """A log, or the newest logs of a folder; raises SettingError where there is none, or one is none."""
        found = sorted(path.glob("*.jsonl"), key=lambda each: each.stat().st_mtime) if path.is_dir() else [path]
        if not found:
            raise SettingError(
                f"{path} has no event logs: the files of spark.penstock.observe.eventLog end in .jsonl"
            )
        return cls(found[-LOGS:])

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, the newest first."""
        self._look()
        return self._store.jobs()

    def document(self, job: str, *, is_file: bool = False) -> dict[str, Any] | None:
        """A job whole, if it is known."""
        return self._store.document(job, is_file=is_file)

    def documents(self) -> list[dict[str, Any]]:
        """All jobs whole, for a file."""
        return self._store.documents()

    def statistics(self) -> dict[str, int]:
        """The sizes of what is kept."""
        return self._store.statistics()

    def _look(self) -> None:
        for path, read in list(self._read.items()):
            try:
                if path.stat().st_size != read:
                    self._read_on(path)
            except (OSError, SettingError) as error:
                _LOG.warning("%s is shown as it was: %s", path, error)
                del self._read[path]

    def _read_on(self, path: Path) -> None:
        name = path.stem if len(self._read) > 1 else ""
        try:
            with path.open("rb") as lines:
                lines.seek(self._read[path])
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    event = json.loads(line)
                    if not self._read[path] and event["event"] != "job_submitted":
                        raise SettingError(f"{path} does not begin with a job: is it an event log, and whole?")
                    self._store.say(name or event["job"], event["event"], event)
                    self._read[path] += len(line)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise SettingError(f"{path} can't be read as an event log: {error!r}") from error
        if not self._read[path]:
            raise SettingError(f"{path} has no events: is it an event log?")
