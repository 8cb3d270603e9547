# SPDX-License-Identifier: Apache-2.0
"""The mistakes of a first day with streams: the first line says what is wrong, where, and what to do.

All of them are refused where they are written, so none needs a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.modes import in_mode, output_mode
from penstock.api.streaming.options import Options
from penstock.api.streaming.places import one_spelling
from penstock.api.streaming.refusals import (
    refuse_one_folder,
    refuse_scattered,
    warn_of_rows_again,
)
from penstock.api.streaming.sinks import SINKS, SinkRequest, private_folder
from penstock.api.streaming.tables import into_table
from penstock.api.streaming.whole_results import group_columns, refuse_sink
from penstock.errors import PlanError, SchemaError, SettingError
from penstock.spark.hints import PenstockWarning
from penstock.stream.noop import NoopSink

LONGEST = 400


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Change nothing."""
    yield from batches


def reader() -> Any:
    """A source in the making."""
    return penstock.readStream(None)


def rate() -> Any:
    """Rows without an end."""
    return reader().format("rate").load()


def structs(path: Path) -> Any:
    """Rows with a struct."""
    return reader().schema("n long, s struct<a: long>").parquet(str(path))


def writer() -> Any:
    """A sink in the making."""
    return rate().writeStream


def counts() -> Any:
    """An aggregation, whose rows change."""
    return rate().keyBy("value").count()


def sink_at(path: Path) -> Any:
    """The sink that `start` makes, where a file is in its place."""
    path.write_text("rows")
    return SINKS["parquet"](
        SinkRequest(None, pa.schema([]), Options("writeStream"), None, str(path), "q", is_kept=True)
    )


def into(path: Path, location: str) -> None:
    """Check as `start` does: files that arrive in the folder `path`, written into it."""
    stream = reader().schema("a long").parquet(str(path))
    request = SinkRequest(None, stream.schema, Options("writeStream"), None, f"{path}/", "q", is_kept=True)
    refuse_one_folder(stream.branches if not location else rate().branches, SINKS["parquet"](request)[0], location)


class Endless:
    """A source that knows nothing of what is there."""

    name, schema, splits, open = "endless", pa.schema([("value", pa.int64())]), lambda self: 1, None


def a_request() -> SinkRequest:
    """The wish of somebody who writes columns of several kinds."""
    nested, of_bytes = pa.list_(pa.int64()), pa.list_(pa.binary())
    schema = pa.schema(
        [("value", pa.int64()), ("real", pa.float64()), ("nested", nested), ("bytes", of_bytes), ("s", pa.string())]
    )
    return SinkRequest(None, schema, Options("writeStream"), None, None, "q", is_kept=True)


def sink_of_keys(path: Path, **options: str) -> SinkRequest:
    """A sink with options."""
    made = replace(a_request(), path=str(path), options=Options("writeStream"))
    for name, value in options.items():
        made.options.set(name, value)
    return made


