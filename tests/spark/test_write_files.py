# SPDX-License-Identifier: Apache-2.0
"""Files written on a real Spark session: the rows, the files, what is refused, and what a failure leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

import penstock
from penstock.errors import JobCancelledError, JobError, SchemaError, SettingError
from penstock.testing import DEADLINE, wait_until
from underway import listed

pytestmark = pytest.mark.spark

ROWS = 5_000
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.dictionary(pa.int8(), pa.string()))])
"""With a layout that Spark itself does not have."""
PLAIN = pa.schema([("id", pa.int64()), ("word", pa.string())])


def worded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A second column: the number's last digit as a word of a dictionary."""
    words = pa.array([f"w{digit}" for digit in range(10)])
    for batch in batches:
        digits = pc.subtract(batch["id"], pc.multiply(pc.divide(batch["id"], 10), 10)).cast(pa.int8())
        yield pa.record_batch([batch["id"], pa.DictionaryArray.from_arrays(digits, words)], schema=SCHEMA)


def stream_of(spark: Any, rows: int = ROWS) -> Any:
    """Numbers and words in three partitions."""
    return penstock.fromDataFrame(spark.range(rows)).rebalance(3).mapInArrow(worded, SCHEMA)


def hidden(folder: Path) -> list[str]:
    """The folders left beside the targets."""
    return [path.name for path in listed(folder) if path.name.startswith(".")]


def test_rows_files_and_figures(spark: Any, tmp_path: Path) -> None:
    """All rows with their schema, a part for each task, a mark of success; figures that fit; readable by Spark."""
    path = tmp_path / "deep" / "out"
    written = stream_of(spark).writeParquet(path)
    table = pq.read_table(path)
    assert table.schema.equals(PLAIN)
    assert sorted(table["id"].to_pylist()) == list(range(ROWS))
    assert table["word"].to_pylist() == [f"w{number % 10}" for number in table["id"].to_pylist()]
    parts = listed(path, "part-*.parquet")
    assert [part.name[5:10] for part in parts] == ["00000", "00001", "00002"]
    assert (path / "_SUCCESS").exists()
    assert pq.ParquetFile(parts[0]).metadata.row_group(0).column(0).compression == "ZSTD"
    assert (written.files, written.rows) == (3, ROWS)
    assert written.bytes == sum(part.stat().st_size for part in parts)
    assert f"{ROWS:,} rows in 3 files" in repr(written)
    assert spark.read.parquet(str(path)).count() == ROWS
    assert not hidden(path.parent)


