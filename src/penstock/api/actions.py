# SPDX-License-Identifier: Apache-2.0
"""The verbs that run a stream: a lazy DataFrame, a run without output, and the actions that give rows to the driver.

They read the result in the order of its partitions, so that the first rows of a sorted stream are the first: the
driver itself where the result is on its host, else through the DataFrame that `toDF` gives. `take` and `show` end
each task once it has enough rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.api.lineage import OperatorStep, Step
from penstock.api.persisted import PersistedReading
from penstock.api.plan import PLANNING_SLOTS, Plan, plan_job
from penstock.api.read_results import run_and_read
from penstock.api.streaming.refusals import refuse_stream
from penstock.errors import PlanError
from penstock.operators.verbs import Limit

if TYPE_CHECKING:
    from penstock.job.core.result import JobResult
    from penstock.spark.user_types import DataFrame


def require_session(session: Any, verb: str) -> Any:
    """The session, or a PlanError that says where one comes from."""
    if session is None:
        raise PlanError(
            f"{verb} needs a Spark session and this stream's sources have none: "
            "run it with penstock.testing.local_runner.run_local, or start from fromDataFrame or readParquet"
        )
    return session


def dataframe_of(branches: tuple[Step, ...], session: Any, verb: str) -> DataFrame:
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


def run_now(branches: tuple[Step, ...], session: Any) -> JobResult:
    """See `Stream.run`."""
    refuse_stream(branches, "run")
    require_session(session, "run")
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(session)
    settings = runtime.settings()
    reading = PersistedReading(runtime, settings)
    return runtime.run(lambda: reading.plan(branches, keep=False).parts, settings)


def few_rows(branches: tuple[Step, ...], session: Any, verb: str) -> list[tuple[Any, ...]]:
    """Run now, and all rows of the result: for results of a few rows."""
    refuse_stream(branches, verb)
    require_session(session, verb)
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(session)
    reading = PersistedReading(runtime, runtime.settings())
    schema = branches[0].schema
    return run_and_read(branches, reading, lambda finished: runtime.rows(finished, schema, reading.settings))


def all_rows(branches: tuple[Step, ...], session: Any, verb: str, enough: int | None = None) -> Any:
    """Return rows for the driver: a DataFrame, or an object with its `collect`, `take`, `toArrow` and `toPandas`.

    It is no DataFrame where the driver reads the rows itself (`spark/collected`); then the stream has run. Told how
    many rows are `enough`, it may have read no more.
    """
    refuse_stream(branches, verb)
    require_session(session, verb)
    from penstock.spark.collected import is_plain
    from penstock.spark.runtime import SparkRuntime
    from penstock.spark.types import struct_type

    runtime = SparkRuntime.of(session)
    reading = PersistedReading(runtime, runtime.settings())
    schema = branches[0].schema
    is_made = all(runtime.persisted.find(step) for step in branches)
    if is_made or not runtime.reads_results(reading.settings) or not is_plain(struct_type(schema)):
        return dataframe_of(branches, session, verb)
    return run_and_read(branches, reading, lambda done: runtime.collected(done, schema, reading.settings, enough))


def first_rows(branches: tuple[Step, ...], rows: int) -> tuple[Step, ...]:
    """The branches, each task ending once it has given so many rows."""
    return tuple(OperatorStep(branch, Limit(rows), branch.schema) for branch in branches)
