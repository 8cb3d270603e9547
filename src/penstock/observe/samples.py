# SPDX-License-Identifier: Apache-2.0
"""Figures of reports as samples of metrics: one way for the driver, for environments, and for what comes.

A figure that no metric is made from is left out, but for those of shuffle services (`service.<name>`): these are
exported under the name that the service declares, or else under one name for all. Keys that a report tells as the
most frequent ones (`key.<text>`) are rows' data, and are never exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.link.figures import ChannelFigures, PartitionFigures, UseFigures
from penstock.link.master import Heartbeat
from penstock.observe import catalogue
from penstock.shuffle import AttemptId, Metric
from penstock.shuffle.metrics import OPERATOR_GROUP, SERVICE_GROUP


class Sample(NamedTuple):
    """One value of one metric, with the values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def busy_seconds(figures: Mapping[str, float]) -> float:
    """The time in which a task worked."""
    waits = ("idle_seconds", "back_pressured_seconds", "storing_seconds")
    return max(0.0, figures.get("seconds", 0.0) - sum(figures.get(name, 0.0) for name in waits))


def task_samples(
    attempt: AttemptId, figures: Mapping[str, float], declared: Mapping[str, Metric] | None = None
) -> Iterator[Sample]:
    """The samples of one task; `declared` are metrics of shuffle services, by their figures."""
    labels = (attempt.job, str(attempt.vertex), str(attempt.subtask))
    yield from _plain(catalogue.TASKS, labels, figures)
    if "seconds" in figures:
        yield Sample(catalogue.BUSY, labels, busy_seconds(figures))
    for name, value in figures.items():
        if name.startswith(OPERATOR_GROUP):
            yield Sample(catalogue.OPERATOR, (*labels, name.removeprefix(OPERATOR_GROUP)), value)
        elif name.startswith(SERVICE_GROUP):
            own = name.removeprefix(SERVICE_GROUP)
            metric = (declared or {}).get(own)
            if metric is None:
                yield Sample(catalogue.SERVICE_FIGURE, (*labels, own), value)
            else:
                yield Sample(metric, labels, value)


def share_samples(attempt: AttemptId, shares: Mapping[str, float]) -> Iterator[Sample]:
    """The shares of a task's last seconds."""
    labels = (attempt.job, str(attempt.vertex), str(attempt.subtask))
    for name, value in shares.items():
        yield Sample(catalogue.SHARES[name], labels, value)


def environment_samples(
    environment: str, statistics: Mapping[str, float], partitions: Iterable[PartitionFigures] = ()
) -> Iterator[Sample]:
    """The samples of one environment."""
    yield from _plain(catalogue.ENVIRONMENTS, (environment,), statistics)
    for found in partitions:
        labels = (environment, found.service, found.kind, found.state)
        yield Sample(catalogue.PARTITIONS, labels, found.count)
        yield Sample(catalogue.PARTITION_BYTES, labels, found.bytes)


def use_samples(environment: str, uses: Iterable[UseFigures]) -> Iterator[Sample]:
    """The samples of an environment's disks, workers and users."""
    for use in uses:
        yield from _plain(catalogue.USES[use.kind.value], (environment, use.name), use.figures)


def heartbeat_samples(heartbeat: Heartbeat, declared: Mapping[str, Metric] | None = None) -> Iterator[Sample]:
    """All that an environment says of itself and of its tasks."""
    yield from environment_samples(heartbeat.environment, heartbeat.statistics, heartbeat.partitions)
    for attempt, figures in heartbeat.tasks:
        yield from task_samples(attempt, figures, declared)
    yield from channel_samples(heartbeat.channels)
    yield from use_samples(heartbeat.environment, heartbeat.uses)


def channel_samples(channels: Iterable[ChannelFigures]) -> Iterator[Sample]:
    """The samples of channels, where they are told in detail."""
    for found in channels:
        attempt = found.attempt
        place = (str(attempt.vertex), str(attempt.subtask), str(found.gate), str(found.channel))
        yield from _plain(catalogue.CHANNELS, (attempt.job, *place), found.figures)


def job_samples(job: str, figures: Mapping[str, float]) -> Iterator[Sample]:
    """The samples of one job's own figures."""
    yield from _plain(catalogue.JOBS, (job,), figures)


def part_samples(job: str, parts: Mapping[str, Mapping[str, float]]) -> Iterator[Sample]:
    """The samples of the tasks' parts of a checkpoint."""
    for task, figures in parts.items():
        yield from _plain(catalogue.PARTS, (job, task), figures)


def _plain(metrics: Iterable[Metric], labels: tuple[str, ...], figures: Mapping[str, float]) -> Iterator[Sample]:
    return (Sample(each, labels, figures[each.figure]) for each in metrics if each.figure in figures)
