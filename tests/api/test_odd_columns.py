# SPDX-License-Identifier: Apache-2.0
"""Columns with names or types that mean more to Spark than to Arrow: taken as they are, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest

import penstock
from penstock.errors import SchemaError
from penstock.graph import collation_of, parse_ddl, spark_type
from penstock.spark.types import struct_type
from penstock.testing.local_runner import run_local
from penstock.testing.sources import fromBatches

COLLATED = parse_ddl("k string collate utf8_lcase, l array<string collate UNICODE_CI>, v int")
WORDS = pa.table([["A", "a", None], [["x"], [], None], [1, 2, 3]], schema=COLLATED)


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Change nothing."""
    yield from batches


def collated_stream() -> penstock.Stream:
    """A stream with a collated column, a list of collated strings, and a number."""
    return fromBatches(WORDS).mapInArrow(
        same, "k string collate utf8_lcase, l array<string collate UNICODE_CI>, v int"
    )


COMPARING: dict[str, Callable[[penstock.Stream, str], object]] = {
    "keyBy": lambda s, c: s.keyBy(c),
    "groupBy.agg": lambda s, c: s.groupBy(c).agg(n=("*", "count")),
    "sortBy": lambda s, c: s.sortBy(c),
    "min": lambda s, c: s.keyBy("v").agg(m=(c, "min")),
    "max": lambda s, c: s.toOne().agg(m=(c, "max")),
    "count_distinct": lambda s, c: s.keyBy("v").agg(m=(c, "count_distinct")),
    "collect_set": lambda s, c: s.keyBy("v").agg(m=(c, "collect_set")),
    "distinct": lambda s, c: s.select(c).distinct(),
    "join": lambda s, c: s.keyBy(c).join(s.keyBy(c)),
}


@pytest.mark.parametrize("verb", COMPARING)
@pytest.mark.parametrize("column", ["k", "l"])
def test_what_would_compare_collated_strings_is_refused(verb: str, column: str) -> None:
    """Each verb that groups, orders or places rows names the column, its collation, and a way out."""
    collation = {"k": "UTF8_LCASE", "l": "UNICODE_CI"}[column]
    with pytest.raises(SchemaError, match=rf"column '{column}' has strings of collation {collation}.*withColumn"):
        COMPARING[verb](collated_stream(), column)


def test_collated_columns_pass_through() -> None:
    """Verbs that do not compare them take them, and the schema still says what they are, after every verb."""
    stream = collated_stream()
    behind = [
        stream.rebalance(2),
        stream.keyBy("v").applyInArrow(lambda table: table, stream.schema),
        stream.union(collated_stream()),
        stream.sortBy("v"),
        stream.keyBy("v").join(stream.keyBy("v").mapInArrow(same, "v int").keyBy("v")),
    ]
    for result in behind:
        fields = [result.schema.field(name) for name in ("k", "l")]
        assert [collation_of(field) for field in fields] == ["UTF8_LCASE", "UNICODE_CI"]
    counted = stream.keyBy("v").agg(n=("k", "count"))
    assert sorted(run_local(counted).column("n").to_pylist()) == [0, 1, 1]
    assert run_local(behind[0]).sort_by("v").equals(WORDS)


def test_collations_are_part_of_a_union() -> None:
    """Streams whose columns differ in collation only are not united silently."""
    plain = fromBatches(pa.table({"k": ["x"]})).mapInArrow(same, "k string")
    with pytest.raises(SchemaError, match=r"k string\).*string collate UTF8_LCASE"):
        plain.union(fromBatches(pa.table({"k": ["x"]})).mapInArrow(same, "k string collate UTF8_LCASE"))


def test_extremes_keep_the_type() -> None:
    """Min and max of a column give a column of what Spark knows it to be; a join and a key do too."""
    schema = "k interval hour, v time(3)"
    rows = pa.table([[5, 6], [7, 8]], schema=parse_ddl(schema))
    stream = fromBatches(rows).mapInArrow(same, schema)
    result = stream.keyBy("k").agg(low=("v", "min"), n=("v", "count"), one=("v", "first"))
    assert [spark_type(field) for field in result.schema] == ["interval hour", "time(3)", None, "time(3)"]
    assert [spark_type(f) for f in stream.keyBy("k").join(result.keyBy("k")).schema][:2] == [
        "interval hour",
        "time(3)",
    ]
    assert run_local(result).num_rows == 2


