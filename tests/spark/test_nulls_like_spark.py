# SPDX-License-Identifier: Apache-2.0
"""Which columns may be null, with Spark as the oracle: every type, plain and nested, through every verb.

One frame promises that nothing in it is null, at any depth; the other has nulls wherever one can be. All verbs are
asked for the schema and for the rows that they give of both.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql import types as t

import penstock
from effort import some_of
from penstock.errors import SchemaError

pytestmark = pytest.mark.spark

INSTANT, DAY = dt.datetime(2026, 7, 1, 12, 30), dt.date(2026, 3, 5)  # noqa: DTZ001 - as collect gives it
PLAIN: dict[str, tuple[t.DataType, Any]] = {
    "long": (t.LongType(), 2**53 + 1),
    "text": (t.StringType(), "a"),
    "bytes": (t.BinaryType(), b"\x00b"),
    "real": (t.DoubleType(), 1.5),
    "flag": (t.BooleanType(), True),
    "money": (t.DecimalType(38, 18), Decimal("1.500000000000000000")),
    "day": (t.DateType(), DAY),
    "instant": (t.TimestampType(), INSTANT),
    "wall": (t.TimestampNTZType(), INSTANT),
    "span": (t.DayTimeIntervalType(), dt.timedelta(hours=3)),
}


def kinds(*, nulls: bool) -> dict[str, tuple[t.DataType, Any]]:
    """All columns with a type and a value; nested types allow nulls or not."""
    found = dict(PLAIN)
    for name in ("long", "text", "instant"):
        kind, value = PLAIN[name]
        found[f"{name}_list"] = (t.ArrayType(kind, nulls), [value, value])
        found[f"{name}_map"] = (t.MapType(t.StringType(), kind, nulls), {"k": value})
        inner = t.StructType([t.StructField("x", kind, nulls), t.StructField("y", t.LongType(), nulls)])
        found[f"{name}_struct"] = (inner, Row(x=value, y=1))
    structs = t.ArrayType(t.StructType([t.StructField("x", t.LongType(), nulls)]), nulls)
    found["structs"] = (structs, [Row(x=1), Row(x=2)])
    found["lists"] = (t.ArrayType(t.ArrayType(t.LongType(), nulls), nulls), [[1], [2, 3]])
    return found


def with_nulls(kind: t.DataType, value: Any) -> Any:
    """The value with a null in the place of each thing inside it."""
    if isinstance(kind, t.ArrayType):
        return [None, with_nulls(kind.elementType, value[0])]
    if isinstance(kind, t.MapType):
        return {"k": None, "l": value["k"]}
    return Row(*[None for _ in kind.fields]) if isinstance(kind, t.StructType) else None


@pytest.fixture(scope="module")
def frames(spark: Any) -> tuple[Any, Any]:
    """Two rows that promise no null anywhere, and three with nulls: of what is nested, of all, and of nothing."""
    strict, loose = kinds(nulls=False), kinds(nulls=True)
    promised = t.StructType(
        [t.StructField("id", t.LongType(), False)] + [t.StructField(n, k, False) for n, (k, _) in strict.items()]
    )
    open_ = t.StructType([t.StructField("id", t.LongType())] + [t.StructField(n, k) for n, (k, _) in loose.items()])
    full = [value for _, value in strict.values()]
    rows = [
        [2, *(with_nulls(kind, value) for kind, value in loose.values())],
        [None, *(None for _ in full)],
        [3, *full],
    ]
    one = spark.createDataFrame([[0, *full], [1, *full]], promised).coalesce(1)
    other = spark.createDataFrame(rows, open_).coalesce(1)
    return one, other


Verb = Callable[[Any, Any], Any]
NAMES = list(kinds(nulls=True))
CHOICES = [
    *(f"coalesce(b_{name}, a_{name}) AS c_{name}" for name in NAMES),
    *(f"if(id = 0, a_{name}, b_{name}) AS i_{name}" for name in NAMES),
    *(f"CASE WHEN id > 0 THEN a_{name} ELSE b_{name} END AS w_{name}" for name in NAMES),
    *(f"named_struct('s', a_{name}, 't', b_{name}) AS n_{name}" for name in NAMES),
]


def joined(how: str) -> tuple[Verb, Verb]:
    """Both ways to join."""

    def theirs(one: Any, other: Any) -> Any:
        return named(one, "a_").join(named(other, "b_"), "id", how)

    def ours(one: Any, other: Any) -> Any:
        return named(one, "a_").keyBy("id").join(named(other, "b_").keyBy("id"), how)

    return theirs, ours


def named(rows: Any, prefix: str) -> Any:
    """All columns but the key under other names."""
    return rows.select("id", *(F.col(name).alias(f"{prefix}{name}") for name in NAMES))


def both(verb: Verb) -> tuple[Verb, Verb]:
    """A verb of one name here and there."""
    return verb, verb


def alone(verbs: tuple[Verb, Verb]) -> tuple[Verb, Verb]:
    """Verbs over the first frame twice."""
    theirs, ours = verbs
    return (lambda one, _: theirs(one, one)), (lambda one, _: ours(one, one))


def chosen(join: Verb) -> Verb:
    """Expressions over columns of both frames, which a join brings side by side."""
    return lambda one, other: join(one, other).select("id", *map(F.expr, CHOICES))


VERBS: dict[str, tuple[Verb, Verb]] = {
    "union": both(lambda one, other: one.union(other)),
    "union turned": both(lambda one, other: other.union(one)),
    "union of three": both(lambda one, other: one.filter("id = 0").union(other).union(one.filter("id = 1"))),
    "union by name": both(lambda one, other: one.unionByName(other.select(*reversed(other.columns)))),
    "union by name with less": both(lambda one, other: one.unionByName(other.drop("long", "lists"), True)),
    "filter behind a union": both(lambda one, other: one.union(other).filter("long IS NULL OR structs IS NULL")),
    "inner join": joined("inner"),
    "left join": joined("left"),
    "right join": joined("right"),
    "full join": joined("full"),
    "semi join": joined("left_semi"),
    "join with itself": alone(joined("full")),
    "choices": (chosen(joined("full")[0]), chosen(joined("full")[1])),
    "aggregates": both(
        lambda one, other: (
            one.union(other)
            .groupBy("id")
            .agg(F.count("text").alias("n"), F.collect_list("text").alias("l"), F.max("real").alias("m"))
        )
    ),
    "explode": (
        lambda one, other: one.union(other).select("id", F.explode_outer("structs").alias("structs")),
        lambda one, other: one.union(other).select("id", "structs").explode("structs", outer=True),
    ),
}


def comparable(rows: list[Any]) -> list[str]:
    """Rows in an order of their own."""
    return sorted(map(str, rows))


RUN = ("union by name with less", "filter behind a union", "choices", "aggregates", "explode")
"""Verbs of which the rows are compared too; they do all that the others do."""


@pytest.mark.parametrize("verb", some_of(list(VERBS), 5))
def test_schemas_and_rows_are_sparks(frames: tuple[Any, Any], verb: str) -> None:
    """Each verb gives Spark's types, Spark's nullability at every depth, and Spark's rows."""
    theirs, ours = VERBS[verb]
    expected = theirs(*frames)
    found = ours(*map(penstock.fromDataFrame, frames)).toDF()
    assert differences(found.schema, expected.schema) == []
    if verb in RUN:
        assert comparable(found.collect()) == comparable(expected.collect())


