# SPDX-License-Identifier: Apache-2.0
"""Streams to job graphs.

The steps become vertices and edges (`penstock.api.planned_vertices`), which are fitted to the slots and buffers at
hand (`penstock.api.fitting`). Sources read no more than is needed of them (`penstock.api.pushdown`), and very many
of one kind are one (`penstock.api.joined_sources`). The result is kept by the service of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.api.fitting import fitted, shares_of, with_open_parallelism
from penstock.api.joined_sources import joined_sources
from penstock.api.lineage import Step
from penstock.api.planned_vertices import PlanBuilder
from penstock.api.pushdown import pushed_down
from penstock.errors import SettingError
from penstock.graph import JobGraph, KeptBy, refuse_ordered_sides
from penstock.graph.job_graph import shortened
from penstock.graph.streaming import StreamingOptions
from penstock.settings import Settings
from penstock.shuffle import load_service
from penstock.shuffle.kinds import AUTO

PLANNING_SLOTS = 8
"""Slots that are assumed where a plan is only looked at, and there may be no session to ask."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A job graph, and the DataFrames that its vertices read, by vertex."""

    graph: JobGraph
    dataframes: dict[int, object]

    @property
    def parts(self) -> tuple[JobGraph, dict[int, Any]]:
        """Both, as the runtime takes them."""
        return self.graph, dict(self.dataframes)


def plan_job(
    results: Sequence[Step],
    settings: Settings,
    slots: int,
    *,
    keep: bool = True,
    persist: bool = False,
    buffers: int | None = None,
) -> Plan:
    """The job that makes these results; its output is the job's result if it is to `keep` it, else dropped.

    With `persist` it stays until it is released by name. `buffers` are the network buffers of all environments
    together; None where that is not known. Raises PlanError for what cannot run, by the names of the stages, and
    SettingError for what a shuffle service can't carry.
    """
    builder = PlanBuilder(settings)
    vertices = builder.build(pushed_down(joined_sources(tuple(results))))
    names = [vertex.title for vertex in builder.vertices]
    graph = JobGraph(
        shortened(names[vertices[-1]]),
        tuple(vertex.job_vertex(name, 1) for vertex, name in zip(builder.vertices, names, strict=True)),
        tuple(builder.edges),
        tuple(vertices) if keep else (),
        kept_by=_keeper(builder.service_in_use(settings.shuffle.service), persist=persist) if keep else None,
    )
    graph = fitted(graph, builder, slots, buffers)
    refuse_ordered_sides(graph, settings.network.flow_control)
    graph = with_open_parallelism(graph, builder.vertices, settings.blocking.max_subpartitions)
    dataframes = {
        vertex.id: vertex.source.dataframe
        for vertex in builder.vertices
        if vertex.source is not None and vertex.source.dataframe is not None
    }
    return Plan(graph, dataframes)


def plan_query(
    results: Sequence[Step],
    settings: Settings,
    slots: int,
    options: StreamingOptions,
    cores: int | None = None,
    tasks: int | None = None,
) -> JobGraph:
    """The job of a streaming query, whose tasks run all at once over pipelined exchanges.

    An exchange has another kind only where the stream asked for it, which is the caller's to refuse. All tasks share
    these `cores`: a stage has no more tasks than that, unless an argument says how many. Rows in smaller batches cost
    more, and no core is left that could take them. With `tasks` each stage that may have any number has so many.
    """
    builder = PlanBuilder(replace(settings, shuffle=replace(settings.shuffle, mode=AUTO)), is_query=True)
    builder.build(tuple(results))
    if tasks is not None:
        builder.widen(tasks)
    names = [vertex.title for vertex in builder.vertices]
    shares = shares_of(builder.vertices, tuple(vertex.id for vertex in builder.vertices), slots, cores)
    vertices = tuple(
        vertex.job_vertex(name, shares[vertex.leader]) for vertex, name in zip(builder.vertices, names, strict=True)
    )
    return JobGraph(options.name, vertices, tuple(builder.edges), streaming=options)


def _keeper(service: str, *, persist: bool) -> KeptBy:
    """The keeper of a result: the job's own service; raises SettingError where that keeps nothing."""
    carried = load_service(service).capabilities
    kind = carried.persisted if persist else carried.result
    if kind is None:
        raise SettingError(
            f"the shuffle service {service!r} keeps no rows that were read, so it can't keep a result: use run(), or "
            "name another one in spark.penstock.shuffle.service and this one at its exchanges"
        )
    return KeptBy(service, kind)
