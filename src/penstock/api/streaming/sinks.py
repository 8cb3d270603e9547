# SPDX-License-Identifier: Apache-2.0
"""The sinks that `writeStream` knows by name, with what the driver does for them.

`memory` and `console` write files into a temporary folder as `parquet` does, and so have its guarantee. The driver
reads them: into a temporary view of the query's name, or to print. They are for looking at a query: on a cluster they
need a temporary folder that all hosts share.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.api.csv_quotes import quoting
from penstock.api.file_sink import CODECS, file_schema, refuse_one_name
from penstock.api.reading import is_case_sensitive
from penstock.api.streaming.kafka import kafka_sink
from penstock.api.streaming.key_columns import KEY_COLUMNS, key_columns
from penstock.api.streaming.lakes import delta_sink, iceberg_sink
from penstock.api.streaming.latest import EPOCH
from penstock.api.streaming.options import QUERY_OPTIONS, Options
from penstock.api.streaming.places import filesystem_of, reader_of_rows
from penstock.api.streaming.query import QueryHooks
from penstock.api.streaming.whole_results import COMPLETE_ROWS, MOST_ROWS, WholeResult
from penstock.errors import PlanError, SchemaError, SettingError
from penstock.machine.locations import here
from penstock.operators.csv_write import CsvSigns, csv_fault, signs_fault
from penstock.operators.json_write import json_fault
from penstock.stream.folder_sink import FolderSink
from penstock.stream.noop import NoopSink
from penstock.stream.sinks import StreamSink

_CONSOLE_ROWS = 20
_OF_EPOCHS = ("epochColumn", KEY_COLUMNS)


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """The wish of a caller of `writeStream`. `query` is an id that stays the same over all runs of the query.

    `is_kept`: a later run may go on from this one. `groups`: the columns that name the rows of a result that is to be
    whole with each checkpoint; None where it is not.
    """

    spark: Any
    schema: pa.Schema
    options: Options
    name: str | None
    path: str | None
    query: str
    is_kept: bool
    partition_by: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None

    def refuse_others(self, what: str, *known: str) -> None:
        """Raise SettingError for an option that is neither the query's nor the sink's, and for a path of no use."""
        self.options.refuse_others(what, (*known, *QUERY_OPTIONS))
        if self.partition_by and "path" not in known:
            raise PlanError(f"writeStream: {what} has no folders, so partitionBy means nothing: leave it out")
        if self.path is not None and "path" not in known:
            raise PlanError(f"writeStream: {what} writes to no path")

    def refuse_partitions(self, what: str) -> None:
        """Raise PlanError where partitionBy was said and means nothing."""
        if self.partition_by:
            raise PlanError(f"writeStream: {what} takes no partitionBy: leave it out, or write files of Parquet")

    @property
    def uid(self) -> str:
        """The part of a file's name that tells this query's files from those of others in one folder."""
        return self.query.replace("-", "")[:12]


Made = tuple[StreamSink, QueryHooks]


def parquet(request: SinkRequest) -> Made:
    """Parquet files in a folder, which readers see when their checkpoint is complete."""
    request.refuse_others("parquet", "path", "compression", *_OF_EPOCHS)
    return _files(request, "parquet", compression=request.options.value("compression", _codec, "snappy"))


def csv(request: SinkRequest) -> Made:
    """Files of CSV in a folder, which PySpark reads with the options that it has anyway."""
    request.refuse_others("csv", "path", "sep", "header", "nullValue", *_OF_EPOCHS)
    options = request.options
    signs = quoting(options.text("sep") or ",", '"', None, "writeStream")
    form = CsvSigns(signs.separator, options.text("nullValue") or "", options.flag("header", default=False))
    if wrong := signs_fault(form):
        raise PlanError(f"writeStream: {wrong}")
    return _files(request, "csv", csv_fault, csv=form)


def json(request: SinkRequest) -> Made:
    """Files of JSON lines in a folder."""
    request.refuse_others("json", "path", *_OF_EPOCHS)
    return _files(request, "json", json_fault)


def _files(request: SinkRequest, form: str, fault: Callable[[pa.Schema], str] = lambda _: "", **options: Any) -> Made:
    path = request.path or request.options.text("path")
    if not path:
        raise PlanError(f"writeStream.format({form!r}) needs a path: start(path)")
    filesystem, folder = filesystem_of(path, "writeStream")
    if filesystem.get_file_info(folder).is_file:
        raise PlanError(f"writeStream: {path} is a file: name a folder, or remove it")
    held = file_schema(request.schema, request.partition_by, "writeStream")
    if form != "csv":
        refuse_one_name(request.schema, "writeStream", case_sensitive=is_case_sensitive(request.spark))
    if wrong := fault(held):
        raise SchemaError(f"writeStream.format({form!r}): {wrong}: cast it, or write parquet")
    made = FolderSink(filesystem, folder, request.schema, request.uid, form, partition_by=request.partition_by)
    keys, column = _epochs(request)
    return replace(made, keys=keys, epoch_column=column, **options), QueryHooks()


def _epochs(request: SinkRequest) -> tuple[tuple[str, ...], str]:
    """The columns by which newer rows replace older ones, and the name of the column of epochs."""
    keys = key_columns(request.options, request.schema)
    column = request.options.text("epochColumn") or (EPOCH if keys else "")
    if column in request.schema.names:
        raise SchemaError(
            f"writeStream: the rows have a column {column!r} of their own: name the column of epochs with"
            " option('epochColumn', ...)"
        )
    return keys, column


def _codec(name: str) -> str:
    """A codec that Parquet files may have here."""
    if name.lower() not in CODECS:
        raise ValueError(f"it is one of {', '.join(CODECS)}")
    return name.lower()


def noop(request: SinkRequest) -> Made:
    """Nothing is kept."""
    request.refuse_others("noop")
    return NoopSink(), QueryHooks()


def memory(request: SinkRequest) -> Made:
    """A temporary view of the query's name, with the rows of complete checkpoints."""
    request.refuse_others("memory", *_of_whole(request))
    if request.name is None:
        raise SettingError("writeStream.format('memory') needs queryName(...): the table gets that name")
    folder, name, spark = _folder(request), request.name, request.spark
    from penstock.spark.types import struct_type

    types = struct_type(request.schema)
    reader = reader_of_rows(spark, request.schema, "memory") if request.groups is None else None

    def show() -> None:
        assert reader is not None  # noqa: S101 - rows that are not whole results lie in files
        reader.parquet(folder).createOrReplaceTempView(name)

    if request.groups is not None:
        whole, sink = _whole(request, folder)

        def show_whole() -> None:
            if (rows := whole.look()) is not None:
                spark.createDataFrame(rows, types).createOrReplaceTempView(name)

        spark.createDataFrame([], types).createOrReplaceTempView(name)
        return sink, QueryHooks(show_whole, failure=lambda: whole.failure)
    show()
    sink = FolderSink(here(), folder, request.schema, request.uid)
    return sink, QueryHooks(show, lambda: None)