INSIDE = [
    ("named_struct('a', 1, 'b', 'x')", "named_struct('b', 'y', 'A', 10L)"),
    ("array(named_struct('a', 1, 'b', 2), null)", "array(named_struct('b', 20, 'a', 10))"),
    (
        "named_struct('s', array(named_struct('a', 1, 'b', 2)))",
        "named_struct('s', array(named_struct('b', 20, 'a', 10)))",
    ),
    ("map('k', named_struct('a', 1, 'b', 2))", "map('k', named_struct('b', 20, 'a', 10))"),
    ("if(id < 1, named_struct('a', 1, 'b', 2), null)", "if(id < 1, named_struct('b', 20, 'a', 10), null)"),
]
"""Values that have fields of the same names on both sides, in another order; those in maps stay where they are."""
LACKING = [
    ("named_struct('a', 1, 'b', 2)", "named_struct('c', 10, 'b', 20)"),
    ("array(named_struct('a', 1))", "array(named_struct('b', 20, 'a', 10))"),
    ("named_struct('a', 1, 's', named_struct('x', 1))", "named_struct('s', named_struct('y', 2), 'a', 10)"),
]
"""Values that have not."""


def test_union_by_name_finds_fields_inside_by_name(spark: Any) -> None:
    """Types, rows and nulls are Spark's; fields that a side lacks are null if that is allowed, and refused if not."""
    pairs = [*INSIDE, *LACKING]
    one, other = (
        spark.range(2).select(*(F.expr(pair[side]).alias(f"v{place}") for place, pair in enumerate(pairs)))
        for side in (0, 1)
    )
    same = [f"v{place}" for place in range(len(INSIDE))]
    for names, allows in ((same, False), (one.columns, True)):
        expected = one.select(*names).unionByName(other.select(*names), allows)
        mine, theirs = (penstock.fromDataFrame(side.select(*names)) for side in (one, other))
        found = mine.unionByName(theirs, allows).toDF()
        assert differences(found.schema, expected.schema) == []
        assert comparable(found.collect()) == comparable(expected.collect())
    for place in range(len(INSIDE), len(pairs)):
        mine, theirs = (penstock.fromDataFrame(side.select(f"v{place}")) for side in (one, other))
        with pytest.raises(SchemaError, match=f"stream has no '[abcxy]' in column 'v{place}"):
            mine.unionByName(theirs)


