# SPDX-License-Identifier: Apache-2.0
"""The memory that this machine gives a process, within the limits of the container that the process runs in."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.limit_in_bytes")


def machine_memory() -> int:
    """Bytes: the machine's memory, or the least limit of a control group that this process is in."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *(limit for limit in map(_limit_of, _groups()) if limit > 0)])


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
