# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's knowledge as samples of metrics: environments, jobs, stages, tasks, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.job.core.result import CheckpointCounts, JobProgress
from penstock.job.shell.environments import AttachedEnvironment
from penstock.job.shell.figures import TaskFigures
from penstock.observe import catalogue
from penstock.observe.samples import (
    Sample,
    channel_samples,
    environment_samples,
    job_samples,
    part_samples,
    share_samples,
    task_samples,
    use_samples,
)
from penstock.shuffle import Metric


def all_environments(attached: Iterable[AttachedEnvironment]) -> Iterator[Sample]:
    """The environments that are attached."""
    for environment in attached:
        said, heard = environment.said, environment.heard
        address = "" if heard is None else heard.metrics
        yield Sample(catalogue.ENVIRONMENT_INFO, (said.environment, said.host, str(said.pid), address), 1)
        if heard is not None:
            yield from environment_samples(said.environment, heard.statistics, heard.partitions)
            yield from channel_samples(heard.channels)
            yield from use_samples(said.environment, heard.uses)


def all_tasks(figures: TaskFigures, declared: Mapping[str, Metric]) -> Iterator[Sample]:
    """The tasks of jobs that run."""
    for attempt, told, shares in figures:
        yield from task_samples(attempt, told, declared)
        yield from share_samples(attempt, shares)


def one_job(progress: JobProgress) -> Iterator[Sample]:
    """A job that runs, its stages and its last checkpoint."""
    job = progress.job
    yield Sample(catalogue.JOB_INFO, (job, progress.name, progress.state.name.lower()), 1)
    figures = {"seconds": progress.seconds, **_figures_of(progress.checkpoints)}
    if (lost := progress.lost_rows) is not None:
        figures |= {"rows_lost": sum(lost.lost.values()), "links_open": lost.open}
    yield from job_samples(job, figures)
    for stage in progress.vertices:
        number = str(stage.vertex)
        yield Sample(catalogue.STAGE_INFO, (job, number, stage.name), 1)
        waiting = stage.parallelism - stage.running - stage.finished
        states = {"running": stage.running, "ended": stage.finished, "waiting": max(0, waiting)}
        for state, count in states.items():
            yield Sample(catalogue.STAGE_TASKS, (job, number, state), count)
    complete = [report for report in progress.checkpoints.reports if not report.cause]
    if complete:
        yield from part_samples(job, complete[-1].tasks)


def ended_jobs(ended: Mapping[str, int]) -> Iterator[Sample]:
    """The number of jobs that have ended, by how."""
    for outcome, count in ended.items():
        yield Sample(catalogue.ENDED_JOBS, (outcome,), count)


def _figures_of(counts: CheckpointCounts) -> dict[str, float]:
    figures: dict[str, float] = {
        "restarts": counts.restarts,
        "restarts_alone": counts.restarts_alone,
        "completed": counts.completed,
        "failed": counts.failed,
    }
    complete = [report for report in counts.reports if not report.cause]
    if counts.last is not None and complete:
        last = complete[-1]
        figures["last"], figures["last_seconds"] = counts.last, last.seconds
        for name, figure in (("last_bytes", "bytes"), ("last_in_flight_bytes", "in_flight_bytes")):
            figures[name] = sum(part.get(figure, 0.0) for part in last.tasks.values())
    return figures
