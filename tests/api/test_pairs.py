# SPDX-License-Identifier: Apache-2.0
"""Whole pipelines of two streams without Spark: cogroup and join, against plain Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from penstock.api.keyed_stream import KeyedStream
from penstock.api.stream import Stream
from penstock.errors import JobError, PlanError, SchemaError
from penstock.settings import Settings
from penstock.shuffle import PartitionKind
from penstock.testing.local_runner import LocalRunner, run_local
from penstock.testing.sources import fromBatches

ORDERS = pa.table({"k": [n % 7 if n % 11 else None for n in range(300)], "o": range(300)})
PEOPLE = pa.table({"k": [0, 1, 2, 3, 9, None], "p": ["a", "b", "c", "d", "z", "n"]})
TINY = Settings.from_conf({"spark.penstock.task.groupMemory": "200"})


def source(rows: pa.Table, partitions: int = 2, size: int = 50) -> Stream:
    """A stream of a table in partitions and small batches."""
    return fromBatches(pa.Table.from_batches(rows.to_batches(max_chunksize=size), rows.schema), partitions)


def orders(**choices: Any) -> KeyedStream:
    """Orders by their key."""
    return source(ORDERS).keyBy("k", **choices)


def people(**choices: Any) -> KeyedStream:
    """People by their key."""
    return source(PEOPLE, 1).keyBy("k", **choices)


def counted(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    """The key, and what is on either side."""
    assert left.column_names == ["k", "o"]
    assert right.column_names == ["k", "p"]
    names = "".join(sorted(right["p"].to_pylist()))
    return pa.table({"k": pa.array([key[0].as_py()], pa.int64()), "n": [left.num_rows], "names": [names]})


EXPECTED = Counter(
    (key, ORDERS["k"].to_pylist().count(key), "".join(p["p"] for p in PEOPLE.to_pylist() if p["k"] == key))
    for key in {*ORDERS["k"].to_pylist(), *PEOPLE["k"].to_pylist()}
)
SCHEMA = "k long, n long, names string"


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows without their order."""
    return Counter(tuple(row.values()) for row in rows.to_pylist())


@pytest.mark.parametrize("settings", [Settings(), TINY], ids=["in memory", "spilled"])
def test_cogroup_in_arrow_sees_each_key_of_either_side(settings: Settings) -> None:
    """A key on one side gives an empty table with all columns on the other; null is a key; each key comes once."""
    stream = orders(numPartitions=3).cogroup(people()).applyInArrow(counted, SCHEMA)
    assert bag(run_local(stream, settings)) == EXPECTED


@pytest.mark.parametrize("settings", [Settings(), TINY], ids=["in memory", "spilled"])
def test_cogroup_in_pandas(settings: Settings) -> None:
    """The form without a key, over frames."""

    def merged(left: Any, right: Any) -> Any:
        assert list(left.columns) == ["k", "o"]
        assert list(right.columns) == ["k", "p"]
        return left.merge(right, on="k", how="inner")[["o", "p"]]

    found = bag(
        run_local(orders(numPartitions=2).cogroup(people()).applyInPandas(merged, "o long, p string"), settings)
    )
    names = {row["k"]: row["p"] for row in PEOPLE.to_pylist()}
    assert found == Counter((row["o"], names[row["k"]]) for row in ORDERS.to_pylist() if row["k"] in names)


