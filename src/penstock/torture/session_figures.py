# SPDX-License-Identifier: Apache-2.0
"""What a session or a query holds at a moment, looked at from outside, and whether that grows. Linux only."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Mapping, Sequence
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
    "task_bytes": 64 * MEGABYTE,
    "results": 16,
    "checkpoint_files": 16,
}
"""How much more a figure may be later on; a leak of one for each job is more than this in a session of hundreds."""


Figures = Mapping[str, int]
"""By name: memory that no file stands behind, what lies on disks, and numbers of things."""


def describe(figures: Figures) -> str:
    """For one line."""
    return ", ".join(
        f"{name.removesuffix('_bytes')} {value / MEGABYTE:.0f} MB"
        if name.endswith("_bytes")
        else f"{value} {name.replace('_', ' ')}"
        for name, value in figures.items()
    )


def look(application: str) -> dict[str, int]:
    """The figures of this process and of the application's environments, in this process's temporary folder."""
    pids = environment_pids(application)
    own = os.getpid()
    return {
        "driver_bytes": own_bytes(own),
        "driver_files": _count(own, "fd"),
        "threads": _count(own, "task"),
        "environment_bytes": sum(own_bytes(pid) for pid in pids),
        "environment_files": sum(_count(pid, "fd") for pid in pids),
        "disk_bytes": _disk_bytes(Path(tempfile.gettempdir())),
    }


def give_back() -> None:
    """Give the system what the C library keeps of freed memory: as much as many threads once had, not a leak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def growth(figures: Sequence[Figures]) -> list[str]:
    """What is more in the last third of a session than in the second, the first one being for warming up."""
    third = len(figures) // 3
    if not third:
        return []
    middle, last = figures[third : 2 * third], figures[2 * third :]
    found = []
    for name in figures[0]:
        before = max(each[name] for each in middle)
        after = max(each[name] for each in last)
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