def console(request: SinkRequest) -> Made:
    """Prints what each checkpoint adds, on the driver."""
    request.refuse_others("console", "numRows", "truncate", *_of_whole(request))
    rows = request.options.value("numRows", int, _CONSOLE_ROWS)
    folder = _folder(request)
    if request.groups is not None:
        whole, sink = _whole(request, folder)

        def show_whole() -> None:
            if (found := whole.look()) is not None:
                _print(found, rows)

        return sink, QueryHooks(show_whole, failure=lambda: whole.failure)
    shown: set[str] = set()

    def show() -> None:
        fresh = sorted(path for path in Path(folder).glob("part-*") if path.name not in shown)
        if fresh:
            shown.update(path.name for path in fresh)
            table = pa.concat_tables([pq.read_table(path) for path in fresh])
            _print(table, rows)

    sink = FolderSink(here(), folder, request.schema, request.uid)
    return sink, QueryHooks(show)


def _of_whole(request: SinkRequest) -> tuple[str, ...]:
    """The options of a result that is to be whole."""
    return () if request.groups is None else (COMPLETE_ROWS,)


def _whole(request: SinkRequest, folder: str) -> tuple[WholeResult, FolderSink]:
    """A whole result, and the sink whose files it is made of."""
    keys = request.groups or ()
    most = request.options.value(COMPLETE_ROWS, int, MOST_ROWS)
    sink = FolderSink(here(), folder, request.schema, request.uid)
    return WholeResult(folder, request.schema, keys, most), replace(sink, keys=keys, has_epochs=True)