def test_cogroup_without_keys_is_one_group() -> None:
    """All rows of both sides, in one call."""

    def sizes(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.table({"l": [left.num_rows], "r": [right.num_rows]})

    stream = source(ORDERS).toOne().cogroup(source(PEOPLE).groupBy()).applyInArrow(sizes, "l long, r long")
    assert run_local(stream).to_pylist() == [{"l": 300, "r": 6}]


def test_sides_may_be_unions() -> None:
    """Each side may come over several edges."""
    stream = source(ORDERS).union(source(ORDERS)).keyBy("k", numPartitions=2).cogroup(people())
    found = bag(run_local(stream.applyInArrow(counted, SCHEMA)))
    assert found == Counter((key, 2 * count, names) for key, count, names in EXPECTED)


def test_a_cogroup_function_is_checked() -> None:
    """Its result must be a table of the declared schema; an error names it."""
    stream = orders(numPartitions=1).cogroup(people()).applyInArrow(lambda left, right: 1, SCHEMA)
    with pytest.raises(JobError, match=r"cogroup applyInArrow\(<lambda>\).*should be pyarrow.Table, but is int"):
        run_local(stream)


JOINS = {
    "inner": "inner",
    "left_outer": "left outer",
    "rightouter": "right outer",
    "outer": "full outer",
    "semi": "left semi",
    "leftanti": "left anti",
}


@pytest.mark.parametrize("settings", [Settings(), TINY], ids=["in memory", "spilled"])
@pytest.mark.parametrize("how", JOINS)
def test_joins(how: str, settings: Settings) -> None:
    """Every type, by PySpark's names for it, over several tasks, is Arrow's join of the whole tables."""
    found = run_local(orders(numPartitions=3).join(people(), how), settings)
    assert bag(found) == bag(ORDERS.join(PEOPLE, "k", join_type=JOINS[how]).select(found.column_names))


def test_a_join_of_other_names() -> None:
    """With `on`, columns of different names are keys by their position; the result has the left's names."""
    renamed = PEOPLE.rename_columns(["id", "p"])
    stream = orders(numPartitions=2).join(source(renamed).keyBy("id"), "full", on=[("k", "id")])
    assert stream.columns == ["k", "o", "p"]
    assert bag(run_local(stream)) == bag(ORDERS.join(PEOPLE, "k", join_type="full outer"))


def test_a_join_in_the_middle() -> None:
    """Functions before and after, two joins in a row, an aggregation at the end."""
    places = source(pa.table({"k": [1, 2], "place": ["x", "y"]})).keyBy("k")
    twice = orders(numPartitions=2).join(people()).keyBy("k", numPartitions=1).join(places, "left")
    total = twice.groupBy("place", numPartitions=1).agg(n=("o", "count"))
    expected = Counter({1: "x", 2: "y"}.get(row["k"]) for row in ORDERS.to_pylist() if row["k"] in (0, 1, 2, 3))
    assert {row["place"]: row["n"] for row in run_local(total, slots=20).to_pylist()} == expected


@pytest.mark.parametrize("mode", [None, "pipelined", "hybrid", "hybrid_selective", "blocking"])
def test_a_stream_meets_itself(mode: str | None) -> None:
    """In any mode each row meets itself, and the source runs once."""
    calls = []

    def seen(batches: Any) -> Any:
        calls.append(1)
        yield from batches

    base = source(PEOPLE, 1).mapInArrow(seen, "k long, p string")
    other = base.keyBy("k", numPartitions=2, mode=mode)
    stream = base.keyBy("k", mode=mode).cogroup(other).applyInArrow(_both, "k long, n long")
    assert bag(run_local(stream)) == Counter((key, 2) for key in (0, 1, 2, 3, 9, None))
    assert len(calls) == 1


LARGE = pa.table({"k": [n % 70_001 for n in range(200_000)], "o": range(200_000)})
COUNTS = Counter(LARGE["k"].to_pylist())
MEETINGS = sum(count * count for count in COUNTS.values())
TIGHT = Settings.from_conf(
    {
        "spark.penstock.network.segmentSize": "4k",
        "spark.penstock.network.exclusiveBuffersPerChannel": "1",
        "spark.penstock.network.floatingBuffersPerGate": "1",
    }
)


@pytest.mark.parametrize("how", ["inner", "right", "full"])
def test_a_large_stream_joins_itself(how: str) -> None:
    """Far more batches than a pipelined exchange holds: what is read last is stored, and no row is missing."""
    base = source(LARGE, 2, 2000)
    renamed = base.mapInArrow(_renamed, "k long, q long")
    direct = base.keyBy("k", numPartitions=2).join(renamed.keyBy("k"), how)
    assert run_local(direct, TIGHT, slots=12).num_rows == MEETINGS


def test_a_large_stream_joins_what_was_made_of_it() -> None:
    """A diamond: the totals of a stream beside its own rows."""
    base = source(LARGE, 2, 2000)
    totals = base.keyBy("k", numPartitions=2).agg(n=("o", "count"))
    found = run_local(totals.keyBy("k", numPartitions=2).join(base.keyBy("k"), "right"), TIGHT, slots=12)
    assert found.group_by(["k", "n"]).aggregate([("o", "count")]).num_rows == len(COUNTS)
    assert set(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True)) == set(COUNTS.items())
    assert found.num_rows == LARGE.num_rows


def test_joins_in_crossed_order() -> None:
    """Two joins over the same two streams, each of which collects what the other one streams."""
    one, two = source(LARGE, 2, 2000), source(LARGE, 2, 2000).mapInArrow(_renamed, "k long, q long")

    def joined(how: str) -> Stream:
        return one.keyBy("k", numPartitions=2).join(two.keyBy("k"), how)

    both = joined("inner").union(joined("right"))
    graph = both.plan(Settings(), 16).graph
    assert [edge.kind for edge in graph.edges].count(PartitionKind.HYBRID_FULL) == 1
    assert run_local(both, TIGHT, slots=16).num_rows == 2 * MEETINGS


