# SPDX-License-Identifier: Apache-2.0
"""Steps over other parents, where a walk stops, and how the list of persisted streams is shown."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.api.lineage import SourceStep, Step, in_order, parents_of, with_parents
from penstock.api.persisted import DatasetInfo, DatasetList
from penstock.api.stream import Stream
from penstock.errors import PlanError
from penstock.testing.sources import fromBatches

SCHEMA = pa.schema([("id", pa.int64())])


def numbers() -> Stream:
    """A stream of a few rows."""
    return fromBatches(pa.table({"id": range(5)}, SCHEMA))


def test_a_walk_stops_where_it_is_told() -> None:
    """The step that it stops at is given, what only that one reads is not."""
    source = numbers()
    middle = source.mapInArrow(lambda batches: batches, SCHEMA)
    end = middle.rebalance(2).mapInArrow(lambda batches: batches, SCHEMA)
    assert next(iter(in_order(end.branches))) is source.branches[0]
    steps = list(in_order(end.branches, lambda step: step is middle.branches[0]))
    assert steps[0] is middle.branches[0]
    assert len(steps) == 3


def test_steps_over_other_parents() -> None:
    """An operator, an exchange over a union and a join get the parents they are given; itself where none changes."""
    one, two = numbers(), numbers()
    new = SourceStep("new", SCHEMA)

    def swapped(step: Step) -> Step:
        return new if step is one.branches[0] else step

    joined = one.keyBy("id").cogroup(two.keyBy("id")).applyInArrow(lambda left, right: left, SCHEMA)
    (exchange,) = one.union(two).rebalance(2).branches
    (operator,) = one.mapInArrow(lambda batches: batches, SCHEMA).branches
    combined = next(step for step in in_order(joined.branches) if len(parents_of(step)) == 2)
    assert parents_of(with_parents(exchange, swapped)) == (new, two.branches[0])
    assert parents_of(with_parents(operator, swapped)) == (new,)
    assert parents_of(with_parents(combined, swapped)) == (new, two.branches[0])
    for step in (exchange, operator, combined, new):
        assert with_parents(step, lambda parent: parent) is step


def test_the_list_is_a_table() -> None:
    """A line for each with rows, bytes, place and age; what is not there has none."""
    shown = repr(
        DatasetList(
            [
                DatasetInfo("d1 map", "materialised", 12_345, 98_760, "host", 3.21, 4),
                DatasetInfo("d2 hash(k)", "lazy"),
                DatasetInfo("d3 map", "materialised", 1, 5_000_000_000, "a, b", 100.0, 2),
            ]
        )
    ).splitlines()
    assert shown[0].split() == ["name", "state", "rows", "bytes", "partitions", "place", "age"]
    assert "12,345" in shown[1]
    assert "98.8 kB" in shown[1]
    assert shown[1].endswith("host   3.2 s")
    assert shown[2].split() == ["d2", "hash(k)", "lazy", "0", "0", "B", "0"]
    assert "5.0 GB" in shown[3]
    assert repr(DatasetList()) == "no persisted streams"


def test_without_a_session() -> None:
    """There is nothing to keep rows in, which is said."""
    for verb in ("persist", "unpersist"):
        with pytest.raises(PlanError, match=f"{verb} needs a Spark session"):
            getattr(numbers(), verb)()
