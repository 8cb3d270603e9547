# SPDX-License-Identifier: Apache-2.0
"""What the exchanges of a streaming query are called in checkpoints: the same where the plan around has changed."""

from __future__ import annotations

from collections import Counter

from penstock.checkpoint.channel_state import edge_uid
from penstock.graph import JobGraph, JobVertex


def exchange_uids(graph: JobGraph) -> dict[int, str]:
    """The uid of each edge, by its number. Those of one side between the same vertices count up in their order."""
    found: dict[int, str] = {}
    seen: Counter[str] = Counter()
    for edge in sorted(graph.edges, key=lambda edge: edge.id):
        names = _name(graph.vertex(edge.producer)), _name(graph.vertex(edge.consumer))
        plain = edge_uid(*names, edge.side)
        found[edge.id] = edge_uid(*names, edge.side, seen[plain])
        seen[plain] += 1
    return found


def _name(vertex: JobVertex) -> str:
    return vertex.uid or f"v{vertex.id}"
