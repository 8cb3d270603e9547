# SPDX-License-Identifier: Apache-2.0
"""The memory that this machine gives a process, within the limits of its container, and what it has of it."""

from __future__ import annotations

import os
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.limit_in_bytes")


def machine_memory() -> int:
    """Bytes: the machine's memory, or the least limit of a control group that this process is in."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *(limit for limit in map(_limit_of, _groups()) if limit > 0)])


def resident_memory() -> tuple[int, int]:
    """Bytes that this process has in memory, and the most since it began; memory that it shares is among them.

    Both are 0 where the kernel does not say.
    """
    try:
        lines = (line.split() for line in _STATUS.read_text().splitlines())
        told = {words[0]: int(words[1]) << 10 for words in lines if words[0] in ("VmRSS:", "VmHWM:")}
    except OSError:
        told = {}
    return told.get("VmRSS:", 0), told.get("VmHWM:", 0)


class PeakMemory:
    """The memory of this process from now on, for a task: a worker runs many, and its record may be another one's.

    The kernel knows the record of the whole life alone. So the peak is exact where it is a new record, and else the
    most that any look has seen.
    """

    def __init__(self) -> None:
        self._most, self._record = resident_memory()

    def look(self) -> tuple[int, int]:
        """The bytes now, and the most since the beginning."""
        resident, record = resident_memory()
        self._most = max(self._most, resident)
        return resident, record if record > self._record else self._most


def _groups() -> list[Path]:
    """The folders with limits, in a container or outside of one, with either version of control groups."""
    found = [_CGROUP, _CGROUP / "memory"]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds in ("", "memory"):
            group = (_CGROUP / kinds / path.lstrip("/")) if kinds else _CGROUP / path.lstrip("/")
            found += [group, *(parent for parent in group.parents if _CGROUP in parent.parents)]
    return found


def _limit_of(group: Path) -> int:
    for name in _LIMITS:
        try:
            return int((group / name).read_text())
        except (OSError, ValueError):  # no such group, or no limit, which is said by a word
            continue
    return 0
