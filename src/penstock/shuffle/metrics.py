# SPDX-License-Identifier: Apache-2.0
"""Counters of one owner (a task, a gate, a partition), cheap enough for the hot path, and what names and units say.

A service counts in the group of its owner. Its figures are exported under the names that its attribute `metrics`
declares; a figure that is not declared is exported too, under one name for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import PlanError

_ENGINES = ("channel", "checkpoint", "disk", "driver", "environment", "job", "stage", "task", "user", "worker")
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


OPERATOR_GROUP, KEY_GROUP, SERVICE_GROUP = "operator.", "key.", "service."
"""The beginnings of figures in a task's report: seconds by operator, shares of keys, and what a service counts."""
ROWS_GROUP = "rows."
"""The beginning of a task's counts of rows by channel, for those who account for lost ones."""
DISK_GROUP = "disk."
"""The beginning of those that its environment adds up by disk: the figure, a dot, and the disk."""
PROFILE_GROUP = "profile."
"""The beginning of a task's seconds by stack of users' functions, where they are profiled."""
READING, WRITING = "(reading)", "(writing)"
"""The parts of a task's work that no operator does: its input and its outputs."""


WATERMARK = "watermark_seconds"
"""The figure that says how far event time is at a task, in seconds since 1970: the least of several counts."""
RESIDENT, PEAK_RESIDENT = "resident_bytes", "peak_resident_bytes"
"""The memory of the process in which a task runs, and the most while it ran: of several counts the greatest."""


class MetricKind(StrEnum):
    """A counter only grows, a gauge is what it is now."""

    COUNTER = "counter"
    GAUGE = "gauge"


TASK_LABELS = ("job", "stage", "subtask")
"""The labels of everything that is a task's."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name with its unit, what it says, its labels, and the figure in reports that it comes from.

    `peer` is Flink's name for it. Raises PlanError for a name that no scraper takes.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = TASK_LABELS
    figure: str = ""
    peer: str = ""

    def __post_init__(self) -> None:
        is_counter = self.kind is MetricKind.COUNTER
        if _NAME.fullmatch(self.name) is None or self.name.endswith("_total") is not is_counter:
            raise PlanError(
                f"a metric can't be named {self.name!r}: small letters, digits and single underscores, and"
                " `_total` at the end of counters and of nothing else"
            )


def declared_metrics(service: object) -> tuple[Metric, ...]:
    """The metrics that a service declares; raises PlanError for one with the name or the labels of something else."""
    declared: tuple[Metric, ...] = tuple(getattr(service, "metrics", ()))
    for metric in declared:
        taken = [part for part in _ENGINES if metric.name.startswith(f"penstock_{part}_")]
        if taken or metric.labels != TASK_LABELS or not metric.figure:
            raise PlanError(
                f"metric {metric.name} of a shuffle service must have a figure, the labels {', '.join(TASK_LABELS)},"
                f" and a name that does not begin as the engine's do (penstock_ and one of {', '.join(_ENGINES)})"
            )
    return declared


class MetricGroup:
    """A named set of numbers with child groups; written by one thread, read by any."""

    __slots__ = ("children", "name", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, float] = {}
        self.children: dict[str, MetricGroup] = {}

    def add(self, metric: str, amount: float = 1) -> None:
        """Add to a counter, starting from zero."""
        self.values[metric] = self.values.get(metric, 0) + amount

    def set(self, metric: str, value: float) -> None:
        """Set a gauge."""
        self.values[metric] = value

    def group(self, name: str) -> MetricGroup:
        """The child group of this name, made on first use."""
        child = self.children.get(name)
        if child is None:
            child = self.children[name] = MetricGroup(name)
        return child

    def snapshot(self) -> dict[str, float]:
        """All numbers of this group and, with dotted names, of its children."""
        flat = dict(self.values)
        for name, child in list(self.children.items()):
            for metric, value in child.snapshot().items():
                flat[f"{name}.{metric}"] = value
        return flat
