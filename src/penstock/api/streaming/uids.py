# SPDX-License-Identifier: Apache-2.0
"""The names of a query's stages in its checkpoints: the same if other parts of the plan change.

A stage is called what `uid()` says. Without that it is known by how its rows come to it: by what its source reads, or
by its exchanges and the stages in front of them, in whatever order a union has them. Operators that follow change
nothing of it, so a filter may be added to a running query between two of its runs.

Two stages of one query may be alike in that, as where one source is read twice. Then their operators tell them apart,
and a change of those is another stage. Stages that are alike in these too can't be told apart: their state would
follow the order in which they stand in the plan, so a query that keeps its checkpoints refuses them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from penstock.errors import PlanError
from penstock.graph import JobGraph, JobVertex
from penstock.stream.sources import what_is_read

_DIGITS = 8


def with_uids(graph: JobGraph, *, is_kept: bool = False) -> JobGraph:
    """The graph with a uid for each vertex; producers come first in a graph.

    Raises PlanError where two stages were given one, or, if a later run may go on from this one, can't be told apart.
    """
    uids: dict[int, str] = {}
    used = Counter(vertex.uid for vertex in graph.vertices if vertex.uid)
    if twice := [uid for uid, count in used.items() if count > 1]:
        raise PlanError(f"uid({twice[0]!r}) is the name of two stages: give each its own")
    numbers = {vertex.id: str(vertex.id) for vertex in graph.vertices}
    by_place = {vertex.id: _place(graph, vertex, numbers) for vertex in graph.vertices}
    alike = Counter(by_place[vertex.id] for vertex in graph.vertices if not vertex.uid)
    for vertex in graph.vertices:
        uid = vertex.uid
        if not uid:
            kind = type(vertex.source).__name__ if vertex.source else graph.inputs_of(vertex.id)[0].exchange.kind
            uid = f"{re.sub(r'[^A-Za-z0-9]+', '_', kind)}-{_digest(_place(graph, vertex, uids))}"
            if alike[by_place[vertex.id]] > 1:
                uid = f"{uid}-{_digest(chr(10).join(operator.name for operator in vertex.operators))}"
            used[uid] += 1
            if used[uid] > 1 and is_kept:
                raise PlanError(
                    f"two stages of this query are {vertex.name!r} and get their rows in the same way, so a "
                    "checkpoint can't tell them apart: give each a name, stream.uid('...')"
                )
            uid = uid if used[uid] == 1 else f"{uid}-{used[uid]}"
        uids[vertex.id] = uid
    return replace(graph, vertices=tuple(replace(vertex, uid=uids[vertex.id]) for vertex in graph.vertices))


def _place(graph: JobGraph, vertex: JobVertex, names: Mapping[int, str]) -> str:
    """The way of a stage's rows to it, by the names of the stages in front."""
    ways = sorted(
        f"{edge.exchange.kind} {getattr(edge.exchange, 'keys', ())} {names[edge.producer]}"
        for edge in graph.inputs_of(vertex.id)
    )
    source = vertex.source
    return "\n".join([*(() if source is None else (type(source).__name__, what_is_read(source))), *ways])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
