# SPDX-License-Identifier: Apache-2.0
"""The mistakes of a first day: the first line of each error says what is wrong, where, and what to do.

Most are refused where they are written, without a Spark job. Each case has the error's type and two parts of its
first line: what is wrong and where, then what to do. After a function that fails the first line of ours is the one
below PySpark's own heading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import penstock
from penstock.errors import JobError, PlanError, SchemaError, SettingError, SlotsError

pytestmark = pytest.mark.spark

LONGEST = 600
LOCK = threading.Lock()
HEADING = "An exception was thrown from the Python worker"


@dataclass(frozen=True)
class Desk:
    """The things that mistakes are made with: two streams that share a name, a DataFrame, files."""

    spark: Any
    frame: Any
    rows: Any
    other: Any
    files: Path


@pytest.fixture(scope="module")
def desk(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """One desk for all: nothing here is changed."""
    files = tmp_path_factory.mktemp("desk")
    (files / "empty").mkdir()
    (files / "full").mkdir()
    (files / "full" / "x").write_text("x")
    (files / "text.parquet").write_text("no Parquet\n")
    (files / "array.json").write_text('[\n{"a": 1},\n{"a": 2}\n]\n')
    (files / "bad.csv").write_text("a,1\nb,x\n")
    pq.write_table(pa.table({"word": ["a", "b"], "n": [1, 2]}), files / "words.parquet")
    ddl = "word string, n long, l array<long>, m map<string, long>"
    frame = spark.createDataFrame([("a", 1, [1], {"x": 1}), ("b", 2, [2], {})], ddl)
    other = penstock.readParquet(spark, files / "words.parquet")
    return Desk(spark, frame, penstock.fromDataFrame(frame), other, files)


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Change nothing."""
    yield from batches


def gives(thing: Any) -> Callable[[Any], Any]:
    """A function that yields this for each batch."""
    return lambda batches: (thing for _ in batches)


def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail as users' code fails."""
    for batch in batches:
        raise KeyError(batch.schema.names[0])
    yield from ()


def with_setting(desk: Desk, key: str, value: str) -> Any:
    """Build a DataFrame under a setting of the session."""
    desk.spark.conf.set(key, value)
    try:
        return desk.rows.keyBy("word").toDF()
    finally:
        desk.spark.conf.unset(key)


def by_row_number(desk: Desk) -> Any:
    """A window function."""
    return desk.rows.withColumn("r", F.row_number().over(Window.partitionBy("word").orderBy("n")))


