# SPDX-License-Identifier: Apache-2.0
"""The trace of a job: an append-only file of JSON lines, one event each.

Rules: a line is written in one piece, by whichever thread, so a reader beside the writer sees whole lines; a
line torn by a crash is the last one and is left out by the reader. Each line has `seq` (from 0, gap-free),
`at` (seconds since the epoch), `job` and `event`, and whatever else the event says. Limits: values must be
what JSON knows; anything else is written as its text. Non-goals: rotation, querying, sending it anywhere.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

RESERVED = frozenset({"seq", "at", "job", "event"})


class EventLog:
    """Writes the trace of one job. A second writer of the same file continues after the first."""

    def __init__(self, path: Path, job: str, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._job = job
        self._clock = clock
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._seq = _mend(path)
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def append(self, event: str, details: Mapping[str, object] | None = None) -> None:
        """Write one event; any thread. ValueError for a reserved name or a closed log."""
        details = details or {}
        if reserved := RESERVED & details.keys():
            raise ValueError(f"event {event} uses the reserved names {sorted(reserved)}")
        with self._lock:
            if self._file is None:
                raise ValueError(f"event log {self.path} is closed")
            line = {"seq": self._seq, "at": self._clock(), "job": self._job, "event": event, **details}
            text = json.dumps(line, default=str, separators=(",", ":"), ensure_ascii=False)
            _write_whole(self._file, text.encode() + b"\n")
            self._seq += 1

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_events(path: Path, job: str | None = None) -> Iterator[dict[str, Any]]:
    """The events of a trace, of one job or of all, in order; a torn last line is left out."""
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            event = json.loads(line)
            if job is None or event["job"] == job:
                yield event


def _write_whole(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _mend(path: Path) -> int:
    """Cut a torn last line off, and give the number the next line has."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        file.truncate(whole)
    return data.count(b"\n", 0, whole)
