# SPDX-License-Identifier: Apache-2.0
"""The needs of a machine, the driver's or a worker's: looked at on that machine, in some milliseconds.

`facts` is what can be measured, as plain values that a worker can send; `judge` says what they mean, and does no I/O.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from penstock.errors import VERSION
from penstock.observe.finding import Finding

_FILES = 1024
_DISK = 1 << 30
_PATH = 100
"""A Unix socket's path has at most 107 bytes."""
_PACKAGES = ("pyspark", "pyarrow", "numpy")

Facts = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Needs:
    """The demands of the settings on a machine: bytes of network memory, bytes of disk to keep free, the folders."""

    memory: int
    reserve: int
    folders: tuple[str, ...] = ()


def facts(folders: tuple[str, ...] = ()) -> dict[str, object]:
    """The facts of this machine; no value that msgpack or pickle would refuse."""
    places = folders or (tempfile.gettempdir(),)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "packages": {"penstock": VERSION, **{name: _version(name) for name in _PACKAGES}},
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "shared": _shared_memory(),
        "memory": _available_memory(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "address": resource.getrlimit(resource.RLIMIT_AS)[0],
        "disk": {place: _free(place) for place in places},
        "path": len(tempfile.gettempdir()) + len(f"/penstock-{os.getuid()}/") + 40,
        "loopback": _can_listen(),
        "clock": time.time(),
    }


def judge(found: Facts, needs: Needs) -> list[Finding]:
    """The findings of one machine."""
    files, path = _number(found["files"]), _number(found["path"])
    return [
        Finding.of(
            "Python",
            f"{found['python']}, {_packages(found)}",
            wrong="" if (3, 11) <= _python(found) < (3, 14) else "Penstock runs on Python 3.11, 3.12 and 3.13",
        ),
        _memory(found, needs),
        Finding.of(
            "open files",
            "no limit" if files < 0 or files > 1 << 40 else f"at most {files:,}",
            doubt=f"raise it to {4 * _FILES:,} (ulimit -n): wide exchanges hold many files"
            if 0 <= files < _FILES
            else "",
        ),
        Finding.of(
            "address space",
            "no limit" if _number(found["address"]) < 0 else f"{_number(found['address']) >> 20:,} MB a process",
            doubt=""
            if _number(found["address"]) < 0
            else "unset spark.executor.pyspark.memory if workers fail to map",
        ),
        *_disks(found, needs),
        Finding.of(
            "sockets",
            "loopback can be listened on" if found["loopback"] else "loopback cannot be listened on",
            wrong="" if found["loopback"] else "allow processes to listen on 127.0.0.1",
            doubt=f"the temporary folder's name is long ({path} bytes with ours): set TMPDIR" if path > _PATH else "",
        ),
    ]


def _memory(found: Facts, needs: Needs) -> Finding:
    what = f"{found['shared']}, {_number(found['memory']) >> 20:,} MB of memory free"
    short = _number(found["memory"]) < needs.memory
    advice = f"spark.penstock.network.memory asks for {needs.memory >> 20:,} MB: set less"
    slow = "shared memory has no memfd: a temporary file takes its place" if found["shared"] == "files" else ""
    return Finding.of("shared memory", what, doubt=slow, wrong=advice if short else "")


def _disks(found: Facts, needs: Needs) -> list[Finding]:
    findings = []
    for place, free in dict(found["disk"]).items():  # type: ignore[call-overload]
        what = f"{place} has {free / 1e9:,.1f} GB free" if free >= 0 else f"{place} cannot be written to"
        full = f"free some, or set spark.penstock.blocking.directories: {needs.reserve >> 20:,} MB are kept free"
        wrong = "name another folder" if free < 0 else full if free < needs.reserve else ""
        findings.append(Finding.of("disk", what, wrong=wrong, doubt="that is little" if free < _DISK else ""))
    return findings


def _packages(found: Facts) -> str:
    return ", ".join(f"{name} {version}" for name, version in dict(found["packages"]).items())  # type: ignore[call-overload]


def _python(found: Facts) -> tuple[int, ...]:
    return tuple(int(part) for part in str(found["python"]).split(".")[:2])


def _number(value: object) -> int:
    return int(str(value))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        # Spark gives its workers PySpark as a plain folder, which tells its version and no more.
        return str(getattr(sys.modules.get(name), "__version__", "missing"))


def _shared_memory() -> str:
    try:
        handle = os.memfd_create("penstock-doctor")
    except (AttributeError, OSError):
        return "files"
    os.close(handle)
    return "memfd"


def _available_memory() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - a file of the kernel's
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free(place: str) -> int:
    try:
        return shutil.disk_usage(place).free if os.access(place, os.W_OK) else -1
    except OSError:
        return -1


def _can_listen() -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
    except OSError:
        return False
    return True