MISTAKES: dict[str, tuple[Callable[[Path], Any], type[BaseException], str, str]] = {
    # a stream without an end taken for a DataFrame
    "collect": (lambda p: rate().collect(), PlanError, "collect needs all rows", "stream.writeStream.format("),
    "show": (lambda p: rate().show(), PlanError, "show needs all rows", "stream.writeStream.format("),
    "count": (lambda p: rate().count(), PlanError, "count needs all rows", "stream.writeStream.format("),
    "toPandas": (lambda p: rate().toPandas(), PlanError, "toPandas needs all rows", "stream.writeStream.format("),
    "toDF": (lambda p: rate().toDF(), PlanError, "toDF needs all rows", "stream.writeStream.format("),
    "writeParquet": (lambda p: rate().writeParquet(p), PlanError, "writeParquet needs all", "stream.writeStream"),
    "persist": (lambda p: rate().persist(), PlanError, "persist needs all rows", "stream.writeStream"),
    "duplicates by a struct": (
        lambda p: structs(p).dropDuplicates(),
        SchemaError,
        "column 's' of type struct<a: int64> cannot be grouped by",
        "make plain columns of what you group by",
    ),
    "the first rows of a struct": (
        lambda p: structs(p).keyBy("s").top(3, "n"),
        SchemaError,
        "column 's' of type struct<a: int64> cannot be grouped by",
        "make plain columns of what you group by",
    ),
    "a watermark of a number": (
        lambda p: rate().withWatermark("value", "1 minute"),
        SchemaError,
        "withWatermark: column 'value' is of type int64",
        "timestamp_millis(value)",
    ),
    "a watermark of a column that is not there": (
        lambda p: rate().withWatermark("ts", "1 minute"),
        SchemaError,
        "withWatermark: column 'ts' does not exist",
        "the columns are timestamp, value",
    ),
    "a delay without a fixed length": (
        lambda p: rate().withWatermark("timestamp", "1 month"),
        PlanError,
        "withWatermark: the delay: '1 month' has months",
        "say days or weeks",
    ),
    "a delay that is none": (
        lambda p: rate().withWatermark("timestamp", "soon"),
        PlanError,
        "withWatermark: the delay: 'soon' is no interval",
        "'10 minutes'",
    ),
    "a delay below zero": (
        lambda p: rate().withWatermark("timestamp", "-1 second"),
        PlanError,
        "withWatermark: the delay must not be negative",
        "-1 second",
    ),
    # a DataFrame taken for a stream without an end
    "a query over a bounded stream": (
        lambda p: Stream((SourceStep("rows", pa.schema([("a", pa.int64())])),)).writeStream.start(),
        PlanError,
        "writeStream is for streams of penstock.readStream",
        "this one has writeParquet()",
    ),
    # sources
    "a source that is not there": (
        lambda p: reader().format("pulsar").load(),
        PlanError,
        "readStream.format('pulsar'): there is no such source",
        "use one of csv, delta, json, kafka, parquet, rate, text, a Python data source that",
    ),
    "an option with a typo": (
        lambda p: reader().format("rate").option("rowPerSecond", 5).load(),
        SettingError,
        "readStream: rate has no option 'rowPerSecond'",
        "did you mean rowsPerSecond?",
    ),
    "an option of another type": (
        lambda p: reader().format("rate").options(rowsPerSecond="many").load(),
        SettingError,
        "readStream: option rowsPerSecond='many' is not valid",
        "could not convert string to float",
    ),
    "less than nothing": (
        lambda p: reader().format("rate").option("rowsPerSecond", -1).load(),
        SettingError,
        "rowsPerSecond is -1",
        "it is 0 (as fast as it goes) or more",
    ),
    "files without a schema": (
        lambda p: reader().csv(str(p)),
        PlanError,
        "readStream: csv files need a schema",
        "readStream(spark).schema(",
    ),
    "files without a folder": (
        lambda p: reader().schema("a long").format("json").load(),
        PlanError,
        "json files arrive in a folder",
        "load(path)",
    ),
    "a folder that is not there": (
        lambda p: reader().schema("a long").json(str(p / "arriving")),
        PlanError,
        "arriving is no folder that is there",
        "make it first",
    ),
    "start without a sink": (
        lambda p: rate().start(),
        AttributeError,
        "a Stream has no 'start'",
        "write .writeStream.format('parquet').start(path)",
    ),
    "a schema of what has one": (
        lambda p: reader().schema("a long").format("rate").load(),
        PlanError,
        "readStream: rate has a schema of its own",
        "leave schema() out",
    ),
    "a path of what has none": (
        lambda p: reader().format("rate").load(str(p)),
        PlanError,
        "readStream: rate makes its rows up, and reads no path",
        "leave the path out",
    ),
    "a table": (lambda p: reader().table("t"), AttributeError, "readStream has no 'table'", ".parquet(path)"),
    "a class as source": (
        lambda p: reader().format(3),
        TypeError,
        "readStream.format takes a name or a source with open(), not int",
        "",
    ),
    "a verb before load": (
        lambda p: reader().format("rate").writeStream,
        AttributeError,
        "readStream has no 'writeStream'",
        ".load() gives the stream",
    ),
    # sinks
    "two triggers": (
        lambda p: writer().trigger(processingTime="5 seconds", availableNow=True),
        PlanError,
        "takes one trigger (PySpark's ONLY_ALLOW_SINGLE_TRIGGER), not processingTime, availableNow",
        "say processingTime='10 seconds' or availableNow=True",
    ),
    "no trigger": (lambda p: writer().trigger(), PlanError, "takes one trigger", ", not none"),
    "a trigger that is not on": (
        lambda p: writer().trigger(availableNow=False),
        PlanError,
        "trigger(availableNow=False)",
        "availableNow=True, or another trigger",
    ),
    "a trigger of no interval": (
        lambda p: writer().trigger(processingTime=" "),
        PlanError,
        "trigger(processingTime=' ')",
        "such as processingTime='10 seconds'",
    ),
    "a negative trigger": (
        lambda p: writer().trigger(continuous="-1 second"),
        PlanError,
        "trigger(continuous='-1 second')",
        "must not be negative",
    ),
    "two intervals": (
        lambda p: (
            writer().trigger(processingTime="5 seconds").option("checkpointinterval", "1s").format("noop").start()
        ),
        SettingError,
        "trigger(processingTime='5 seconds') and option('checkpointInterval', ...)",
        "leave one out",
    ),
    "all of what never ends": (
        lambda p: writer().trigger(availableNow=True).format("noop").start(),
        PlanError,
        "makes rows up as long as it is read",
        "availableNow needs numRows",
    ),
    "all of what can't tell": (
        lambda p: reader().format(Endless()).load().writeStream.trigger(availableNow=True).format("noop").start(),
        PlanError,
        "endless can't tell what is available now",
        "available_now()",
    ),
    "a function for each row": (
        lambda p: writer().foreach(lambda row: None),
        AttributeError,
        "writeStream has no 'foreach'",
        ".foreachBatch(fn)",
    ),
    "a result in the place of a function": (
        lambda p: writer().foreachBatch(3),
        TypeError,
        "writeStream.foreachBatch takes a function of a DataFrame and a number, not 3",
        "",
    ),
    "a column of folders that is not there": (
        lambda p: writer().partitionBy("valeu"),
        SchemaError,
        "partitionBy: column 'valeu' does not exist",
        "did you mean 'value'?",
    ),
    "folders of what has none": (
        lambda p: SINKS["noop"](replace(a_request(), partition_by=("value",))),
        PlanError,
        "noop has no folders",
        "leave it out",
    ),
    "folders of reals": (
        lambda p: SINKS["csv"](replace(a_request(), path=str(p), partition_by=("real",))),
        SchemaError,
        "partitionBy column 'real' is double",
        "make such a column with withColumn",
    ),
    "a column of epochs that is there already": (
        lambda p: SINKS["parquet"](sink_of_keys(p, keyColumns="value", epochColumn="real")),
        SchemaError,
        "the rows have a column 'real' of their own",
        "option('epochColumn', ...)",
    ),
    "keys that are not there": (
        lambda p: SINKS["parquet"](sink_of_keys(p, keyColumns="valeu")),
        SchemaError,
        "writeStream: keyColumns: column 'valeu' does not exist",
        "did you mean 'value'?",
    ),
    "nested keys": (
        lambda p: SINKS["parquet"](sink_of_keys(p, keyColumns="nested")),
        SchemaError,
        "'nested'",
        "",
    ),
    "nested values in CSV": (
        lambda p: SINKS["csv"](replace(a_request(), path=str(p))),
        SchemaError,
        "writeStream.format('csv'): column 'nested' is list",
        "cast it, or write parquet",
    ),
    "bytes in JSON": (
        lambda p: SINKS["json"](replace(a_request(), path=str(p))),
        SchemaError,
        "column 'bytes' is list<item: binary>",
        "cast it, or write parquet",
    ),
    "a file as sink": (
        lambda p: sink_at(p / "rows.parquet"),
        PlanError,
        "rows.parquet is a file",
        "name a folder, or remove it",
    ),
    "rows among checkpoints": (
        lambda p: into(p, p.as_uri()),
        PlanError,
        "is also the checkpointLocation",
        "a folder of its own for checkpoints",
    ),
    "a query that reads its own rows": (
        lambda p: into(p, ""),
        PlanError,
        "is also what the query reads",
        "write into another folder",
    ),
    "a table and a function": (
        lambda p: writer().foreachBatch(print).toTable("t"),
        PlanError,
        "foreachBatch is where the rows go",
        "leave one out",
    ),
    "a table of another kind": (
        lambda p: into_table("t", "console", a_request()),
        PlanError,
        "writeStream.toTable writes tables of parquet, csv, json, not of 'console'",
        "name one of them",
    ),
    "a wait before the start": (
        lambda p: writer().format("noop").awaitTermination(),
        AttributeError,
        "writeStream has no 'awaitTermination'",
        ".start() first",
    ),
    "a step with a typo": (
        lambda p: writer().outputmode("append"),
        AttributeError,
        "writeStream has no 'outputmode'",
        "did you mean 'outputMode'?",
    ),
    "the complete mode without an aggregation": (
        lambda p: group_columns(rate().branches),
        PlanError,
        "outputMode('complete') needs an aggregation by keys as the last step",
        "say outputMode('update')",
    ),
    "the complete mode behind a filter": (
        lambda p: group_columns(rate().groupBy("value").agg(n=("value", "count")).filter(pc.field("n") > 1).branches),
        PlanError,
        "outputMode('complete') needs an aggregation by keys as the last step",
        "say outputMode('update')",
    ),
    "the complete mode without the groups' names": (
        lambda p: group_columns(rate().groupBy("value").agg(n=("value", "count")).select("n").branches),
        PlanError,
        "the rows have no column 'value' any more",
        "keep it in select",
    ),
    "the complete mode of files": (
        lambda p: refuse_sink("parquet", ("k",)),
        PlanError,
        "outputMode('complete') goes with console, delta, memory, and not with parquet",
        "Say outputMode('update')",
    ),
    "the complete mode of one row in a table": (
        lambda p: refuse_sink("delta", ()),
        PlanError,
        "has no columns to merge a Delta table by",
        "group by one",
    ),
    "a mode that there is not": (
        lambda p: writer().outputMode("appended"),
        PlanError,
        "outputMode('appended'): there is no such mode (PySpark's STREAMING_OUTPUT_MODE.INVALID)",
        "say append, update or complete, or leave it out",
    ),
    "a mode that is no text": (
        lambda p: writer().outputMode(None),
        TypeError,
        "writeStream.outputMode takes 'append', 'update' or 'complete'",
        "not NoneType",
    ),
    "an aggregation in append mode": (
        lambda p: counts().filter(pc.field("count") > 1).writeStream.outputMode("Append").start(str(p)),
        PlanError,
        "outputMode('append') does not go with an aggregation",
        "Say outputMode('update')",
    ),
    "an option without a name": (
        lambda p: writer().option(5, "x"),
        TypeError,
        "writeStream: an option has a name, not 5",
        "",
    ),
}