def _renamed(batches: Any) -> Any:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, ["k", "q"])


def _both(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"k": pa.array([key[0].as_py()], pa.int64()), "n": [left.num_rows + right.num_rows]})


def test_the_plan_of_a_join(capsys: pytest.CaptureFixture[str]) -> None:
    """One vertex, two edges with a side each, one of them blocking; parallelism is what either side asked for."""
    stream = orders(mode="blocking").join(people(numPartitions=3))
    graph = stream.plan(Settings(), 8).graph
    assert [(edge.consumer, edge.side, edge.kind) for edge in graph.edges] == [
        (2, 0, PartitionKind.BLOCKING_SORT_MERGE),
        (2, 1, PartitionKind.PIPELINED_BOUNDED),
    ]
    assert graph.vertices[2].parallelism == 3
    stream.explain()
    text = capsys.readouterr().out
    for part in (
        "combine: inner join on k",
        "input side 0: edge 0",
        "input side 1: edge 1",
        "blocking_sort_merge",
        "Region 1",
    ):
        assert part in text


def test_local_runs_need_slots_by_region() -> None:
    """With blocking edges more tasks run than there are slots, region by region."""
    stream = source(ORDERS, 6).keyBy("k", numPartitions=6, mode="blocking").rebalance(2, mode="blocking")
    assert LocalRunner(slots=6).run(stream).table().num_rows == 300


CALLS = {
    "cogroup with a plain stream": (lambda: orders().cogroup(source(PEOPLE)), TypeError, r"other\.keyBy"),
    "join with a table": (lambda: orders().join(PEOPLE), TypeError, "not Table"),
    "keys of another number": (
        lambda: orders().cogroup(source(PEOPLE).keyBy("k", "p")),
        PlanError,
        r"as many keys.*\(k\) and \(k, p\)",
    ),
    "keys of another type": (
        lambda: orders().join(source(PEOPLE).keyBy("p"), on=[("k", "p")]),
        SchemaError,
        "'k' of the left side is int64, 'p' of the right side is string: cast",
    ),
    "two numbers of partitions": (
        lambda: orders(numPartitions=2).join(people(numPartitions=3)),
        PlanError,
        "same numPartitions; they have 2 and 3",
    ),
    "an unknown join": (lambda: orders().join(people(), "cross"), PlanError, "how='cross' is not one of inner, left"),
    "a join that is no name": (lambda: orders().join(people(), 3), PlanError, "how=3"),
    "keys of other names": (
        lambda: orders().join(source(PEOPLE.rename_columns(["id", "p"])).keyBy("id")),
        SchemaError,
        r"on=\[\('k', 'id'\)\]",
    ),
    "pairs that are not the keys": (lambda: orders().join(people(), on=["o"]), PlanError, "does not say"),
    "a name on both sides": (
        lambda: orders().join(source(PEOPLE.rename_columns(["k", "o"])).keyBy("k")),
        SchemaError,
        "'o' would be in the result twice: rename",
    ),
    "a join without keys": (lambda: source(ORDERS).toOne().join(source(PEOPLE).toOne()), PlanError, "cross join"),
    "a cogroup function of one": (
        lambda: orders().cogroup(people()).applyInArrow(lambda rows: rows, "a int"),
        PlanError,
        "takes 1",
    ),
    "a cogroup function that is none": (
        lambda: orders().cogroup(people()).applyInPandas("f", "a int"),
        TypeError,
        "must be callable",
    ),
    "a cogroup without a schema": (lambda: orders().cogroup(people()).applyInArrow(counted, 3), TypeError, "DDL"),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_pairs_are_refused_at_the_call(name: str) -> None:
    """Each wrong argument is refused where it is written, by an error that names it and the way out."""
    call, error, message = CALLS[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("pyspark.sql.classic.dataframe", r"join\(penstock.fromDataFrame\(df\).keyBy\("),
        ("pandas", r"write other.keyBy\("),
    ],
)
def test_what_is_no_keyed_stream_is_told_how_it_becomes_one(module: str, words: str) -> None:
    """A DataFrame of Spark's, and something else."""
    given = type("DataFrame", (), {"__module__": module})()
    with pytest.raises(TypeError, match=words):
        orders().join(given)
