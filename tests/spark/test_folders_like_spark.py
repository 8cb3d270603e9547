# SPDX-License-Identifier: Apache-2.0
"""Partitioned Parquet folders that Spark wrote, or that were made by hand, read as Spark reads them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import penstock
from effort import some_of, with_all
from penstock.machine.file_choice import FileChoice
from underway import listed

pytestmark = pytest.mark.spark

TEXTS = [
    ["1", "-5", "007", "2147483648", "9223372036854775808", "1e3", "1.5", "-.5", "1f", "NaN", "1_0", "0x1"],
    ["2026-01-02", "2026-02-30", "2026-1-2", "2026-01-02 03:04:05", "2026-01-02 03:04:05.25", "2026-01-02T03:04:05"],
    ["a", "true", "null", " 1", "a=b", "ü/%", "__HIVE_DEFAULT_PARTITION__"],
]


def escaped(text: str) -> str:
    """As Spark writes a value into a folder's name."""
    return "".join(f"%{ord(c):02X}" if c in "\"#%'*/:=?\\\x7f{[]^" else c for c in text)


def same_rows(spark: Any, folder: Path) -> None:
    """Schema and rows of both readers."""
    theirs = spark.read.parquet(str(folder))
    ours = penstock.readParquet(spark, folder).rebalance(2).toDF()
    assert [(f.name, f.dataType) for f in ours.schema] == [(f.name, f.dataType) for f in theirs.schema]
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


@pytest.mark.parametrize("infer", ["true", with_all("false")])
def test_folders_that_spark_wrote(spark: Any, tmp_path: Path, infer: str) -> None:
    """Columns of several types, written by partitionBy and read back, with type inference and without."""
    frame = spark.range(12).selectExpr(
        "id", "CAST(id % 3 AS INT) AS n", "IF(id % 4 = 0, NULL, concat('a/b:', id % 2)) AS s",
        "date_add(DATE'2026-01-01', CAST(id % 2 AS INT)) AS d", "TIMESTAMP'2026-03-01 10:20:30.5' AS t",
    )  # fmt: skip
    frame.write.partitionBy("n", "s", "d", "t").parquet(str(tmp_path / "out"))
    key = "spark.sql.sources.partitionColumnTypeInference.enabled"
    before = spark.conf.get(key)
    spark.conf.set(key, infer)
    try:
        same_rows(spark, tmp_path / "out")
    finally:
        spark.conf.set(key, before)


@pytest.mark.thorough
def test_csv_that_spark_wrote(spark: Any, tmp_path: Path) -> None:
    """Texts with quotes, separators and backslashes come back as they were, and as Spark reads them; none is lost."""
    texts = ['a"b', "a\\b", '\\"', '"', '\\\\"', 'a,"b\\",c', "\\", 'a\\,"', "plain", 'x""y', '[1,"2"]']
    frame = spark.createDataFrame([(text, number) for number, text in enumerate(texts)], "t string, n int")
    frame.repartition(20).write.option("header", True).csv(str(tmp_path / "out"))
    theirs = spark.read.csv(str(tmp_path / "out"), "t string, n int", header=True)
    ours = penstock.readCsv(spark, tmp_path / "out", "t string, n int", header=True)
    assert sorted(ours.collect()) == sorted(theirs.collect()) == sorted(frame.collect())


def test_types_of_folders_made_by_hand(spark: Any, tmp_path: Path) -> None:
    """Random values in folders' names: each alone, and two and three together, get the type Spark infers."""
    rng = random.Random(5)
    alone = [[text] for texts in TEXTS for text in texts]
    every = [text for texts in TEXTS for text in texts]
    mixed = [rng.sample(rng.choice([*TEXTS, every]), rng.choice([2, 3])) for _ in range(40)]
    spark.range(1).coalesce(1).write.parquet(str(tmp_path / "one"))
    (file,) = listed(tmp_path / "one", "part-*.parquet")
    wrong = []
    for number, texts in enumerate(some_of([*alone, *mixed], 2)):
        folder = tmp_path / f"t{number}"
        for text in texts:
            part = folder / f"k={escaped(text)}"
            part.mkdir(parents=True)
            (part / "part-0.parquet").write_bytes(file.read_bytes())
        theirs = spark.read.parquet(str(folder)).schema["k"].dataType.simpleString()
        ours = penstock.readParquet(spark, folder).schema.field("k")
        if _spark_name(ours) != theirs:
            wrong.append((texts, theirs, ours.type))
    assert not wrong


