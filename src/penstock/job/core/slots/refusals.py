# SPDX-License-Identifier: Apache-2.0
"""The messages to a job that does not get the slots it needs: the numbers, and the ways out."""

from __future__ import annotations

from penstock.errors import JobCancelledError, PenstockError
from penstock.graph import JobGraph
from penstock.job.core.execution.capacity import Capacity
from penstock.job.core.ids import TaskId
from penstock.job.core.states import JobState


def slots_missing(got: int, needed: int, seconds: float) -> str:
    """The tasks of a region did not all come."""
    return (
        f"{got} of {needed} slots obtained within {seconds:g} s (spark.penstock.job.slotsTimeout):"
        " other Spark jobs hold the rest; wait for them, use a smaller numPartitions, or give Spark more cores"
    )


def too_few_slots(graph: JobGraph, needed: int, total: int) -> str:
    """The job or query can never fit."""
    query, job = graph.streaming, f"job {graph.name}"
    who = job if query is None else f"query {query.name or query.query}"
    ways = (
        f" use a smaller numPartitions, give Spark more cores (local[{needed}] where it is local), or set"
        " spark.task.cpus below 1, so that tasks share cores"
    )
    if query is None:
        ways += '; or set mode="blocking" on an exchange, so that its two sides run one after the other'
    return f"{who} needs {needed} task slots at the same time, but the application has {total}:{ways}"


def slots_lost(name: str, needed: int, capacity: Capacity) -> str:
    """The job did fit, and does no more."""
    what = f": {capacity.lost}" if capacity.lost else ""
    return (
        f"job {name} needs {needed} task slots at the same time, and of {capacity.planned} the application has"
        f" {capacity.total} left{what}. Bring back what is lost, use a smaller numPartitions, or leave the mode of"
        ' its pipelined exchanges to the plan (mode="auto")'
    )


def slots_awaited(name: str, needed: int, total: int, seconds: float) -> str:
    """The job has lost slots, and there is no plan for those that are left."""
    return (
        f"job {name} has lost task slots and needs {needed} at the same time however it is planned: {total} are left;"
        f" it waits for them to come back, {seconds:g} s at most (spark.penstock.job.slotsTimeout)"
    )


def slots_shown(needed: int, total: int) -> str:
    """The same in a line of progress."""
    return f"waits for lost slots: {total} of {needed} are there"


def slots_not_returned(name: str, needed: int, total: int, seconds: float) -> str:
    """They did not come back."""
    return (
        f"job {name} waited {seconds:g} s (spark.penstock.job.slotsTimeout) for the lost slots to come back: it needs"
        f" {needed}, and {total} are there"
    )


def slots_returned(name: str, total: int) -> str:
    """They did."""
    return f"job {name} fits again: {total} task slots are there"


def slots_queue_timeout(name: str, needed: int, seconds: float) -> str:
    """Other Penstock jobs held the slots for too long."""
    return (
        f"job {name} waited {seconds:g} s (spark.penstock.job.slotsTimeout) beside other Penstock jobs for its slots:"
        f" 0 of {needed} slots obtained; run them one after the other, stop a streaming query (it keeps its slots),"
        " use a smaller numPartitions, or give Spark more cores"
    )


def no_slot_for_dataframe(name: str, slots: int) -> str:
    """All slots are held by tasks that wait for a job which can't read its DataFrame without one."""
    return (
        f"a partition that this task reads is lost, and job {name}, which makes it again, has to read a DataFrame for"
        f" that; all {slots} slots are held by tasks that wait for it. Run the action again when this one has ended:"
        " the job goes on and its result stays. To prevent it, leave a slot free (a smaller numPartitions), or"
        " persist() the stream ahead and make the DataFrame again with toDF()"
    )


def too_late(task: TaskId, name: str, state: JobState) -> PenstockError:
    """A task comes when its job ends or has ended."""
    return JobCancelledError(f"{task}: job {name} is {state.name}; this task may end")