def differences(found: Any, expected: Any) -> list[tuple[Any, Any]]:
    """The fields that are not the same."""
    return [(one, other) for one, other in zip(found, expected, strict=True) if one != other]


def test_sparks_optimizer_believes_what_we_say(frames: tuple[Any, Any]) -> None:
    """It answers `IS NULL` by the schema alone: of a union it must find the nulls of the second branch."""
    one, other = map(penstock.fromDataFrame, frames)
    counted = [F.sum(F.expr(f"int({name} IS NULL)")).alias(name) for name in one.columns]
    inner = F.sum(F.expr("int(long_list[0] IS NULL AND long_list IS NOT NULL)")).alias("inner")
    found = one.union(other).toDF().select(*counted, inner).collect()
    assert found == frames[0].union(frames[1]).select(*counted, inner).collect()
    assert set(found[0]) == {1, 2}  # two rows have no value that is not nested


@pytest.mark.thorough
def test_what_is_persisted_or_written_keeps_its_nulls(spark: Any, frames: tuple[Any, Any], tmp_path: Path) -> None:
    """A persisted union and one read back from Parquet have the same rows; read back, all columns may be null."""
    one, other = map(penstock.fromDataFrame, frames)
    names = [name for name in one.columns if "span" not in name]  # Parquet has no such type
    expected = comparable(frames[0].union(frames[1]).select(*names).collect())
    kept = one.union(other).select(*names).persist()
    assert comparable(kept.toDF().collect()) == expected
    kept.unpersist()
    one.union(other).select(*names).writeParquet(tmp_path / "both")
    one.select(*names).writeParquet(tmp_path / "strict")
    assert comparable(penstock.readParquet(spark, tmp_path / "both").collect()) == expected
    read = penstock.readParquet(spark, [tmp_path / "strict", tmp_path / "both"]).toDF()
    assert differences(read.schema, spark.read.parquet(str(tmp_path / "strict")).schema) == []
    assert len(read.collect()) == 7


LINES = "id bigint NOT NULL, s struct<x: bigint NOT NULL, l: array<bigint>> NOT NULL, t string NOT NULL"


def test_files_hold_nulls_whatever_the_schema_says(spark: Any, tmp_path: Path) -> None:
    """CSV and JSON read with NOT NULL columns are nullable at every depth as in Spark, also in a stream."""
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "a.json").write_text('{"id": 1, "s": {"x": null, "l": [null]}}\n{"t": "b"}\n')
    (tmp_path / "a.csv").write_text("1,\n,b\n")
    theirs = spark.read.schema(LINES).json(str(tmp_path / "json"))
    ours = penstock.readJson(spark, tmp_path / "json", LINES)
    assert ours.toDF().schema == theirs.schema
    assert comparable(ours.collect()) == comparable(theirs.collect())
    assert ours.filter("id IS NULL OR s.x IS NULL").count() == 2
    streamed = penstock.readStream(spark).schema(LINES).format("json").load(str(tmp_path / "json"))
    assert streamed.schema == ours.schema
    theirs = spark.read.schema("a bigint NOT NULL, b string NOT NULL").csv(str(tmp_path / "a.csv"))
    ours = penstock.readCsv(spark, tmp_path / "a.csv", "a bigint NOT NULL, b string NOT NULL")
    assert (ours.toDF().schema, comparable(ours.collect())) == (theirs.schema, comparable(theirs.collect()))
    assert ours.filter("a IS NULL").count() == ours.toDF().filter("a IS NULL").count() == 1


def test_names_in_another_case_are_sparks(spark: Any) -> None:
    """Expressions, `drop`, `withColumn` and the renaming verbs find a column in another case as Spark does."""
    theirs = spark.range(3).selectExpr("id", "id * 2 AS Twice")
    ours = penstock.fromDataFrame(theirs)
    for verb in (
        lambda rows: rows.filter("ID > 1"),
        lambda rows: rows.select("ID", F.expr("TWICE AS t"), (F.col("iD") + 1).alias("n")),
        lambda rows: rows.withColumn("ID", F.col("twice") + 1),
        lambda rows: rows.drop("ID"),
        lambda rows: rows.withColumnRenamed("TWICE", "t"),
        lambda rows: rows.unionByName(rows.select("TWICE", "ID")),
        lambda rows: rows.groupBy("id").agg(F.sum("TWICE").alias("s")),
    ):
        expected, found = verb(theirs), verb(ours)
        assert found.columns == expected.columns
        assert comparable(found.collect()) == comparable(expected.collect())


def test_case_counts_where_the_session_says_so(spark: Any) -> None:
    """With `spark.sql.caseSensitive` a name in another case is another column."""
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        ours = penstock.fromDataFrame(spark.range(3))
        with pytest.raises(SchemaError, match="ID"):
            ours.filter("ID > 1")
        assert ours.withColumn("ID", F.lit(1)).columns == ["id", "ID"]
        assert ours.drop("ID").columns == ["id"]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
