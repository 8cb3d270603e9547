# SPDX-License-Identifier: Apache-2.0
"""Looks at Spark's Python workers of this driver from outside, through /proc: memory, open files, writes.

The workers live on between runs, so everything is counted from the beginning of a `with` block. The work of a worker
that ended between two looks is not seen; the looks are close enough for peaks.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from penstock_bench.environment import descendants, own_bytes, parents

_PROC = Path("/proc")
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """Over all workers: peak memory of their own beyond what they had, most regular files open, write calls."""

    bytes: int
    files: int
    writes: int


class WorkerWatch:
    """Watches while a `with` block runs; `figures` afterwards."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-bench-workers", daemon=True)
        self._before: dict[int, int] = {}
        self._first_writes: dict[int, int] = {}
        self._last_writes: dict[int, int] = {}
        self._bytes = self._files = 0

    def __enter__(self) -> WorkerWatch:
        for pid in worker_pids():
            self._before[pid] = own_bytes(pid)
            self._first_writes[pid] = _write_calls(pid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def figures(self) -> WorkerFigures:
        """The figures that were seen."""
        writes = sum(last - self._first_writes.get(pid, 0) for pid, last in self._last_writes.items())
        return WorkerFigures(self._bytes, self._files, writes)

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            own = files = 0
            for pid in worker_pids():
                own += max(0, own_bytes(pid) - self._before.get(pid, 0))
                files += _open_files(pid)
                self._last_writes[pid] = _write_calls(pid)
            self._bytes, self._files = max(self._bytes, own), max(self._files, files)


def worker_pids() -> list[int]:
    """The Python workers under this process, without the daemons that fork them; in order."""
    above = parents()
    forked = {pid for pid in descendants(os.getpid(), above) if _is_of_daemon(pid)}
    return sorted(pid for pid in forked if above[pid] in forked)


def _is_of_daemon(pid: int) -> bool:
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return b"pyspark.daemon" in command or b"penstock.daemon" in command


def _open_files(pid: int) -> int:
    """Files with a name that are open, but for libraries and devices."""
    count = 0
    try:
        for entry in (_PROC / str(pid) / "fd").iterdir():
            target = str(entry.readlink())
            count += target.startswith("/") and not target.startswith("/dev/") and "memfd" not in target
    except OSError:
        return count
    return count


def _write_calls(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("syscw")), 0)