def kafka(request: SinkRequest) -> Made:
    """Messages in Kafka's topics."""
    if request.path is not None:
        raise PlanError("writeStream: kafka writes to a topic, option('topic', ...), and not to a path")
    request.refuse_partitions("kafka")
    return kafka_sink(request.options, request.schema, request.uid), QueryHooks()


def delta(request: SinkRequest) -> Made:
    """A Delta Lake table, with a version for each checkpoint that has rows."""
    by, groups = request.partition_by, request.groups or ()
    sink = delta_sink(request.options, request.path, request.schema, request.uid, by, groups)
    return sink, QueryHooks()


def iceberg(request: SinkRequest) -> Made:
    """An Iceberg table, with a snapshot for each checkpoint that has rows."""
    request.refuse_partitions("iceberg")
    return iceberg_sink(request.options, request.path, request.schema, request.uid), QueryHooks()


def registered_sink(name: str, request: SinkRequest) -> Made:
    """A Python data source that the session knows; raises PlanError where there is none of this name."""
    from penstock.spark.data_source_writer import data_source_sink
    from penstock.spark.data_sources import made_to_write, registered

    cls = registered(request.spark, name)
    if cls is None:
        raise PlanError(
            f"writeStream.format({name!r}): there is no such sink: use one of {', '.join(sorted(SINKS))}, a Python"
            " data source that spark.dataSource.register(...) has made known, or a sink of your own"
        )
    request.refuse_partitions(name)
    queries = {option.lower() for option in QUERY_OPTIONS}
    options = {key: text for key, text in request.options.given().items() if key.lower() not in queries}
    if request.path is not None:
        options["path"] = request.path
    zone = str(request.spark.conf.get("spark.sql.session.timeZone"))
    return data_source_sink(made_to_write(cls, options, request.schema), request.uid, zone), QueryHooks()


def _print(table: pa.Table, rows: int) -> None:
    lines = ["\t".join(table.column_names)]
    lines += ["\t".join(map(str, row.values())) for row in table.slice(0, rows).to_pylist()]
    if table.num_rows > rows:
        lines.append(f"... {table.num_rows - rows} more rows")
    sys.stdout.write("\n".join(["-" * 40, *lines, ""]))
    sys.stdout.flush()


def _folder(request: SinkRequest) -> str:
    """A folder of the query's own, the same in all of its runs; it goes with the driver, unless one may follow."""
    folder = private_folder(Path(tempfile.gettempdir()) / f"penstock-query-{request.query}")
    if not request.is_kept:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


def private_folder(folder: Path) -> Path:
    """A folder that only this user can use; raises PlanError for one in its place that another user has made.

    Its name can be foretold, and every user who may write into the temporary folder could have put it there.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PlanError(
            f"writeStream: {folder} is not a folder of this user: remove it, or set TMPDIR to a folder of your own"
        )
    folder.chmod(0o700)
    return folder


SINKS: dict[str, Callable[[SinkRequest], Made]] = {
    "parquet": parquet,
    "csv": csv,
    "json": json,
    "noop": noop,
    "memory": memory,
    "console": console,
    "kafka": kafka,
    "delta": delta,
    "iceberg": iceberg,
}
