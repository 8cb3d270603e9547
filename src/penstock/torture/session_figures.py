# SPDX-License-Identifier: Apache-2.0
"""What a session holds at a moment, looked at from outside, and whether that grows. Linux only."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from penstock.bench.environment import environment_pids, own_bytes

MEGABYTE = 1 << 20
SLACK = {
    "driver_bytes": 64 * MEGABYTE,
    "environment_bytes": 32 * MEGABYTE,
    "disk_bytes": 64 * MEGABYTE,
    "driver_files": 32,
    "environment_files": 32,
    "threads": 16,
    "results": 16,
}
"""How much more a figure may be later on; a leak of one for each job is more than this in a session of hundreds."""


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """Memory that no file stands behind, open files, threads, what lies on disks, and results that are held."""

    driver_bytes: int
    environment_bytes: int
    disk_bytes: int
    driver_files: int
    environment_files: int
    threads: int
    results: int

    def describe(self) -> str:
        """For one line."""
        return (
            f"driver {self.driver_bytes / MEGABYTE:.0f} MB, {self.driver_files} files, {self.threads} threads;"
            f" environment {self.environment_bytes / MEGABYTE:.0f} MB, {self.environment_files} files;"
            f" disk {self.disk_bytes / MEGABYTE:.1f} MB; {self.results} results"
        )


def look(application: str, results: int) -> SessionFigures:
    """The figures of this process and of the application's environments, in this process's temporary folder."""
    pids = environment_pids(application)
    own = os.getpid()
    return SessionFigures(
        own_bytes(own),
        sum(own_bytes(pid) for pid in pids),
        _disk_bytes(Path(tempfile.gettempdir())),
        _count(own, "fd"),
        sum(_count(pid, "fd") for pid in pids),
        _count(own, "task"),
        results,
    )


def give_back() -> None:
    """Give the system what the C library keeps of freed memory: as much as many threads once had, not a leak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def growth(figures: Sequence[SessionFigures]) -> list[str]:
    """What is more in the last third of a session than in the second, the first one being for warming up."""
    third = len(figures) // 3
    if not third:
        return []
    middle, last = figures[third : 2 * third], figures[2 * third :]
    found = []
    for name in (item.name for item in fields(SessionFigures)):
        before = max(getattr(each, name) for each in middle)
        after = max(getattr(each, name) for each in last)
        if after > before + SLACK[name]:
            found.append(f"{name} grew from {before:,} to {after:,}")
    return found


def _count(pid: int, what: str) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/{what}").iterdir()))
    except OSError:
        return 0


def _disk_bytes(folder: Path) -> int:
    """What lies in our folders below this one: Spark's own files are Spark's to remove."""
    total = 0
    for path, _, names in os.walk(folder):
        if "penstock" in path:
            for name in names:
                try:
                    total += Path(path, name).lstat().st_blocks * 512
                except OSError:
                    continue  # it was removed meanwhile
    return total
