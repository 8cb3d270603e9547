# SPDX-License-Identifier: Apache-2.0
"""The names of exchanges in checkpoints."""

from __future__ import annotations

import pyarrow as pa

from penstock.graph import JobEdge, JobGraph, JobVertex
from penstock.record import PartitionerSpec
from penstock.shuffle import PartitionKind
from penstock.stream.in_flight import edge_uids

SCHEMA = pa.schema([("n", pa.int64())])


def _edge(number: int, producer: int, consumer: int, side: int = 0) -> JobEdge:
    kind = PartitionKind.PIPELINED_BOUNDED
    return JobEdge(number, producer, consumer, PartitionerSpec("to_one"), SCHEMA, kind, "memory", side)


def test_an_exchange_is_named_by_its_stages_and_not_by_its_number() -> None:
    """A stage in front changes the numbers and no name; sides and twins have names of their own."""
    named = tuple(JobVertex(number, "s", 1, SCHEMA, uid=uid) for number, uid in enumerate(["a", "b", "c"]))
    few = JobGraph("q", named, (_edge(0, 0, 2), _edge(1, 1, 2, side=1), _edge(2, 0, 2)))
    more = JobGraph("q", (*named, JobVertex(3, "s", 1, SCHEMA)), (_edge(4, 3, 0), _edge(5, 0, 2), _edge(6, 0, 2)))
    assert edge_uids(few) == {0: "a->c:0", 1: "b->c:1", 2: "a->c:0:1"}
    assert edge_uids(more) == {4: "v3->a:0", 5: "a->c:0", 6: "a->c:0:1"}