def _spark_name(field: Any) -> str:
    import pyarrow as pa

    from penstock.spark.types import struct_type

    return str(struct_type(pa.schema([field]))[0].dataType.simpleString())


def test_files_are_chosen_as_spark_chooses_them(spark: Any, tmp_path: Path) -> None:
    """Each pattern takes the names that Hadoop's own takes; times and subfolders are those of Spark's reader."""
    names = ["a.csv", "b.tsv", "a.b.csv", "[a].csv", "a^b", "a-b", "a{1}", "x,y", "z\\w", "ä.csv", "_h.csv"]
    names.append("a+(b)|c$")
    globs = ["*.csv", "?.csv", "[a-b].*", "[^a]*", "[!a]*", "{a,b}.?sv", "*.{csv,tsv}", "a\\^b", "[a^]^b", "*[-+]*"]
    globs += ["\\[a].csv", "x,y", "z\\\\w", "a{1}", "a\\{1}", "*(b)|c$", "a.{b.,}csv"]
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs
    for glob in globs:
        right, ours = hadoop.GlobFilter(glob), FileChoice(glob=glob)
        taken = [name for name in names if ours.takes(name, 0)]
        assert taken == [name for name in names if right.accept(hadoop.Path("/t", name))], glob
    for number, place in enumerate(["a.txt", "b.txt", "deep/c.txt", "day=1/d.txt", "_no/e.txt"]):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(place)
        os.utime(tmp_path / place, (1_800_000_000 + number, 1_800_000_000 + number))
    text = "date_format(timestamp_seconds(1800000000 + id * 3), \"yyyy-MM-dd'T'HH:mm:ss\") AS at"
    after, before = (row.at for row in spark.range(2).selectExpr(text).collect())
    options = {"recursiveFileLookup": True, "pathGlobFilter": "*.txt"}
    options |= {"modifiedAfter": after, "modifiedBefore": before}
    ours = penstock.readText(spark, tmp_path, **options)
    theirs = spark.read.options(**options).text(str(tmp_path))
    assert sorted(row.value for row in ours.toDF().collect()) == sorted(row.value for row in theirs.collect())


def test_folders_of_lines_as_spark_reads_them(spark: Any, tmp_path: Path) -> None:
    """CSV, JSON and text below folders with values, with a schema that has them or not; names in another case too."""
    for day in ("007", "8"):
        folder = tmp_path / "in" / f"day={day}" / "Kind=a%2Fb"
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text("v,kind\nx,y\n")
        (folder / "a.json").write_text('{"DAY": "x", "v": "a"}\n')
    path = str(tmp_path / "in")
    for form, schema, given in (
        ("csv", None, {"header": True}),
        ("csv", "day string, v string, k string", {"header": True}),
        ("csv", "v string, k string, kind string", {}),
        ("json", None, {}),
        ("json", "v string, Day long, kind string", {}),
        ("text", None, {}),
    ):
        chosen = {"pathGlobFilter": "*.json" if form == "json" else "*.csv"}
        reader = spark.read.options(**given, **chosen)
        theirs = (reader if schema is None else reader.schema(schema)).format(form).load(path)
        read = {"csv": penstock.readCsv, "json": penstock.readJson, "text": penstock.readText}[form]
        own = {key: value for key, value in given.items() if key == "header"}
        ours = read(spark, path, **({} if schema is None else {"schema": schema}), **own, **chosen).toDF()
        assert [(f.name, f.dataType) for f in ours.schema] == [(f.name, f.dataType) for f in theirs.schema]
        assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))
