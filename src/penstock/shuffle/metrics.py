# SPDX-License-Identifier: Apache-2.0
"""Counters of one owner (a task, a gate, a partition), cheap enough for the hot path."""

from __future__ import annotations


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
