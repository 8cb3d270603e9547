# SPDX-License-Identifier: Apache-2.0
"""The memory that this machine gives a process, within the limits of its container, and what it has of it.

Also how many processes the kernel has killed for memory, as far as it tells.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_EVENTS = ("memory.events", "memory.oom_control")
_MACHINE_EVENTS = Path("/proc/vmstat")
_KILLS = "oom_kill"
"""The kernel's name for processes that it has killed for memory."""


@dataclass(frozen=True, slots=True)
class MemoryKills:
    """The processes killed for memory so far: in the control groups that this one is in, and on the machine."""

    in_groups: int = 0
    on_machine: int = 0


def machine_memory() -> int:
    """Bytes: the machine's memory, or the least limit of a control group that this process is in."""
    return min([_whole(), *(limit for limit in map(_limit_of, _groups()) if limit > 0)])


def is_limited() -> bool:
    """True if a control group, as a container has one, gives this process less than the whole machine."""
    return machine_memory() < _whole()


def memory_kills(groups: Sequence[Path] = (), machine: Path = _MACHINE_EVENTS) -> MemoryKills:
    """How many there are now; one more than before says that a process has been killed meanwhile.

    `groups` are the folders of control groups (this process's own), `machine` the kernel's file of events.
    """
    in_groups = (_kills_in(group / name) for group in dict.fromkeys(groups or _groups()) for name in _EVENTS)
    return MemoryKills(sum(in_groups), _kills_in(machine))


def _whole() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _kills_in(events: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in events.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == _KILLS:
                return int(count)
    return 0


def resident_memory(process: int | str = "self") -> tuple[int, int]:
    """Bytes that a process has in memory, and the most since it began; memory that it shares is among them.

    Both are 0 where the kernel does not say, as of one that has just died.
    """
    try:
        lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
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