def test_a_dataframe_is_named_by_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no name of its own, so plans and errors show the first of its columns."""
    for columns, name in (
        ("k int, v int", "DataFrame(k, v)"),
        ("a int, b int, c int, d int, e int", "(a, b, c, d, ...)"),
    ):
        frame = SimpleNamespace(schema=struct_type(parse_ddl(columns)), sparkSession=None)
        penstock.fromDataFrame(frame).rebalance(2).explain()
        assert name in capsys.readouterr().out


# --- names

NAMES = ["a.b", "`", "x", "x", "X", "", "a b", "*"]
ODD = pa.table([[1, 2, 1, 2], *[[n, n + 1, n + 2, n + 3] for n in range(10, 80, 10)]], names=NAMES)
VERBS: dict[str, Callable[[penstock.Stream], penstock.Stream]] = {
    "rebalance": lambda s: s.rebalance(2),
    "keyBy": lambda s: s.keyBy("a.b", numPartitions=2),
    "keyBy in backticks": lambda s: s.keyBy("`a.b`", numPartitions=2),
    "keyBy a backtick": lambda s: s.keyBy("`", numPartitions=2),
    "sortBy": lambda s: s.sortBy("a.b", "X", numPartitions=2),
    "sortBy to one": lambda s: s.sortBy("*", numPartitions=1),
    "mapInArrow": lambda s: s.mapInArrow(same, s.schema),
    "applyInArrow": lambda s: s.keyBy("a.b").applyInArrow(lambda table: table, s.schema),
    "applyInPandas": lambda s: s.keyBy("a.b").applyInPandas(lambda frame: frame, s.schema),
    "mapInPandas": lambda s: s.mapInPandas(same, s.schema),
    "union": lambda s: s.union(fromBatches(ODD.slice(0, 0))),
}


@pytest.mark.parametrize("verb", VERBS)
def test_odd_names_go_through(verb: str) -> None:
    """Dots, backticks, an empty name, names twice or in two cases: all rows, all columns, in their order."""
    found = run_local(VERBS[verb](fromBatches(ODD, 2)))
    assert found.schema.names == NAMES
    rows = sorted(tuple(column[i].as_py() for column in found.columns) for i in range(found.num_rows))
    assert rows == sorted(tuple(column[i].as_py() for column in ODD.columns) for i in range(ODD.num_rows))


def test_aggregates_over_odd_names() -> None:
    """Keys, columns and results with such names; a count of rows beside a name that is there twice."""
    stream = fromBatches(ODD, 2).keyBy("a.b")
    found = run_local(stream.agg(**{"s.um": ("X", "sum"), "`": ("`", "max")})).sort_by("a.b")
    assert found.to_pydict() == {"a.b": [1, 2], "s.um": [82, 84], "`": [12, 13]}
    two = pa.table([[1, 2], [3, 4]], names=["x", "x"])
    assert run_local(fromBatches(two).toOne().agg(n=("*", "count"))).to_pylist() == [{"n": 2}]


@pytest.mark.parametrize(
    "verb",
    [
        lambda s: s.keyBy("x"),
        lambda s: s.sortBy("x"),
        lambda s: s.toOne().agg(n=("x", "sum")),
        lambda s: s.keyBy("a.b").agg(n=("x", "count")),
    ],
)
def test_a_name_that_is_there_twice_is_refused(verb: Callable[[penstock.Stream], object]) -> None:
    """Nothing says which column is meant, so the call is refused with the name."""
    with pytest.raises(SchemaError, match=r"column 'x' is there 2 times"):
        verb(fromBatches(ODD))


def test_names_are_exact() -> None:
    """Unlike in Spark a name in another case is another one; the error has the one that is there."""
    with pytest.raises(SchemaError, match=r"'K' does not exist; the columns are k.*did you mean 'k'"):
        fromBatches(pa.table({"k": [1]})).keyBy("K")
