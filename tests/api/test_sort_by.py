# SPDX-License-Identifier: Apache-2.0
"""Whole sorted pipelines without Spark: order within and across partitions, whatever the job's mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from effort import with_all
from penstock.api.stream import Stream
from penstock.errors import PlanError, SchemaError, SlotsError
from penstock.graph import regions
from penstock.settings import Settings
from penstock.shuffle import PartitionKind
from penstock.testing.local_runner import LocalRunner, run_local
from penstock.testing.sources import fromBatches

GENERATOR = np.random.default_rng(3)
NUMBERS = GENERATOR.integers(0, 500, 20_000)
ROWS = pa.table(
    {
        "n": pa.array([None if n % 17 == 0 else int(n) for n in NUMBERS], pa.int64()),
        "s": [f"w{n % 7}" for n in NUMBERS],
        "x": pa.array(GENERATOR.random(20_000)),
        "#place": range(20_000),
    }
)
BLOCKING = Settings.from_conf({"spark.penstock.shuffle.mode": "blocking"})
TINY = Settings.from_conf({"spark.penstock.task.groupMemory": "20k"})


def source(rows: pa.Table = ROWS, partitions: int = 3, size: int = 700) -> Stream:
    """A stream of a table in several partitions and small batches."""
    return fromBatches(pa.Table.from_batches(rows.to_batches(max_chunksize=size), rows.schema), partitions)


@pytest.mark.parametrize("settings", [Settings(), with_all(BLOCKING), TINY], ids=["pipelined", "blocking", "spilled"])
@pytest.mark.parametrize(
    ("columns", "ascending", "nulls"),
    [
        (("n", "s", "x"), True, None),
        (("n", "x"), [False, True], None),
        (("s", "n", "x"), [True, False, False], "first"),
        (("x",), False, "last"),
    ],
)
def test_partitions_one_after_the_other_are_in_order(
    columns: tuple[str, ...], ascending: Any, nulls: str | None, settings: Settings
) -> None:
    """The concatenated result is the full sort: several columns, both directions, nulls as in Spark or as asked."""
    result = LocalRunner(settings, slots=8).run(
        source().sortBy(*columns, ascending=ascending, nulls=nulls, numPartitions=4)
    )
    assert len(result.partitions) == 4
    assert sum(1 for part in result.partitions if part) == 4
    directions = ascending if isinstance(ascending, list) else [ascending] * len(columns)

    def key(row: dict[str, Any]) -> list[Any]:
        parts: list[Any] = []
        for column, up in zip(columns, directions, strict=True):
            first = up if nulls is None else nulls == "first"
            value = row[column]
            number = 0 if value is None else int(value[1:]) if isinstance(value, str) else value
            parts += [(value is None) != first, number if up else -number]
        return parts

    assert result.table().to_pylist() == sorted(ROWS.to_pylist(), key=key)


def test_equal_keys_are_in_one_partition() -> None:
    """However many partitions there are, no key is in two."""
    parts = LocalRunner(slots=20).run(source().sortBy("s", numPartitions=12)).partitions
    homes = [{word for batch in part for word in batch.column("s").to_pylist()} for part in parts]
    assert sum(map(len, homes)) == 7
    words = [word for batch in (b for part in parts for b in part) for word in batch.column("s").to_pylist()]
    assert words == sorted(words)


def test_one_partition_needs_no_ranges() -> None:
    """With numPartitions=1 the rows go straight to the task that sorts."""
    stream = source().sortBy("x", numPartitions=1)
    assert [edge.exchange.kind for edge in stream.plan(Settings(), 8).graph.edges] == ["to_one"]
    assert run_local(stream)["x"].to_pylist() == sorted(ROWS["x"].to_pylist())


def test_nothing_is_sorted_into_nothing() -> None:
    """No rows, no error, no rows."""
    for count in (1, 3):
        assert run_local(source(ROWS.slice(0, 0), 1).sortBy("n", numPartitions=count)).num_rows == 0


def test_a_sort_behind_other_verbs() -> None:
    """Aggregation, union and functions ahead, a function after it, in one job."""
    counts = source().groupBy("s", numPartitions=2).agg(n=("x", "count"))
    both = counts.union(source(pa.table({"s": ["z"], "n": [10**6]}), 1))

    def first(batches: Any) -> Any:
        for batch in batches:
            yield batch.slice(0, 1)

    stream = both.sortBy("n", ascending=False, numPartitions=1).mapInArrow(first, "s string, n long")
    assert run_local(stream).to_pylist() == [{"s": "z", "n": 10**6}]
    names = run_local(both.sortBy("s", numPartitions=2), slots=12)["s"].to_pylist()
    assert names == [*(f"w{n}" for n in range(7)), "z"]


def test_the_plan_of_a_sort(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that must be known first wait in blocking exchanges in any mode; a sample takes no task of its own."""
    stream = source().sortBy("n", "s", ascending=[True, False])
    graph = stream.plan(Settings(), 6).graph
    kinds = [(edge.producer, edge.consumer, edge.exchange.kind, edge.kind.pipelined) for edge in graph.edges]
    assert kinds == [
        (0, 1, "to_one", False),
        (1, 2, "broadcast", False),
        (0, 2, "rescale", False),
        (2, 3, "range", False),
    ]
    assert [edge.summary is not None for edge in graph.edges] == [True, False, False, False]
    assert [region.vertices for region in regions(graph)] == [(0,), (1,), (2,), (3,)]
    assert [vertex.parallelism for vertex in graph.vertices] == [3, 1, 6, 6]
    overlapping = source().sortBy("n", mode="pipelined").plan(Settings(), 6).graph
    assert overlapping.edges[3].kind is PartitionKind.PIPELINED_BOUNDED
    assert [region.vertices for region in regions(overlapping)] == [(0,), (1,), (2, 3)]
    stream.explain()
    text = capsys.readouterr().out
    for part in (
        "sample of n asc nulls first, s desc nulls last, toOne, blocking_sort_merge",
        "combine: find ranges of",
        "operator: sort by n asc nulls first",
        "range, blocking_sort_merge",
    ):
        assert part in text