MISTAKES: dict[str, tuple[Callable[[Desk], Any], type[BaseException], str, str]] = {
    # arguments
    "no schema": (
        lambda d: d.rows.mapInArrow(same),
        TypeError,
        "mapInArrow needs schema",
        "mapInArrow(func, schema)",
    ),
    "a path alone": (
        lambda d: penstock.readParquet(str(d.files)),
        TypeError,
        "readParquet needs path",
        "readParquet(spark, path, ...)",
    ),
    "a function as a condition": (
        lambda d: d.rows.filter(lambda row: row.n > 1),
        TypeError,
        "filter: an expression is a SQL string",
        "write 'n > 1' or F.col('n') > 1",
    ),
    # columns
    "a key that is no column": (
        lambda d: d.rows.keyBy("wrod"),
        SchemaError,
        "keyBy: column 'wrod' does not exist",
        "the columns are word, n",
    ),
    "a group's key that is no column": (
        lambda d: d.rows.groupBy("wrod"),
        SchemaError,
        "groupBy: column 'wrod' does not exist",
        "did you mean 'word'",
    ),
    "a condition on no column": (
        lambda d: d.rows.filter("wrod > 1"),
        SchemaError,
        "filter: 'wrod > 1'",
        "Did you mean one of the following?",
    ),
    "a Column of no column": (
        lambda d: d.rows.withColumn("x", F.col("wrod") + 1),
        SchemaError,
        "withColumn: Column<'+(wrod, 1)'>",
        "the columns are word string, n bigint",
    ),
    "an Arrow expression of no column": (
        lambda d: d.rows.filter(pc.field("wrod") > 1),
        SchemaError,
        "filter: (wrod > 1)",
        "the columns are word",
    ),
    "an aggregate of no column": (
        lambda d: d.rows.groupBy("word").agg(total=("wrod", "sum")),
        SchemaError,
        "agg: total: there is no column 'wrod'",
        "there are word, n",
    ),
    "an order by no column": (
        lambda d: d.rows.sortBy("wrod"),
        SchemaError,
        "sortBy: column 'wrod'",
        "did you mean 'word'?",
    ),
    "an order by a Column": (
        lambda d: d.rows.sortBy(F.desc("n")),
        TypeError,
        "sortBy takes names of columns",
        "ascending=False",
    ),
    "a file without the column": (
        lambda d: penstock.readParquet(d.spark, d.files / "words.parquet", ["wrod"]),
        SchemaError,
        "readParquet: no column 'wrod' in",
        "there are word, n",
    ),
    "a name twice": (
        lambda d: d.rows.select("word", "n AS word"),
        SchemaError,
        "select: 'word' would be in the result twice",
        "give it another name",
    ),
    "a name on both sides of a join": (
        lambda d: d.rows.keyBy("word").join(d.other.keyBy("word")),
        SchemaError,
        "join: 'n' would be in the result",
        "rename or drop the column on one side",
    ),
    # types
    "a sum of strings": (
        lambda d: d.rows.groupBy("n").sum("word"),
        PlanError,
        "sum of column 'word' (string)",
        "cast the column first",
    ),
    "a number as condition": (
        lambda d: d.rows.filter("n + 1"),
        SchemaError,
        "filter: 'n + 1' is of type int64",
        "compare it with something",
    ),
    "a comparison of a list": (
        lambda d: d.rows.filter("l > 1"),
        SchemaError,
        "filter: 'l > 1'",
        "the columns are word string",
    ),
    "a map as key": (
        lambda d: d.rows.keyBy("m"),
        SchemaError,
        "keyBy: column 'm' of type map",
        "key by another column",
    ),
    "keys of two types": (
        lambda d: d.rows.keyBy("n").join(d.other.select("cast(word as binary) AS n").keyBy("n")),
        SchemaError,
        "join: keys must have the same type; 'n'",
        "cast one of them with withColumn",
    ),
    "an explode of a string": (
        lambda d: d.rows.explode("word"),
        SchemaError,
        "explode: column 'word' of type string is no list",
        "split(word",
    ),
    "a union of other columns": (
        lambda d: d.rows.union(d.other),
        SchemaError,
        "union: names and types of columns must be the same",
        "or write unionByName",
    ),
    "a union by name of other types": (
        lambda d: d.rows.unionByName(d.rows.withColumn("n", "cast(word as binary)")),
        SchemaError,
        "union: names and types of columns must be the same",
        "cast one side with withColumn",
    ),
    "a union by name of other columns": (
        lambda d: d.rows.unionByName(d.other),
        SchemaError,
        "unionByName: the other stream has no 'l', 'm'",
        "with allowMissingColumns=True",
    ),
    # schemas and functions
    "a type with a typo": (
        lambda d: d.rows.mapInArrow(same, "id lnog"),
        SchemaError,
        "mapInArrow: unknown type 'lnog'",
        "did you mean long?",
    ),
    "a list as schema": (
        lambda d: d.rows.mapInArrow(same, ["id"]),
        TypeError,
        "mapInArrow: the schema must be a DDL string",
        "such as",
    ),
    "a function that was called": (
        lambda d: d.rows.mapInArrow(same(iter(())), "id long"),
        TypeError,
        "must be callable, not generator",
        "without calling it",
    ),
    "a group function of three": (
        lambda d: d.rows.groupBy("n").applyInArrow(lambda a, b, c: a, "a int"),
        PlanError,
        "the function in applyInArrow",
        "one argument (the rows) or two",
    ),
    "a function with a lock in it": (
        lambda d: d.rows.mapInArrow(lambda batches: (LOCK, batches)[1], "id long").toDF(),
        PlanError,
        "mapInArrow(<lambda>) cannot be sent to tasks",
        "inside the function",
    ),
    "an unknown aggregate": (
        lambda d: d.rows.groupBy("n").agg(x=("word", "mode")),
        PlanError,
        "x: there is no function 'mode'",
        "applyInArrow can compute anything",
    ),
    "an unknown SQL function": (
        lambda d: d.rows.filter("foo(n) > 1"),
        SchemaError,
        "filter: 'foo(n) > 1': Cannot resolve routine `foo`",
        "the columns are",
    ),
    "a syntax error": (
        lambda d: d.rows.filter("n >"),
        SchemaError,
        "filter: 'n >': Syntax error at or near end",
        "the columns are",
    ),
    "a function that Arrow has not": (
        lambda d: d.rows.withColumn("u", "uuid()"),
        SchemaError,
        "withColumn: 'uuid()' cannot be computed",
        "compute it with mapInArrow",
    ),
    "a Python UDF": (
        lambda d: d.rows.withColumn("u", F.udf(lambda n: n)("n")),
        SchemaError,
        "Python UDF is not supported there",
        "compute it with mapInArrow",
    ),
    "a window": (
        by_row_number,
        SchemaError,
        "withColumn: there are no window functions",
        "applyInArrow sees each group",
    ),
    "an aggregate in select": (
        lambda d: d.rows.select(F.sum("n")),
        SchemaError,
        "select: an aggregate function",
        "write groupBy(...).agg(...)",
    ),
    "a lambda as condition": (
        lambda d: d.rows.filter(lambda row: row.n > 1),
        TypeError,
        "filter: an expression is",
        "a SQL string",
    ),
    # modes, services, settings
    "an unknown mode": (
        lambda d: d.rows.keyBy("word", mode="fast"),
        SettingError,
        "keyBy: unknown mode 'fast'",
        "use one of auto",
    ),
    "an unknown service": (
        lambda d: d.rows.rebalance(service="nope"),
        SettingError,
        "rebalance: unknown shuffle service 'nope'",
        "installed are ",
    ),
    "a setting with a typo": (
        lambda d: with_setting(d, "spark.penstock.shufle.mode", "auto"),
        SettingError,
        "unknown setting spark.penstock.shufle.mode",
        "did you mean spark.penstock.shuffle.mode?",
    ),
    "a size that is none": (
        lambda d: with_setting(d, "spark.penstock.network.memory", "lots"),
        SettingError,
        "spark.penstock.network.memory='lots' is not valid",
        "it takes a size such as 64m",
    ),
    "too little memory": (
        lambda d: with_setting(d, "spark.penstock.network.memory", "1k"),
        SettingError,
        "spark.penstock.network.memory must hold at least 8 segments",
        "4194304 bytes",
    ),
    "a mode that is none in a setting": (
        lambda d: with_setting(d, "spark.penstock.shuffle.mode", "fast"),
        SettingError,
        "spark.penstock.shuffle.mode: unknown mode 'fast'",
        "use one of auto",
    ),
    "workers that are killed when idle": (
        lambda d: with_setting(d, "spark.sql.execution.pyspark.udf.killOnIdleTimeout", "true"),
        SettingError,
        "kills Python workers that wait for a slower stage",
        "set it to false",
    ),
    # paths
    "a path that is not there": (
        lambda d: penstock.readParquet(d.spark, d.files / "none"),
        SettingError,
        "does not exist",
        "check the path",
    ),
    "a pattern that matches nothing": (
        lambda d: penstock.readCsv(d.spark, f"{d.files}/*.tsv"),
        SettingError,
        "readCsv: nothing matches",
        "check the",
    ),
    "an empty folder": (
        lambda d: penstock.readText(d.spark, d.files / "empty"),
        SettingError,
        "readText: there is no file in",
        "check",
    ),
    "a file that is no Parquet": (
        lambda d: penstock.readParquet(d.spark, d.files / "text.parquet"),
        SettingError,
        "is not a Parquet file",
        "read it with readCsv",
    ),
    "a scheme that nobody knows": (
        lambda d: penstock.readParquet(d.spark, "s4://bucket/x"),
        SettingError,
        "s4://bucket/x cannot be opened",
        "a URI that pyarrow.fs knows",
    ),
    "a scheme of Hadoop's": (
        lambda d: penstock.readCsv(d.spark, "s3a://bucket/x.csv"),
        SettingError,
        "s3a://bucket/x.csv cannot be opened",
        "write s3://bucket/x.csv",
    ),
    "an array of objects as lines": (
        lambda d: penstock.readJson(d.spark, d.files / "array.json"),
        SchemaError,
        "readJson: the first line is an array",
        "multiLine=True",
    ),
    "a folder that is not empty": (
        lambda d: d.other.writeParquet(d.files / "full"),
        SettingError,
        "full is not empty",
        "or say overwrite=True",
    ),
    "a partition column that is none": (
        lambda d: d.other.writeParquet(d.files / "new", partitionBy=["wrod"]),
        SchemaError,
        "writeParquet: column 'wrod' does not exist",
        "the columns are word, n",
    ),
    # slots and numbers
    "more tasks at once than slots": (
        lambda d: d.rows.keyBy("word", numPartitions=100, mode="pipelined").toDF(),
        SlotsError,
        "task slots at the same time, but the application has 8",
        "use a smaller numPartitions",
    ),
    "no partitions": (
        lambda d: d.rows.keyBy("word", numPartitions=0),
        PlanError,
        "keyBy: numPartitions",
        "must be at least 1",
    ),
    "a number as text": (
        lambda d: d.rows.limit("3"),
        TypeError,
        "limit: the number of rows",
        "must be a whole number",
    ),
    # sessions and sources
    "no session": (
        lambda d: penstock.readParquet(d.files / "words.parquet", "word"),
        TypeError,
        "readParquet takes a SparkSession first",
        "readParquet(spark, path)",
    ),
    "a SparkContext": (
        lambda d: penstock.readText(d.spark.sparkContext, d.files),
        TypeError,
        "not a SparkContext",
        "readText(spark,",
    ),
    "a frame of pandas": (
        lambda d: penstock.fromDataFrame(pd.DataFrame({"a": [1]})),
        TypeError,
        "fromDataFrame takes a Spark DataFrame",
        "spark.createDataFrame(rows)",
    ),
    "a stream as DataFrame": (
        lambda d: penstock.fromDataFrame(d.rows),
        TypeError,
        "penstock's Stream",
        "use its verbs",
    ),
    "a DataFrame as stream": (
        lambda d: d.rows.union(d.frame),
        TypeError,
        "union takes streams, not DataFrame",
        "penstock.fromDataFrame(df)",
    ),
    # habits
    "write": (lambda d: d.rows.write, AttributeError, "a Stream has no 'write'", "write .writeParquet(path)"),
    "cache": (lambda d: d.rows.cache(), AttributeError, "a Stream has no 'cache'", "write .persist()"),
    "a verb with a typo": (lambda d: d.rows.fliter("n > 1"), AttributeError, "no 'fliter'", "did you mean 'filter'?"),
    "a column as attribute": (
        lambda d: d.rows.filter(d.rows.word == "a"),
        AttributeError,
        "a Stream has no 'word'",
        "write it as a string",
    ),
    "a column in brackets": (
        lambda d: d.rows.filter(d.rows["word"] == "a"),
        TypeError,
        "a Stream has no ['word']",
        "F.col('word')",
    ),
    "a loop over rows": (lambda d: list(d.rows), TypeError, "has no rows to loop over", "write .collect()"),
    "a join without keys": (
        lambda d: d.rows.join(d.other, "word"),
        AttributeError,
        "has no 'join'",
        "left.keyBy('k').join(",
    ),
    "a join on a condition": (
        lambda d: d.rows.keyBy("word").join(d.other.keyBy("word"), on=F.col("word") == F.col("w")),
        TypeError,
        "join takes names of columns, not the condition",
        "goes into a .filter after it",
    ),
    "an unknown kind of join": (
        lambda d: d.rows.keyBy("word").join(d.other.keyBy("word"), how="outwards"),
        PlanError,
        "how='outwards'",
        "is not one of inner, left",
    ),
    # what only shows when it runs
    "a table instead of batches": (
        lambda d: d.rows.mapInArrow(gives(pa.table({"a": [1]})), "a long").run(),
        JobError,
        "should be iterator of pyarrow.RecordBatch, but is iterator of Table",
        "yield from table.to_batches()",
    ),
    "nothing instead of batches": (
        lambda d: d.rows.mapInArrow(lambda batches: None, "a long").run(),
        JobError,
        "should be iterator of pyarrow.RecordBatch, but is NoneType",
        "yield each one",
    ),
    "other columns than declared": (
        lambda d: d.rows.mapInArrow(gives(pa.record_batch({"b": [1]})), "a long").toDF().collect(),
        PythonException,
        "mapInArrow(<lambda>): the function returned columns (b), declared are (a)",
        "declare what it returns",
    ),
    "other types than declared": (
        lambda d: d.rows.mapInArrow(gives(pa.record_batch({"a": ["x"]})), "a long").run(),
        JobError,
        "column 'a' is declared int64 and the function returned string",
        "cast it there, or declare that type",
    ),
    "a function that raises": (
        lambda d: d.rows.mapInArrow(broken, "a long").run(),
        JobError,
        "mapInArrow(broken)",
        "KeyError: 'word'",
    ),
    "a value that is no number": (
        lambda d: penstock.readCsv(d.spark, d.files / "bad.csv", "word string, n long", mode="FAILFAST").run(),
        JobError,
        "bad.csv",
        "n",
    ),
}


def first_line(error: BaseException) -> str:
    """The first line of the message that is not PySpark's heading."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(HEADING)]
    return lines[0]


def test_there_are_more_than_forty() -> None:
    """As many as were asked for, and each has a name of its own."""
    assert len(MISTAKES) >= 40


@pytest.mark.parametrize("name", MISTAKES)
def test_the_first_line_says_what_where_and_what_to_do(desk: Desk, name: str) -> None:
    """The error is of the type that tells what kind of mistake it is, and its first line is enough to go on."""
    make, kind, what, remedy = MISTAKES[name]
    with pytest.raises(kind) as raised:
        make(desk)
    line = first_line(raised.value)
    assert what in line
    assert remedy in line
    assert len(line) <= LONGEST
    assert "penstock.errors" not in line
