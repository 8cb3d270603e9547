# SPDX-License-Identifier: Apache-2.0
"""The runner of the tasks, as the JobMaster needs it: Spark in the product, threads in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.graph.job_graph import JobGraph
from penstock.job.core.events import SparkJobReturned
from penstock.job.core.ids import SparkJob, SparkJobId
from penstock.job.query_storage import QueryStorage
from penstock.settings import Settings

Returned = Callable[[SparkJobReturned], None]
"""The end of a Spark job; called from any thread, once for each."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to run.

    `payload` is the launcher's own business: the DataFrames and the user's thread's properties.
    """

    job: str
    graph: JobGraph
    settings: Settings
    slots_total: int
    payload: object = None
    again: Callable[[JobGraph], Rerun] | None = field(default=None, repr=False, compare=False)
    """Plans the same job once more, by the graph of its first run; None where that can't be done."""
    checkpoints: QueryStorage | None = field(default=None, repr=False, compare=False)
    """Of a streaming query: where its checkpoints are kept, claimed already."""
    may_wait: bool = False
    """True if an earlier plan of this job had its slots and lost them: one that does not fit waits for them."""
    place: str = ""
    """File and line of the user's code that asked for it, where known."""
    planned: float = 0.0
    """The seconds from the user's call until now, in which it was planned."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """A job once more, under a new id.

    `plan` is what a task needs that leases it a slot, as the launcher packs and seals it.
    """

    submission: Submission
    plan: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Start Spark jobs of a job; call `returned` once for each.

    `graph` is the job's plan as it is now: the number of a vertex's subtasks may have been chosen since submission.
    """

    submission: Submission
    graph: JobGraph
    spark_jobs: tuple[SparkJob, ...]
    returned: Returned = field(repr=False)


class Launcher(Protocol):
    """Runs the tasks of admitted jobs."""

    def launch(self, request: LaunchRequest) -> None:
        """Start the Spark jobs on threads of their own; returns at once."""

    def cancel(self, job: str, spark_job: SparkJobId | None = None) -> None:
        """Cancel what is left of a job's Spark jobs, or one of them; may block a little; unknown ones are ignored."""

    def close(self) -> None:
        """Forget everything, without waiting; idempotent."""
