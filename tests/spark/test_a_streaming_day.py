# SPDX-License-Identifier: Apache-2.0
"""A working day of a user of Structured Streaming: its triggers, sinks and functions, on Spark."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import PenstockError, PlanError, SlotsError
from penstock.spark.hints import PenstockWarning
from penstock.testing import DEADLINE, wait_until
from penstock_bench.workers import worker_pids
from session_probe import queries_ended
from underway import listed

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def ended(spark: Any) -> Iterator[None]:
    """No query outlives its test, and slots come back."""
    yield from queries_ended(spark)


def arrive(folder: Path, first: int, count: int, lines: int = 300) -> None:
    """So many files of numbered lines, each of which appears whole."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        text = "".join(f"{number}:{line}\n" for line in range(lines))
        (folder / f".{number}").write_text(text)
        (folder / f".{number}").rename(folder / f"{number}.txt")


def lines_of(files: int, lines: int = 300) -> Counter[str]:
    """The lines of as many files, each once."""
    return Counter(f"{number}:{line}" for number in range(files) for line in range(lines))


def values_in(folder: Path) -> Counter[str]:
    """The values that a reader of a folder sees."""
    return Counter(value for path in listed(folder, "part-*") for value in pq.read_table(path)["value"].to_pylist())


def test_available_now_three_times_over_a_folder_that_grows(spark: Any, tmp_path: Path) -> None:
    """Each run reads what has come and ends by itself; a worker is killed in the second: each line once."""
    for run in range(3):
        arrive(tmp_path / "in", run * 4, 4)
        lines = penstock.readStream(spark).text(str(tmp_path / "in")).rebalance(2)
        writer = lines.writeStream.trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoints")).queryName(f"now {run}")
        if run == 2:
            with pytest.warns(PenstockWarning, match="once=True"):
                writer.trigger(once=True)
        query = writer.start(str(tmp_path / "out"))
        if run == 1:
            wait_until(worker_pids, "workers run")
            for pid in worker_pids():  # some of them may be idle
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert query.awaitTermination(DEADLINE) is True
        assert values_in(tmp_path / "out") == lines_of((run + 1) * 4)


def test_what_is_written_is_read_back_by_pyspark(spark: Any, tmp_path: Path) -> None:
    """Each form in folders named by a column: nulls, quotes, times, nested values; and tables that a query fills."""
    columns = "k string, n int, s string, r double, d decimal(9,2), b boolean, day date, at timestamp"
    columns += ", local timestamp_ntz"
    nested = ", l array<int>, m map<string,double>, t struct<x:bigint,y:array<string>>"
    spark.sql(f"CREATE DATABASE day LOCATION '{tmp_path}/warehouse'")
    spark.sql(_ODD_ROWS).write.parquet(str(tmp_path / "in"))
    fields = [field.partition(" ")[0] for field in columns.split(", ")]
    expected = spark.read.parquet(str(tmp_path / "in"))

    def start(form: str, kept: list[str], folder: str) -> Any:
        reader = penstock.readStream(spark).schema(expected.schema).option("numPartitions", 1)
        stream = reader.parquet(str(tmp_path / "in")).select(*kept)
        writer = stream.writeStream.format(form).partitionBy("k").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / f"{folder}-checkpoints"))
        if form == "csv":
            writer.option("nullValue", "NULL")  # by its own nullValue Spark takes empty strings for null
        return writer.toTable(folder) if folder == "day.odd_rows" else writer.start(str(tmp_path / folder))

    def rows(frame: Any, kept: list[str]) -> list[str]:
        return sorted(map(str, frame.select(*kept).collect()))

    everything = [*fields, "l", "m", "t"]
    queries = [start("csv", fields, "csv"), start("json", everything, "json")]
    for query in [*queries, start("parquet", everything, "day.odd_rows")]:
        query.awaitTermination()
    held = columns.removeprefix("k string, ")
    read = spark.read.schema(f"{held}, k string")
    assert rows(read.csv(str(tmp_path / "csv"), nullValue="NULL"), fields) == rows(expected, fields)
    read = spark.read.schema(f"{held}{nested}, k string")
    assert rows(read.json(str(tmp_path / "json")), everything) == rows(expected, everything)
    assert rows(spark.table("day.odd_rows"), everything) == rows(expected, everything)
    writer = penstock.readStream(spark).schema(expected.schema).parquet(str(tmp_path / "in")).writeStream
    with pytest.raises(PlanError, match=r"has the columns .* k string \(partition\), and the query gives k"):
        writer.toTable("day.odd_rows")
    spark.sql("DROP DATABASE day CASCADE")


_ODD_ROWS = r"""
SELECT k, n, s, r, CAST(d AS decimal(9,2)) AS d, b, day, at, local, l, m, t FROM VALUES
 ('a', 1, 'plain', 0.1D, 1.5, true, DATE'2026-01-31', TIMESTAMP'2026-01-31 23:59:59.000001Z',
  TIMESTAMP_NTZ'1969-12-31 23:59:59.9', array(1, null), map('k', 1.5D, 'j', null),
  named_struct('x', 1L, 'y', array('q"', null))),
 (null, null, null, null, null, null, null, null, null, null, null, null),
 ('x/y=1', 2, '', double('NaN'), -0.01, false, DATE'1900-01-01', TIMESTAMP'1900-01-01 00:00:00Z',
  TIMESTAMP_NTZ'2026-01-31 00:00:00', array(), map(), named_struct('x', null, 'y', array())),
 ('b c', -3, 'say "so", \\ or \\"', double('-Infinity'), 0, true, DATE'2026-06-01', TIMESTAMP'2026-06-01 12:00:00.5Z',
  TIMESTAMP_NTZ'2026-06-01 12:00:00.123456', array(7), map('"', 0D), named_struct('x', 2L, 'y', array('é'))),
 ('a', 4, '  space ', 1e20D, 12.34, null, null, null, null, null, null, null)
AS odd(k, n, s, r, d, b, day, at, local, l, m, t)
"""


