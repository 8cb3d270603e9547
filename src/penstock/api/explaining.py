# SPDX-License-Identifier: Apache-2.0
"""The plan of a stream for people, as text and as a picture. Nothing runs, nothing of a persisted stream is made."""

from __future__ import annotations

import html
from typing import Any

from penstock.api.lineage import Step
from penstock.api.persisted import PersistedReading
from penstock.api.plan import PLANNING_SLOTS, plan_job
from penstock.api.streaming.refusals import is_streaming
from penstock.errors import PenstockError
from penstock.graph import JobGraph, explain_graph
from penstock.graph.drawing import draw_graph
from penstock.settings import Settings


def explained(branches: tuple[Step, ...], session: Any) -> str:
    """See `Stream.explain`."""
    if is_streaming(branches):
        return explain_graph(_query(branches, session))
    if session is None:
        return explain_graph(plan_job(branches, Settings(), PLANNING_SLOTS).graph)
    return _reading(session).explain(branches)


def pictured(branches: tuple[Step, ...], session: Any) -> str:
    """The plan for a notebook's cell: a picture above the text; in place of a plan that can't be, the reason."""
    try:
        graph, text = _planned(branches, session), explained(branches, session)
    except PenstockError as error:
        return f"<pre>{html.escape(str(error))}</pre>"
    return (
        f"{draw_graph(graph)}<details><summary>{len(graph.vertices)} stages</summary>"
        f"<pre>{html.escape(text)}</pre></details>"
    )


def _planned(branches: tuple[Step, ...], session: Any) -> JobGraph:
    if is_streaming(branches):
        return _query(branches, session)
    if session is None:
        return plan_job(branches, Settings(), PLANNING_SLOTS).graph
    return _reading(session).sketch(branches)


def _query(branches: tuple[Step, ...], session: Any) -> JobGraph:
    from penstock.api.streaming.writer import sketched_query

    return sketched_query(branches, session)


def _reading(session: Any) -> PersistedReading:
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(session)
    return PersistedReading(runtime, runtime.settings())
