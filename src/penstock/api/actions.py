# SPDX-License-Identifier: Apache-2.0
"""What runs a stream: a lazy DataFrame, a run without output, and the actions that give rows to the driver.

`count` sends one number; the others read the DataFrame that `toDF` gives, in the order of its partitions, so that
the first rows of a sorted stream are the first. `take` and `show` end each task once it has enough rows.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from penstock.api.lineage import OperatorStep, Step
from penstock.api.persisted import PersistedReading
from penstock.api.plan import PLANNING_SLOTS, Plan, plan_job
from penstock.api.streaming.refusals import refuse_stream
from penstock.graph import explain_graph
from penstock.shuffle import Settings
from penstock.shuffle.errors import PlanError
from penstock.task.verbs import Limit

_RUNS = 3
_TOLD_SECONDS = 2.0


def require_session(session: Any, verb: str) -> Any:
    """The session, or a PlanError that says where one comes from."""
    if session is None:
        raise PlanError(
            f"{verb} needs a Spark session and this stream's sources have none: "
            "run it with penstock.testing.local_runner.run_local, or start from fromDataFrame or readParquet"
        )
    return session


def dataframe_of(branches: tuple[Step, ...], session: Any, verb: str) -> Any:
    """See `Stream.toDF`; `verb` is whose errors they are."""
    refuse_stream(branches, verb)
    require_session(session, verb)
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(session)
    settings = runtime.settings()
    outline = PersistedReading(runtime, settings).outline(branches)
    slots = runtime.certain_slots()
    graph = plan_job(outline, settings, slots or PLANNING_SLOTS, buffers=runtime.buffers(settings)).graph
    runtime.refuse(graph, slots)

    def build(user: Any) -> Any:
        made = PersistedReading(runtime, settings, user).plan_or_made(branches)
        return (made.graph, made.dataframes) if isinstance(made, Plan) else made

    title = " -> ".join(stage.name for stage in graph.vertices)
    return runtime.dataframe(build, branches[0].schema, settings, title)


def run_now(branches: tuple[Step, ...], session: Any) -> Any:
    """See `Stream.run`."""
    refuse_stream(branches, "run")
    require_session(session, "run")
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(session)
    settings = runtime.settings()
    reading = PersistedReading(runtime, settings)
    return runtime.run(lambda: reading.plan(branches, keep=False).parts, settings)


def explained(branches: tuple[Step, ...], session: Any) -> str:
    """See `Stream.explain`."""
    if session is None:
        return explain_graph(plan_job(branches, Settings(), PLANNING_SLOTS).graph)
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(session)
    return PersistedReading(runtime, runtime.settings()).explain(branches)


def few_rows(branches: tuple[Step, ...], session: Any, verb: str) -> list[tuple[Any, ...]]:
    """Run now, and all rows of the result: for results of a few rows.

    Should they be lost before they are read, with the environment that holds them, the stream runs again.
    """
    refuse_stream(branches, verb)
    require_session(session, verb)
    from penstock.spark.checks import refuse_what_cannot_travel
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(session)
    reading = PersistedReading(runtime, runtime.settings())
    refuse_what_cannot_travel(plan_job(reading.outline(branches), reading.settings, PLANNING_SLOTS).graph)
    runs_left = _RUNS
    while True:
        runs_left -= 1
        gone = threading.Event()
        finished = runtime.finished(lambda: reading.plan(branches).parts, reading.settings, lost=gone.set)
        try:
            return runtime.rows(finished, branches[0].schema, reading.settings)
        except Exception:
            # Spark says that its task failed; the JobMaster, maybe a little later, whether our result is gone.
            if not runs_left or not gone.wait(_TOLD_SECONDS):
                raise
        finally:
            runtime.release(finished.result.job)


def first_rows(branches: tuple[Step, ...], rows: int) -> tuple[Step, ...]:
    """The branches, each task ending once it has given so many rows."""
    return tuple(OperatorStep(branch, Limit(rows), branch.schema) for branch in branches)


def arrow_table(branches: tuple[Step, ...], session: Any) -> pa.Table:
    """All rows, in Spark's Arrow types."""
    return dataframe_of(branches, session, "toArrow").toArrow()