def test_function_for_each_batch(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It gets DataFrames and numbers. Its error ends the query; the next run calls again, says so, and goes on."""
    calls: list[tuple[int, int]] = []

    def function(frame: Any, number: int) -> None:
        calls.append((number, frame.count()))
        if len(calls) == 1:
            raise ValueError("the table is away")

    def run() -> Any:
        lines = penstock.readStream(spark).text(str(tmp_path / "in")).rebalance(1)
        writer = lines.writeStream.foreachBatch(function).queryName("batches").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoints")).start()

    arrive(tmp_path / "in", 0, 2)
    with pytest.raises(PenstockError, match=r"foreachBatch failed: ValueError: the table is away \(in batch"):
        run().awaitTermination(DEADLINE)
    arrive(tmp_path / "in", 2, 1)
    assert run().awaitTermination(DEADLINE)
    assert calls == [(0, 600), (0, 600), (1, 300)]
    assert "calls its function again with batch 0" in caplog.text
    slots = spark.sparkContext.defaultParallelism
    lines = penstock.readStream(spark).option("numPartitions", 1).text(str(tmp_path / "in"))
    wide = lines.rebalance(slots - 1).writeStream.foreachBatch(function)
    with pytest.raises(
        SlotsError, match=rf"takes {slots} of {slots} that are at hand \({slots} in all\), which leaves"
    ):
        wide.start()


def test_rows_of_queries_are_read_by_the_new_calendar_alone(spark: Any, tmp_path: Path) -> None:
    """Whatever calendar the session reads other files by; columns that are one to it are refused at the start."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"d": "1500-01-01", "v": 1}')
    days: list[str] = []
    rows = penstock.readStream(spark).schema("d date, v long").json(str(tmp_path / "in"))
    mode = "spark.sql.parquet.datetimeRebaseModeInRead"
    former = spark.conf.get(mode)
    spark.conf.set(mode, "LEGACY")
    try:
        writers = (
            rows.writeStream.foreachBatch(lambda frame, _: days.extend(_days(frame))),
            rows.writeStream.format("memory").queryName("old_days"),
        )
        for number, writer in enumerate(writers):
            writer = writer.trigger(availableNow=True)  # noqa: PLW2901
            query = writer.option("checkpointLocation", str(tmp_path / f"checkpoints-{number}")).start()
            assert query.awaitTermination(DEADLINE)
        assert [*days, *_days(spark.table("old_days"))] == ["1500-01-01"] * 2
    finally:
        spark.conf.set(mode, former)
    both = rows.selectExpr("v AS a", "d AS A").writeStream
    for writer in (both.foreachBatch(lambda _, __: None), both.format("memory").queryName("both")):
        with pytest.raises(PlanError, match="columns 'a', 'A' are one to Spark"):
            writer.option("checkpointLocation", str(tmp_path / "both")).start()


def _days(frame: Any) -> list[str]:
    return [row.day for row in frame.selectExpr("CAST(d AS STRING) AS day").collect()]


def test_newest_rows_of_a_folder(spark: Any, tmp_path: Path) -> None:
    """Of each key, null is one, also as of a checkpoint; and a folder without epochs is refused by name."""
    for number, rows in enumerate(([(1, "a"), (None, "n")], [(1, "b"), (2, "c")], [(1, None)]), 1):
        keys, texts = (
            pa.array([key for key, _ in rows], pa.int64()),
            pa.array([text for _, text in rows], pa.string()),
        )
        table = pa.table({"k": keys, "at": texts})
        pq.write_table(table.append_column("epoch", pa.array([number] * len(rows))), tmp_path / f"{number}.parquet")
    newest = penstock.latestRows(spark, str(tmp_path), "k")
    assert sorted(map(tuple, newest.collect()), key=str) == [(1, None), (2, "c"), (None, "n")]
    before = penstock.latestRows(spark, str(tmp_path), "k", epoch=2)
    assert sorted(map(tuple, before.collect()), key=str) == [(1, "b"), (2, "c"), (None, "n")]
    with pytest.raises(PlanError, match="has no column 'user', only k, at, epoch"):
        penstock.latestRows(spark, str(tmp_path), "user")


@pytest.mark.thorough
def test_whole_results_are_those_of_pyspark(spark: Any, tmp_path: Path) -> None:
    """All groups after each of two runs, of which the second gets more files; the view is made anew by it."""
    rows: dict[tuple[int, bool], set[Any]] = {}
    for files, mine in ((2, True), (4, True), (4, False)):
        arrive(tmp_path / "in", 0, files, lines=30)
        reader = penstock.readStream(spark) if mine else spark.readStream
        lines = reader.format("text").load(str(tmp_path / "in"))
        counts = lines.selectExpr("substring(value, 1, 1) AS file", "length(value) AS n")
        counts = counts.groupBy("file").agg({"n": "sum"}).selectExpr("`sum(n)` AS n", "file")
        writer = counts.writeStream.outputMode("complete").format("memory").queryName("whole")
        writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / f"checkpoints-{mine}"))
        writer.start().awaitTermination()
        rows[files, mine] = {tuple(row) for row in spark.table("whole").collect()}
    spark.catalog.dropTempView("whole")
    assert rows[2, True] == {(110, "0"), (110, "1")}
    assert rows[4, True] == rows[4, False] == {(110, str(number)) for number in range(4)}
