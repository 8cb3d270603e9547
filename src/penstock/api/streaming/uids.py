# SPDX-License-Identifier: Apache-2.0
"""What the stages of a query are called in its checkpoints: the same where other parts of the plan change.

A stage is known by how its rows come to it: its source, or its exchanges and the stages in front of them. Operators
that follow change nothing of it, so a filter may be added to a running query between two of its runs.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import replace

from penstock.graph import JobGraph, JobVertex

_DIGITS = 8


def with_uids(graph: JobGraph) -> JobGraph:
    """The graph with a uid for each vertex; producers come first in a graph."""
    uids: dict[int, str] = {}
    used: Counter[str] = Counter()
    for vertex in graph.vertices:
        path = [_origin(vertex)]
        path += [
            f"{edge.exchange.kind} {getattr(edge.exchange, 'keys', ())} {uids[edge.producer]}"
            for edge in graph.inputs_of(vertex.id)
        ]
        name = re.sub(r"[^A-Za-z0-9]+", "_", path[0] or graph.inputs_of(vertex.id)[0].exchange.kind)
        uid = f"{name}-{hashlib.sha256(chr(10).join(path).encode()).hexdigest()[:_DIGITS]}"
        used[uid] += 1
        uids[vertex.id] = uid if used[uid] == 1 else f"{uid}-{used[uid]}"
    return replace(graph, vertices=tuple(replace(vertex, uid=uids[vertex.id]) for vertex in graph.vertices))


def _origin(vertex: JobVertex) -> str:
    """Of a source its kind; its options may change."""
    return "" if vertex.source is None else type(vertex.source).__name__