def test_modes_that_go() -> None:
    """PySpark takes them in any case: update for all streams, append for those whose rows do not change."""
    in_mode(counts().branches, output_mode("Update"))
    in_mode(counts().branches, None)
    in_mode(rate().branches, output_mode("APPEND"))


def test_a_query_into_files_that_nobody_can_go_on_with_warns(tmp_path: Path) -> None:
    """Its next run appends all rows again. A query that is only for looking at does not, and noop keeps nothing."""
    folder = tmp_path / "rows"
    request = SinkRequest(None, pa.schema([]), Options("writeStream"), None, str(folder), "q", is_kept=False)
    sink, _ = SINKS["parquet"](request)
    with pytest.warns(PenstockWarning, match=r"query n has no checkpointLocation.* into .*/rows once more"):
        warn_of_rows_again("query n", sink, is_for_looking=False)
    warn_of_rows_again("query n", sink, is_for_looking=True)
    warn_of_rows_again("query n", NoopSink(), is_for_looking=False)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_first_line_says_what_where_and_what_to_do(tmp_path: Path, name: str) -> None:
    """The error is of the type that tells what kind of mistake it is, and its first line is enough to go on."""
    make, kind, what, remedy = MISTAKES[name]
    with pytest.raises(kind) as raised:
        make(tmp_path)
    line = str(raised.value).splitlines()[0]
    assert what in line
    assert remedy in line
    assert len(line) <= LONGEST


