# SPDX-License-Identifier: Apache-2.0
"""The two scenarios under one scheme, each in a cluster of its own.

A: two sources, each with a consumer, share one connection; at a moment one consumer stops. B: one source feeds two
consumers in turns; at a moment one of them becomes slow, and then aligned checkpoints are taken, one after the other.
In both the rate of the healthy consumer is measured first while nothing holds it back (its *lone* rate).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock_lab import figures
from penstock_lab.cluster import SINKS, SOURCES, LabCluster
from penstock_lab.figures import BIN, SourceTrace, Window
from penstock_lab.options import LabOptions
from penstock_lab.tasks import LabSink, LabSource, LabTask, stop_all

STEP = 0.02
"""Seconds between two looks whether a task has failed."""
SETTLE = 1.0
"""Seconds in which buffers fill, or a rate comes to be, before it is measured."""
CHECKPOINT_LIMIT = 30.0
"""A checkpoint that takes longer ends the run: what is measured would be something else."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run's figures. Rates in batches per second, times in seconds, buffers as batches of one segment each."""

    scenario: str
    scheme: str
    lone_rate: float
    healthy_rate: float
    source_noticed: float | None
    """From the consumer's stop or slowing until its source first had no room."""
    buffers_in_flight: float
    """Given by the source and not taken by the stuck or slow consumer: the mean."""
    healthy_in_flight: float
    starved: float
    """The seconds in which the healthy consumer had room and got nothing."""
    measured: float
    """The length of the time that was measured."""
    variation: float
    """Of the source that is still wanted: the standard deviation over the mean of its batches per 100 ms."""
    checkpoints: tuple[float, ...]
    connections: int
    began: float
    """When the series begins, from the stop or slowing on: before it, so negative."""
    source_series: tuple[int, ...]
    healthy_series: tuple[int, ...]
    """Batches in each 100 ms."""

    @property
    def share(self) -> float:
        """The part of its lone rate that the healthy consumer keeps."""
        return self.healthy_rate / self.lone_rate if self.lone_rate else 0.0

    @property
    def checkpoint(self) -> float | None:
        """The median of the checkpoints."""
        return figures.median(self.checkpoints)


def run(scenario: str, scheme: str, options: LabOptions) -> RunFigures:
    """One scenario under one scheme."""
    work = {"A": _stopped, "B": _slowed}[scenario]
    with LabCluster(options.conf(scheme)) as cluster:
        tasks: list[LabTask] = []
        try:
            measured = work(cluster, options, tasks)
        finally:
            stop_all(tasks)
        return measured(scheme)


Measured = Callable[[str], RunFigures]
"""Makes the figures when all tasks have ended: by then every refusal has its end."""


def _stopped(cluster: LabCluster, options: LabOptions, tasks: list[LabTask]) -> Measured:
    source, sink = LabSource(cluster, 1, 1, options.rate), LabSink(cluster, 1, cluster.descriptor(1), 0)
    _start(tasks, source, sink)
    lone = _lone(tasks, options)
    stuck_source, stuck = LabSource(cluster, 0, 1, options.rate), LabSink(cluster, 0, cluster.descriptor(0), 0)
    _start(tasks, stuck_source, stuck)
    _pass(SETTLE, tasks)
    moment = time.monotonic()
    stuck.pause = math.inf
    _pass(SETTLE, tasks)
    window = Window(time.monotonic(), time.monotonic() + options.seconds)
    _pass(options.seconds, tasks)
    connections = _connections(cluster)

    def measured(scheme: str) -> RunFigures:
        parts = _Parts(stuck_source.trace, source.trace, sink, stuck, (None, None))
        return parts.figures("A", scheme, (lone, window), moment, connections)

    return measured


def _slowed(cluster: LabCluster, options: LabOptions, tasks: list[LabTask]) -> Measured:
    source = LabSource(cluster, 0, 2, 2 * options.rate)
    slow, sink = (LabSink(cluster, number, cluster.descriptor(0), number) for number in range(2))
    _start(tasks, source, slow, sink)
    lone = _lone(tasks, options)
    moment = time.monotonic()
    slow.pause = options.slowdown / options.rate
    _pass(2 * SETTLE, tasks)
    window = Window(time.monotonic(), time.monotonic() + options.seconds)
    _pass(options.seconds, tasks)
    _take_checkpoints(source, (slow, sink), tasks, options.seconds)
    connections = _connections(cluster)

    def measured(scheme: str) -> RunFigures:
        parts = _Parts(source.trace, source.trace, sink, slow, (1, 0))
        return parts.figures("B", scheme, (lone, window), moment, connections)

    return measured


@dataclass(frozen=True, slots=True)
class _Parts:
    """The traces of a run: of the source that should notice, of the one that is still wanted, and of both consumers.

    `channels` are those of the healthy and of the other consumer, None where each has a source of its own.
    """

    noticing: SourceTrace
    wanted: SourceTrace
    healthy: LabSink
    other: LabSink
    channels: tuple[int | None, int | None]

    def figures(
        self, scenario: str, scheme: str, windows: tuple[Window, Window], moment: float, connections: int
    ) -> RunFigures:
        """All figures."""
        lone, window = windows
        healthy, given = self.healthy.trace.taken, self.wanted.times()
        series = Window(moment - SETTLE, window.end)
        stuck_given, healthy_given = (
            self.noticing.times(self.channels[1]),
            self.wanted.times(self.channels[0]),
        )
        sinks = (self.other.trace, self.healthy.trace)
        return RunFigures(
            scenario,
            scheme,
            figures.rate(healthy, lone),
            figures.rate(healthy, window),
            figures.noticed(self.noticing, moment),
            _mean(figures.in_flight(stuck_given, self.other.trace.taken, window)),
            _mean(figures.in_flight(healthy_given, healthy, window)),
            figures.starvation(healthy, window),
            window.seconds,
            figures.variation(figures.per_bin(given, window)),
            tuple(figures.checkpoints(self.noticing, sinks)),
            connections,
            -SETTLE,
            tuple(figures.per_bin(given, series)),
            tuple(figures.per_bin(healthy, series)),
        )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _start(tasks: list[LabTask], *more: LabTask) -> None:
    for task in more:
        tasks.append(task)
        task.start()


def _lone(tasks: Sequence[LabTask], options: LabOptions) -> Window:
    """Let the healthy consumer run alone for a while."""
    _pass(SETTLE, tasks)
    window = Window(time.monotonic(), time.monotonic() + options.seconds / 2)
    _pass(options.seconds / 2, tasks)
    return window


def _take_checkpoints(source: LabSource, sinks: Sequence[LabSink], tasks: Sequence[LabTask], seconds: float) -> None:
    """One after the other, for about so long."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end or not number:
        number += 1
        source.trigger(number)
        limit = time.monotonic() + CHECKPOINT_LIMIT
        while not all(number in sink.trace.barriers for sink in sinks) and time.monotonic() < limit:
            _pass(STEP, tasks)
        _pass(4 * BIN + STEP * number, tasks)  # not in step with the flag


def _connections(cluster: LabCluster) -> int:
    """The connections between the two environments."""
    opened = cluster.statistics(SINKS)["connections"]
    return int(opened + cluster.statistics(SOURCES)["connections"])


def _pass(seconds: float, tasks: Sequence[LabTask]) -> None:
    """Let so much time pass; raises the error of a task that has one."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while (left := end - time.monotonic()) > 0:
        for task in tasks:
            task.check()
        pause.wait(min(left, STEP))