def test_a_sort_needs_no_more_slots_than_its_widest_region() -> None:
    """Blocking, any number of slots will do; pipelined, those that tag and those that sort run together."""
    assert run_local(source().sortBy("n", numPartitions=12), slots=2).num_rows == 20_000
    assert run_local(source().sortBy("n", numPartitions=3, mode="pipelined"), slots=6).num_rows == 20_000
    with pytest.raises(SlotsError):
        run_local(source().sortBy("n", numPartitions=6, mode="pipelined"), slots=6)


CALLS = {
    "no column": (lambda s: s.sortBy(), PlanError, "at least one column"),
    "a column twice": (lambda s: s.sortBy("n", "n"), PlanError, "each column once"),
    "a missing column": (lambda s: s.sortBy("y"), SchemaError, "'y' does not exist"),
    "an expression": (lambda s: s.sortBy(3), TypeError, "withColumn"),
    "too few directions": (lambda s: s.sortBy("n", "s", ascending=[True]), PlanError, "2 columns and 1 directions"),
    "a direction that is none": (lambda s: s.sortBy("n", ascending="up"), TypeError, "'up'"),
    "a place that is none": (
        lambda s: s.sortBy("n", nulls="middle"),
        PlanError,
        "'first', 'last' or None, not 'middle'",
    ),
    "a nested column": (lambda s: s.sortBy("l"), SchemaError, "'l' of type list"),
    "an interval": (lambda s: s.sortBy("i"), SchemaError, "'i' of type month_day_nano_interval has no order"),
    "a scale below zero": (lambda s: s.sortBy("r"), SchemaError, r"'r' of type decimal128\(5, -2\) has no order"),
    "zero partitions": (lambda s: s.sortBy("n", numPartitions=0), PlanError, "sortBy: numPartitions"),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_sorts_are_refused_at_the_call(name: str) -> None:
    """Each wrong argument is refused where it is written, by an error that names it."""
    interval, rounded = pa.array([(1, 2, 3)], pa.month_day_nano_interval()), pa.array([100], pa.decimal128(5, -2))
    rows = pa.table({"n": [1], "s": ["a"], "l": [[1]], "i": interval, "r": rounded})
    call, error, message = CALLS[name]
    with pytest.raises(error, match=message):
        call(fromBatches(rows))


def test_a_few_rows_with_long_keys() -> None:
    """Twelve keys of 600 KB are sorted, beside many short ones too: there are as many cuts as have room."""
    keys = [chr(ord("a") + number % 12) * 600_000 for number in range(24, 12, -1)]
    found = run_local(fromBatches(pa.table({"s": keys}), 2).sortBy("s", numPartitions=2))
    assert found["s"].to_pylist() == sorted(keys)
    mixed = pa.table({"s": [*keys, *(f"{number:05}" for number in range(20_000))]})
    made = run_local(fromBatches(mixed, 2).sortBy("s", numPartitions=3))
    assert made["s"].to_pylist() == sorted(mixed["s"].to_pylist())
