# SPDX-License-Identifier: Apache-2.0
"""The holdings of a session or a query at a moment, looked at from outside, and whether they grow. Linux only.

A process may grow although nothing that it holds does: an allocator keeps what was freed in pages that hold something
else too. So there stands beside the driver's memory what is in use of it, by allocator.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from penstock_bench.environment import environment_pids, own_bytes

MEGABYTE = 1 << 20
SLACK = {
    "driver_bytes": 64 * MEGABYTE,
    "driver_arrow_bytes": 16 * MEGABYTE,
    "driver_c_library_bytes": 32 * MEGABYTE,
    "driver_python_blocks": 200_000,
    "environment_bytes": 32 * MEGABYTE,
    "disk_bytes": 64 * MEGABYTE,
    "driver_files": 32,
    "environment_files": 32,
    "threads": 16,
    "task_bytes": 64 * MEGABYTE,
    "results": 16,
    "checkpoint_files": 16,
}
"""The growth that a figure may have later on; a leak of one for each job is more than this in a session of hundreds.
"""


_MMAP_THRESHOLD = -3
"""As in malloc.h."""

Figures = Mapping[str, int]
"""By name: memory that no file stands behind, what lies on disks, and numbers of things."""


def describe(figures: Figures) -> str:
    """For one line."""
    return ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {value / MEGABYTE:.0f} MB"
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
        "driver_arrow_bytes": pa.default_memory_pool().bytes_allocated(),
        "driver_c_library_bytes": _c_library_bytes(),
        "driver_python_blocks": sys.getallocatedblocks(),
        "driver_files": _count(own, "fd"),
        "threads": _count(own, "task"),
        "environment_bytes": sum(own_bytes(pid) for pid in pids),
        "environment_files": sum(_count(pid, "fd") for pid in pids),
        "disk_bytes": _disk_bytes(Path(tempfile.gettempdir())),
    }


def keep_little() -> None:
    """Have the C library give large blocks back as soon as they are freed, from now on.

    glibc raises its limit for what is large with the first such block. Then it keeps up to 64 MB for each thread that
    ever had them, which `give_back` can't reach: a driver with many threads seems to leak for hundreds of jobs.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, 128 << 10)


def give_back() -> None:
    """Give the system what the C library keeps of freed memory: as much as many threads once had, not a leak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _c_library_bytes() -> int:
    """The bytes that were allocated of the C library and not freed; 0 if it doesn't say."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _CLibrary
    said = ask()
    return int(said.uordblks + said.hblkhd)


class _CLibrary(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def growth(figures: Sequence[Figures]) -> list[str]:
    """Figures with a slack that are more in the last third of a session than in the second; the first warms up.

    A look may find a large answer that is just being read: of five looks and more the highest does not count.
    """
    third = len(figures) // 3
    if not third:
        return []
    middle, last = figures[third : 2 * third], figures[2 * third :]
    found = []
    for name in SLACK.keys() & figures[0].keys():
        before, after = (_level([each[name] for each in part]) for part in (middle, last))
        if after > before + SLACK[name]:
            found.append(f"{name} grew from {before:,} to {after:,}")
    return found


_PEAKS = 5


def _level(values: Sequence[int]) -> int:
    return sorted(values)[-2 if len(values) >= _PEAKS else -1]


def _count(pid: int, what: str) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/{what}").iterdir()))
    except OSError:
        return 0


def _disk_bytes(folder: Path) -> int:
    """The bytes in our folders below this one: Spark's own files are Spark's to remove."""
    total = 0
    for path, _, names in os.walk(folder):
        if "penstock" in path:
            for name in names:
                try:
                    total += Path(path, name).lstat().st_blocks * 512
                except OSError:
                    continue  # it was removed meanwhile
    return total