@pytest.mark.parametrize("spelling", ["{0}", "{0}/", "{0}//", "file:{0}", "file://{0}/", "{1}"])
def test_a_location_is_the_same_in_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """It tells queries apart: in another spelling a query would take its location from the one that runs already."""
    monkeypatch.chdir(tmp_path)
    assert one_spelling(spelling.format(tmp_path / "checkpoints", "checkpoints")) == str(tmp_path / "checkpoints")


def test_a_query_of_a_cluster_needs_a_location() -> None:
    """Each host would store its parts in a folder of its own, and no recovery would find them."""
    refuse_scattered(is_kept=True, is_local=False)
    refuse_scattered(is_kept=False, is_local=True)
    with pytest.raises(PlanError, match=r"option\('checkpointLocation', \.\.\.\), .* path that all hosts share"):
        refuse_scattered(is_kept=False, is_local=False)


def test_a_folder_whose_name_can_be_foretold_is_this_users(tmp_path: Path) -> None:
    """Nobody else can read it; a link or a file that somebody has put in its place is refused."""
    folder = private_folder(tmp_path / "penstock-query-1")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert private_folder(folder).stat().st_mode & 0o777 == 0o700
    (link := tmp_path / "penstock-query-2").symlink_to(folder)
    (tmp_path / "penstock-query-3").touch()
    for other in (link, tmp_path / "penstock-query-3"):
        with pytest.raises(PlanError, match="is not a folder of this user: remove it"):
            private_folder(other)
