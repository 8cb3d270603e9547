# SPDX-License-Identifier: Apache-2.0
"""The processes of an application side by side: which of them is slow, as far as their figures can tell.

A process is slow if its tasks of a stage do fewer rows in a second of work than those of the same stage elsewhere:
time in which it waits for others does not count. A stage that one process has whole is compared with none. Its disks,
workers and users are compared in `uses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.job.shell.processes import ProcessNow, TaskNow
from penstock.shuffle.metrics import PEAK_RESIDENT, RESIDENT
from penstock.web.uses import SLOW, UseNow, uses_document

SILENT = 5.0
"""One is named that has said nothing for so many seconds."""


@dataclass(slots=True)
class _Work:
    """The tasks of one stage in one process."""

    tasks: int = 0
    rows: float = 0.0
    seconds: float = 0.0
    shares: dict[str, float] = field(default_factory=lambda: {"busy": 0.0, "back_pressured": 0.0})

    def add(self, task: TaskNow) -> None:
        """One more task."""
        self.tasks += 1
        self.rows += task.rows
        self.seconds += task.busy_seconds
        for name in self.shares:
            self.shares[name] += task.shares.get(name, 0.0)

    @property
    def pace(self) -> float | None:
        """Rows in a second of work."""
        return self.rows / self.seconds if self.seconds > 0 and self.rows else None


def processes_document(processes: Sequence[ProcessNow], uses: Sequence[UseNow] = ()) -> dict[str, Any]:
    """The tables of the page, and the sentences."""
    paces = _paces(processes)
    used = uses_document(processes, uses)
    return {
        **used,
        "text": " ".join([*_slow(processes, paces), *used["text"]]) or _nothing(processes, paces),
        "paces": paces,
        "processes": [_process(each) for each in processes],
        "partitions": [
            [each.name, *(part[name] for name in ("service", "kind", "state", "count", "bytes"))]
            for each in processes
            for part in each.partitions
        ],
    }


def _paces(processes: Sequence[ProcessNow]) -> list[list[Any]]:
    work: dict[tuple[str, int], dict[str, _Work]] = {}
    for process in processes:
        for task in process.tasks:
            work.setdefault((task.job, task.stage), {}).setdefault(process.name, _Work()).add(task)
    rows = []
    for (job, stage), by_process in sorted(work.items()):
        for name, done in by_process.items():
            others = [each for other, each in by_process.items() if other != name]
            shares = (round(share / done.tasks, 3) for share in done.shares.values())
            pace = done.pace
            told = None if pace is None else round(pace)
            rows.append([job, stage, name, done.tasks, round(done.rows), told, _part(done, others), *shares])
    return rows


def _part(done: _Work, others: list[_Work]) -> float | None:
    """The pace as a part of the others'."""
    seconds, rows = sum(each.seconds for each in others), sum(each.rows for each in others)
    if done.pace is None or not rows or seconds <= 0:
        return None
    return round(done.pace / (rows / seconds), 3)


def _process(process: ProcessNow) -> list[Any]:
    figures = process.figures
    used, size = figures.get("memory_in_use_bytes"), figures.get("memory_bytes")
    share = None if used is None or not size else round(used / size, 3)
    told = ("hybrid_spilled_bytes", "read_bytes_held", "connections", "remote_bytes_in", "remote_bytes_out")
    place = (process.name, process.host, process.pid, round(process.silent, 1), len(process.tasks))
    resident = [task.resident for task in process.tasks if task.resident is not None]
    memory = (figures.get(RESIDENT), figures.get(PEAK_RESIDENT), sum(resident) if resident else None)
    counts = (figures.get(name) for name in told)
    return [*place, *memory, used, size, share, *counts, process.metrics or "not served"]


def _slow(processes: Sequence[ProcessNow], paces: list[list[Any]]) -> list[str]:
    """A sentence for each process that is silent, and for the slowest one."""
    found = [
        f"{each.name} has been silent for {each.silent:.0f} s: its host is busy, paused or gone."
        for each in processes
        if each.silent >= SILENT
    ]
    slowest = min((row for row in paces if row[6] is not None), key=lambda row: row[6], default=None)
    if slowest is not None and slowest[6] < SLOW:
        job, stage, name, part = slowest[0], slowest[1], slowest[2], slowest[6]
        found.append(f"{name} is slow: its tasks of stage {stage} of {job} do {part:.0%} of the others' pace.")
    return found


def _nothing(processes: Sequence[ProcessNow], paces: list[list[Any]]) -> str:
    """The sentence where nothing is slow."""
    if not processes:
        return "No environment process is attached."
    if all(row[6] is None for row in paces):
        return "No stage runs in several processes, and no worker, disk or user is slow."
    return "No process, worker, disk or user is much slower than others."
