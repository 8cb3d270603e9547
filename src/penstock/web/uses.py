# SPDX-License-Identifier: Apache-2.0
"""The disks, workers and users of all processes side by side: which of them is slow, or waited for, in words.

The last seconds are compared: processes tell sums, and a look keeps one of five to ten seconds ago. A disk is slow
that gives or takes bytes at less of a pace than the others do; where there is none to compare it with, it is named if
it is waited for half of the time. A worker is slow that does fewer rows in a second of its work than those with other
subtasks of its stage, and a user waits whose tasks wait more than the others'. Kinds that no process tells of are
passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.job.shell.processes import ProcessNow, TaskNow
from penstock.link.figures import UseFigures, UseKind
from penstock.shuffle.metrics import PEAK_RESIDENT, RESIDENT

SLOW = 0.67
"""One is named that has less than this part of the others' pace."""
WAITED = 0.5
"""A disk that is waited for, or a user that waits, for more of the time is named."""
_BUSY = 0.3
"""A worker that works less of its time keeps no other waiting, however slow it is."""
_LEAST_SECONDS, _LEAST_BYTES = 0.2, 1 << 20
"""Seconds of work, and bytes, below which a pace says nothing."""
_MARK_SECONDS = 5.0
_HEARD_SECONDS = 1.0
"""Between two looks that are closer together nothing may have been heard: the second one is as good as the first."""
_DIRECTIONS = (("read", "gives"), ("write", "takes"))


class _Sums(NamedTuple):
    """The sums of one use at a moment."""

    at: float
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UseNow:
    """The last seconds of one use: what its sums have grown by, in `seconds`; since its beginning where that is 0."""

    process: str
    use: UseFigures
    grown: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def share(self, name: str) -> float | None:
        """Seconds of something in a second."""
        return self.grown.get(name, 0.0) / self.seconds if self.seconds > 0 else None

    def pace(self, direction: str) -> float | None:
        """Bytes in a second of waiting, to or from a disk; None where there was too little."""
        seconds, size = (self.grown.get(f"{direction}_{name}", 0.0) for name in ("seconds", "bytes"))
        return size / seconds if seconds >= _LEAST_SECONDS and size >= _LEAST_BYTES else None


class UseLooks:
    """The looks of one page at the uses of all processes."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, str, str], deque[_Sums]] = {}

    def look(self, processes: Sequence[ProcessNow], now: float) -> list[UseNow]:
        """All uses as they are now; those of processes that are gone are forgotten."""
        known, self._marks = self._marks, {}
        found = []
        for process in processes:
            for use in process.uses:
                key = process.name, use.kind.value, use.name
                marks = self._marks[key] = known.get(key) or deque(maxlen=2)
                found.append(_since(process.name, use, marks, now))
        return found


def _since(process: str, use: UseFigures, marks: deque[_Sums], now: float) -> UseNow:
    then = marks[0] if marks else _Sums(now, {})
    if any(use.figures.get(name, 0.0) < value for name, value in then.figures.items()):  # it has begun anew
        marks.clear()
        then = _Sums(now, {})
    if not marks or now - marks[-1].at >= _MARK_SECONDS:
        marks.append(_Sums(now, use.figures))
    if now - then.at < _HEARD_SECONDS:
        then = _Sums(now, {})
    grown = {name: value - then.figures.get(name, 0.0) for name, value in use.figures.items()}
    return UseNow(process, use, grown, now - then.at)


def uses_document(processes: Sequence[ProcessNow], uses: Sequence[UseNow]) -> dict[str, Any]:
    """The tables of disks, workers and users, and the sentences about them."""
    disks, workers, users = ([each for each in uses if each.use.kind is kind] for kind in UseKind)
    paces, memory = _worker_paces(processes), _memory(processes)
    return {
        "text": [*_about_disks(disks), *_about_workers(workers, paces), *_about_users(users)],
        "disks": [_disk(each) for each in disks],
        "workers": [_worker(each, paces, memory) for each in workers],
        "users": [
            [
                each.process,
                each.use.name,
                each.use.figures.get("bytes"),
                each.share("bytes"),
                each.share("waiting_seconds"),
            ]
            for each in users
        ],
    }


def _disk(each: UseNow) -> list[Any]:
    figures = each.use.figures
    totals = (figures.get(name, 0.0) for name in ("read_bytes", "write_bytes", "read_seconds", "write_seconds"))
    shares = (_rounded(each.share(name)) for name in ("read_seconds", "write_seconds"))
    return [each.process, each.use.name, *totals, each.pace("read"), each.pace("write"), *shares]


def _about_disks(disks: Sequence[UseNow]) -> list[str]:
    said = []
    for direction, does in _DIRECTIONS:
        slow = _slowest(disks, lambda each, direction=direction: each.pace(direction))  # type: ignore[misc]
        if slow is not None:
            each, pace, others = slow
            said.append(
                f"The disk {each.use.name} of {each.process} is slow: it {does} {pace / 1e6:.0f} MB in a second of"
                f" waiting, the others {others / 1e6:.0f} MB."
            )
    if not said:
        waited = [(sum(each.share(f"{name}_seconds") or 0.0 for name, _ in _DIRECTIONS), each) for each in disks]
        most, disk = max(waited, key=lambda pair: pair[0], default=(0.0, None))
        if disk is not None and most > WAITED:
            said.append(f"The disk {disk.use.name} of {disk.process} is waited for {most:.1f} s in each second.")
    return said


def _slowest(uses: Sequence[UseNow], pace_of: Callable[[UseNow], float | None]) -> tuple[UseNow, float, float] | None:
    """The slowest, its pace, and the mean of the others; None where it is not much slower, or is the only one."""
    paces = [(pace, number) for number, each in enumerate(uses) if (pace := pace_of(each)) is not None]
    if len(paces) < 2:
        return None
    pace, number = min(paces)
    others = sum(each for each, other in paces if other != number) / (len(paces) - 1)
    return (uses[number], pace, others) if pace < SLOW * others else None


def _worker_paces(processes: Sequence[ProcessNow]) -> dict[tuple[str, int, int], float]:
    """The pace of each subtask that runs, as a part of the others' of its stage."""
    stages: dict[tuple[str, int], list[TaskNow]] = {}
    for process in processes:
        for task in process.tasks:
            if task.rows and task.busy_seconds >= _LEAST_SECONDS:
                stages.setdefault((task.job, task.stage), []).append(task)
    paces = {}
    for (job, stage), tasks in stages.items():
        rows, seconds = sum(task.rows for task in tasks), sum(task.busy_seconds for task in tasks)
        for task in tasks:
            others = rows - task.rows, seconds - task.busy_seconds
            if len(tasks) > 1 and others[0] > 0:
                paces[job, stage, task.subtask] = (task.rows / task.busy_seconds) / (others[0] / others[1])
    return paces


