# SPDX-License-Identifier: Apache-2.0
"""The use of an environment's disks and workers: its own work for disks and its tasks' put together, by disk.

A task's process tells all that it has done since it began, again and again, and works for many tasks one after the
other: what it told last is kept by process, and what has come since is added. A process that tells less than before
is another one with the same number.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from penstock.environment.tasks.attached import AttachedTask
from penstock.link.figures import UseFigures, UseKind
from penstock.machine.disk_work import DISKS, DiskWork

PROCESSES = 1_024
"""Processes of tasks whose last word is kept."""
ITSELF = "environment"
"""The name of the environment process among its workers."""
_WAITS = ("idle_seconds", "back_pressured_seconds", "storing_seconds")


class HostUses:
    """The uses of one environment."""

    def __init__(self, disks: DiskWork = DISKS) -> None:
        self._disks = disks
        self._told: OrderedDict[int, Mapping[str, float]] = OrderedDict()
        self._sums: Counter[str] = Counter()
        self._began = time.monotonic()

    def task_told(self, pid: int, figures: Mapping[str, float]) -> None:
        """The process of a task has done so much for disks since it began."""
        before = self._told.pop(pid, {})
        is_another = any(value < before.get(name, 0.0) for name, value in figures.items())
        for name, value in figures.items():
            self._sums[name] += value if is_another else value - before.get(name, 0.0)  # type: ignore[assignment]
        self._told[pid] = dict(figures)
        while len(self._told) > PROCESSES:
            self._told.popitem(last=False)

    def figures(self, tasks: Iterable[AttachedTask]) -> tuple[UseFigures, ...]:
        """Each disk and each worker; the environment process is a worker too, by its processor seconds."""
        disks = {disk: Counter(figures) for disk, figures in self._disks.figures().items()}
        for name, value in self._sums.items():
            figure, _, disk = name.partition(".")
            disks.setdefault(disk, Counter())[figure] += value
        own = {"seconds": time.monotonic() - self._began, "busy_seconds": time.process_time()}
        return (
            *(UseFigures(UseKind.DISK, disk, dict(figures)) for disk, figures in sorted(disks.items())),
            UseFigures(UseKind.WORKER, ITSELF, own),
            *(_worker(task) for task in tasks if "seconds" in task.metrics),
        )


def _worker(task: AttachedTask) -> UseFigures:
    seconds = task.metrics["seconds"]
    waits = sum(task.metrics.get(name, 0.0) for name in _WAITS)
    figures = {"seconds": seconds, "busy_seconds": max(0.0, seconds - waits)}
    return UseFigures(UseKind.WORKER, f"pid {task.pid}", figures, task.attempt)