def test_order_of_partitions_is_that_of_names(spark: Any, tmp_path: Path) -> None:
    """Partition i is in part i, so a sorted stream is sorted on disk. A URI works like a path."""
    keep: Callable[..., Any] = lambda batch: pc.divide(batch["id"], ROWS // 4).to_numpy()  # noqa: E731
    stream = penstock.fromDataFrame(spark.range(ROWS)).partitionCustom(keep, 4)
    written = stream.writeParquet((tmp_path / "out").as_uri(), compression="none")
    assert written.files == 4
    for number, part in enumerate(listed(tmp_path / "out", "part-*")):
        assert {value // (ROWS // 4) for value in pq.read_table(part)["id"].to_pylist()} == {number}


OWN = {
    "variant": """parse_json(concat('{"a": ', id, '}'))""",
    "variants": """array(parse_json('[1, "x"]'), null)""",
    "spans": "named_struct('hours', INTERVAL '5' HOUR, 'all', make_dt_interval(CAST(id AS INT), 0, 0, 1.5))",
    "text": "CAST(id AS STRING) COLLATE UTF8_LCASE",
}
"""Columns of types that Parquet does not have."""
PARTS = "spark.sql.variant.writeShredding.enabled"


def test_sparks_own_types_come_back(spark: Any, tmp_path: Path) -> None:
    """Out of files of Spark's, and Spark's readers find them in ours; what no stream holds is refused by name."""
    vector = array_to_vector(F.array(F.lit(1.5), F.col("id").cast("double")))
    others = [F.expr(f"IF(id = 1, null, {value})").alias(name) for name, value in OWN.items()]
    frame = spark.range(3).select("id", F.when(F.col("id") != 1, vector).alias("vector"), *others).coalesce(1)
    before = spark.conf.get(PARTS)
    for name, is_shredded in (("parts", "true"), ("theirs", "false")):
        spark.conf.set(PARTS, is_shredded)
        frame.write.parquet(str(tmp_path / name))
    spark.conf.set(PARTS, before)
    penstock.fromDataFrame(frame).writeParquet(tmp_path / "ours")
    right = spark.read.parquet(str(tmp_path / "theirs"))
    rows = sorted(map(str, right.collect()))
    assert "DenseVector" in rows[0]
    for found in (
        penstock.readParquet(spark, tmp_path / "theirs").toDF(),
        penstock.readParquet(spark, tmp_path / "ours").toDF(),
        spark.read.parquet(str(tmp_path / "ours")),
    ):
        assert found.schema == right.schema
        assert sorted(map(str, found.collect())) == rows
    with pytest.raises(SchemaError, match=r"column 'variant' of .* is a variant in parts.*columns="):
        penstock.readParquet(spark, tmp_path / "parts")
    assert penstock.readParquet(spark, tmp_path / "parts", columns=["id"]).count() == 3
    (file,) = listed(tmp_path / "parts", "*.parquet")
    file.rename(tmp_path / "theirs" / "z.parquet")
    with pytest.raises(SchemaError, match=r"column 'variant' is struct<.*typed_value"):
        penstock.readParquet(spark, tmp_path / "theirs")
    places = spark.sql("SELECT ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040') g")
    with pytest.raises(SchemaError, match="writeParquet: column 'g' is a geometry"):
        penstock.fromDataFrame(places).writeParquet(tmp_path / "places")


def test_no_rows_keep_the_schema(spark: Any, tmp_path: Path) -> None:
    """One file without rows."""
    written = stream_of(spark, 0).writeParquet(tmp_path / "out")
    assert (written.files, written.rows) == (1, 0)
    assert pq.read_table(tmp_path / "out").schema.equals(PLAIN)
    assert pq.read_table(tmp_path / "out").num_rows == 0


def test_lines_come_back_in_spark(spark: Any, tmp_path: Path) -> None:
    """CSV and JSON, compressed and by folders; what Spark's own files of the same frame give. No rows: the header."""
    frame = spark.sql(
        "SELECT id, id % 2 AS half, IF(id % 3 = 0, NULL, concat('a,\"', id)) AS s,"
        " TIMESTAMP'2026-03-29 02:30:00' AS t, id / 4 AS x FROM range(40)"
    )
    stream = penstock.fromDataFrame(frame).rebalance(2)
    schema = "id long, s string, t timestamp, x double, half int"
    csv = stream.writeCsv(tmp_path / "csv", header=True, sep=";", compression="gzip", partitionBy=["half"])
    json = stream.writeJson(tmp_path / "json", compression="bzip2")
    assert (csv.rows, json.rows) == (40, 40)
    frame.write.partitionBy("half").options(header=True, sep=";").csv(str(tmp_path / "theirs"))
    read = spark.read.schema(schema)
    found = read.options(header=True, sep=";").csv(str(tmp_path / "csv")).collect()
    right = read.options(header=True, sep=";").csv(str(tmp_path / "theirs")).collect()
    assert sorted(map(str, found)) == sorted(map(str, right))
    found = spark.read.schema(schema).json(str(tmp_path / "json")).select(frame.columns).collect()
    assert sorted(map(str, found)) == sorted(map(str, frame.selectExpr("id", "half", "s", "t", "x").collect()))
    assert {path.name.partition(".")[2] for path in listed(tmp_path / "csv" / "half=0")} == {"csv.gz"}
    assert {path.name.partition(".")[2] for path in listed(tmp_path / "json", "part-*")} == {"json.bz2"}
    assert sum(path.stat().st_size for path in listed(tmp_path / "json", "part-*")) == json.bytes
    stream.filter("id < 0").writeCsv(tmp_path / "csv", header=True, overwrite=True)
    (empty,) = listed(tmp_path / "csv", "part-*")
    assert empty.read_text() == "id,half,s,t,x\n"


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_columns_of_one_name_are_written_where_spark_writes_them(spark: Any, tmp_path: Path, form: str) -> None:
    """In jobs and queries: names that differ in case are one here, and a JSON object would lose a value."""
    twice = spark.range(4).selectExpr("id", "id + 1 AS ID")
    stream = (
        penstock.readStream(spark).format("rate").option("numRows", 9).load().selectExpr("value", "value AS Value")
    )
    query = stream.writeStream.format(form).option("checkpointLocation", str(tmp_path / "checkpoints"))
    if form == "csv":
        twice.write.csv(str(tmp_path / "theirs"))
        assert penstock.fromDataFrame(twice).writeCsv(tmp_path / "ours").rows == 4
        assert query.start(str(tmp_path / "query")).awaitTermination(DEADLINE)
        return
    with pytest.raises(AnalysisException, match="COLUMN_ALREADY_EXISTS"):
        getattr(twice.write, form)(str(tmp_path / "theirs"))
    with pytest.raises(SchemaError, match=r"columns 'id', 'ID' have one name"):
        getattr(penstock.fromDataFrame(twice), f"write{form.capitalize()}")(tmp_path / "ours")
    with pytest.raises(SchemaError, match=r"writeStream: columns 'value', 'Value' have one name"):
        query.start(str(tmp_path / "query"))


def test_refused_before_anything_runs(spark: Any, tmp_path: Path) -> None:
    """A folder that is not empty, a file, an unknown compression: at once, by name."""
    (tmp_path / "file").touch()
    ran = tmp_path / "ran"

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.touch()
        yield from batches

    stream = penstock.fromDataFrame(spark.range(10)).mapInArrow(mark, "id long")
    with pytest.raises(SettingError, match=f"{tmp_path} is not empty.*overwrite=True"):
        stream.writeParquet(tmp_path)
    with pytest.raises(SettingError, match="file is a file"):
        stream.writeParquet(tmp_path / "file", overwrite=True)
    with pytest.raises(SettingError, match=r"'zip' is none of none, snappy"):
        stream.writeParquet(tmp_path / "out", compression="zip")
    with pytest.raises(SettingError, match="writeCsv: nullValue ' ' has a blank at an end"):
        stream.writeCsv(tmp_path / "out", nullValue=" ")
    assert not ran.exists()
    assert [path.name for path in listed(tmp_path)] == ["file"]


def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage that fails after its first batch in one task; the others write."""
    for number, batch in enumerate(batches):
        if number and batch["id"][0].as_py() % 3 == 0:
            raise ValueError("boom")
        yield batch


def sliced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in small batches."""
    for batch in batches:
        for start in range(0, batch.num_rows, 50):
            yield batch.slice(start, 50)


def test_failure_leaves_what_was_there(spark: Any, tmp_path: Path) -> None:
    """A job that fails removes its staging folder, and overwrite replaces the old folder only after success."""
    out = tmp_path / "out"
    bad = penstock.fromDataFrame(spark.range(ROWS)).rebalance(2).mapInArrow(sliced, "id long")
    bad = bad.mapInArrow(broken, "id long")
    with pytest.raises(JobError, match="boom"):
        bad.writeParquet(out)
    assert not listed(tmp_path)
    stream_of(spark, 100).writeParquet(out)
    with pytest.raises(JobError, match="boom"):
        bad.writeParquet(out, overwrite=True)
    assert pq.read_table(out).num_rows == 100
    stream_of(spark, 200).writeParquet(out, overwrite=True)
    assert pq.read_table(out).num_rows == 200
    assert not hidden(tmp_path)


def test_cancel_leaves_nothing(spark: Any, tmp_path: Path) -> None:
    """A cancel of the job group that writes: the call raises and the staging folder is gone."""
    started = tmp_path / "started"
    started.mkdir()

    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        kept = list(batches)
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            (started / "yes").touch()
            yield from kept
            time.sleep(0.01)

    raised: list[BaseException] = []

    def act() -> None:
        spark.sparkContext.setJobGroup("writing", "a test")
        try:
            penstock.fromDataFrame(spark.range(10)).mapInArrow(endless, "id long").writeParquet(tmp_path / "out")
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    wait_until(lambda: (started / "yes").exists() or not thread.is_alive(), "a task has begun")
    spark.sparkContext.cancelJobGroup("writing")
    thread.join(DEADLINE)
    assert isinstance(raised[0], JobCancelledError)
    assert [path.name for path in listed(tmp_path)] == ["started"]


def test_a_persisted_stream_is_written(spark: Any, tmp_path: Path) -> None:
    """Without running its pipeline again."""
    runs = tmp_path / "runs"

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with runs.open("ab") as file:
            file.write(b"x")
        yield from batches

    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 1)).mapInArrow(count, "id long").persist()
    try:
        for name in ("one", "two"):
            assert stream.writeParquet(tmp_path / name).rows == ROWS
    finally:
        stream.unpersist()
    assert runs.read_bytes() == b"x"