def _memory(processes: Sequence[ProcessNow]) -> dict[Any, tuple[float | None, ...]]:
    """The memory of each process by its name, and of the process of each subtask that runs; now, and the most."""
    found: dict[Any, tuple[float | None, ...]] = {}
    for process in processes:
        found[process.name] = process.figures.get(RESIDENT), process.figures.get(PEAK_RESIDENT)
        for task in process.tasks:
            found[task.job, task.stage, task.subtask] = task.resident, task.peak_resident
    return found


def _place(each: UseNow) -> tuple[str, int, int] | None:
    attempt = each.use.attempt
    return None if attempt is None or attempt.vertex < 0 else (attempt.job, attempt.vertex, attempt.subtask)


def _worker(
    each: UseNow, paces: Mapping[tuple[str, int, int], float], memory: Mapping[Any, tuple[float | None, ...]]
) -> list[Any]:
    place = _place(each)
    has = memory.get(each.process if each.use.attempt is None else place, (None, None))
    part = None if place is None else paces.get(place)
    at = place or (None, None, None)
    return [each.process, each.use.name, *at, *has, _rounded(_busy(each)), _rounded(part)]


def _busy(each: UseNow) -> float | None:
    """The share of the last seconds in which a worker worked; of all its time where there was no look before."""
    seconds = each.seconds or each.use.figures.get("seconds", 0.0)
    return min(1.0, each.grown.get("busy_seconds", 0.0) / seconds) if seconds > 0 else None


def _about_workers(workers: Sequence[UseNow], paces: Mapping[tuple[str, int, int], float]) -> list[str]:
    busy = [each for each in workers if (_busy(each) or 0.0) >= _BUSY]
    placed = [(paces[place], each) for each in busy if (place := _place(each)) is not None and place in paces]
    part, slow = min(placed, key=lambda pair: pair[0], default=(1.0, None))
    if slow is not None and slow.use.attempt is not None and part < SLOW:
        attempt = slow.use.attempt
        where = f"subtask {attempt.subtask} of stage {attempt.vertex} of {attempt.job}"
        return [f"The worker {slow.use.name} of {slow.process} is slow: {where} does {part:.0%} of the others' pace."]
    return []


def _about_users(users: Sequence[UseNow]) -> list[str]:
    waits = [(share, each) for each in users if (share := each.share("waiting_seconds")) is not None]
    most, user = max(waits, key=lambda pair: pair[0], default=(0.0, None))
    if user is None or most <= WAITED:
        return []
    others = [share for share, each in waits if each is not user]
    beside = f", the others {sum(others) / len(others):.1f} s" if others else ""
    return [f"The user {user.use.name} waits for {user.process} {most:.1f} s in each second{beside}."]


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)
