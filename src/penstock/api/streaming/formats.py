# SPDX-License-Identifier: Apache-2.0
"""The formats that `readStream` knows by name, each with its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.api.bad_lines import CORRUPT, MODES, BadLines, bad_lines
from penstock.api.csv_lines import CsvForm, CsvLines
from penstock.api.csv_quotes import quoting
from penstock.api.json_lines import JsonLines, refuse_columns
from penstock.api.line_formats import TEXT_SCHEMA, TextLines
from penstock.api.streaming.kafka import kafka_source
from penstock.api.streaming.lakes import delta_source
from penstock.api.streaming.options import Options
from penstock.api.streaming.places import filesystem_of
from penstock.errors import PlanError
from penstock.graph import as_nullable
from penstock.machine.file_choice import file_choice
from penstock.operators.parquet_read import AS_SPARK, FileReading
from penstock.stream.arriving_files import FilesSource
from penstock.stream.file_rows import FileFormat, LineFileFormat, ParquetFileFormat
from penstock.stream.rate import RateSource
from penstock.stream.sources import StreamSource


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """The wish of a caller of `readStream`."""

    path: str | None
    schema: pa.Schema | None
    options: Options
    zone: str = "UTC"
    reading: FileReading = AS_SPARK

    def declared(self, what: str) -> pa.Schema:
        """The schema, all of which may be null as in Spark.

        Raises PlanError where there is none, because files may come later than the query starts.
        """
        if self.schema is None:
            raise PlanError(f"readStream: {what} files need a schema: readStream(spark).schema('id long, ...')")
        return as_nullable(self.schema)

    def refuse_path(self, what: str) -> None:
        """Raise PlanError where a path or schema was given that means nothing."""
        if self.path is not None:
            raise PlanError(f"readStream: {what} makes its rows up, and reads no path: leave the path out")
        if self.schema is not None:
            raise PlanError(f"readStream: {what} has a schema of its own: leave schema() out")


def rate(request: SourceRequest) -> StreamSource:
    """Rows that are made up: columns `timestamp` and `value`."""
    request.refuse_path("rate")
    options = request.options
    options.refuse_others("rate", ("rowsPerSecond", "numPartitions", "numRows"))
    return RateSource(
        options.value("rowsPerSecond", float, 1.0),
        options.value("numPartitions", int, 1),
        options.value("numRows", int, None),
    )


def parquet(request: SourceRequest) -> StreamSource:
    """Parquet files that arrive in a folder."""
    return _files(request, ParquetFileFormat(request.declared("parquet"), request.reading))


def text(request: SourceRequest) -> StreamSource:
    """Lines of text files that arrive in a folder."""
    if request.schema is not None and request.schema != TEXT_SCHEMA:
        raise PlanError("readStream: text files have one column, value string")
    return _files(request, LineFileFormat(TextLines()))


def csv(request: SourceRequest) -> StreamSource:
    """CSV files that arrive in a folder."""
    options = request.options
    given = {name: options.text(name) for name in ("sep", "quote", "escape")}
    signs = quoting(
        "," if given["sep"] is None else given["sep"],
        '"' if given["quote"] is None else given["quote"],
        given["escape"],
        "readStream",
    )
    header, null = options.flag("header", default=False), options.text("nullValue") or ""
    schema, bad = request.declared("csv"), _bad_lines(request)
    form = CsvLines(schema, CsvForm(signs, null, header, request.zone), bad)
    return _files(request, LineFileFormat(form), *given, "header", "nullValue", *_OF_BAD_LINES)


def json(request: SourceRequest) -> StreamSource:
    """Files of JSON objects, one on each line, that arrive in a folder."""
    schema, bad = request.declared("json"), _bad_lines(request)
    refuse_columns(schema, "readStream")
    return _files(request, LineFileFormat(JsonLines(schema, request.zone, bad)), *_OF_BAD_LINES)


_OF_FILES = ("pathGlobFilter", "recursiveFileLookup")
_OF_BAD_LINES = ("mode", "columnNameOfCorruptRecord")


def _bad_lines(request: SourceRequest) -> BadLines:
    mode, column = (request.options.text(name) for name in _OF_BAD_LINES)
    bad = bad_lines(mode or MODES[0], column or CORRUPT, "readStream")
    bad.check(request.declared("line"), "readStream")
    return bad


def _files(request: SourceRequest, form: FileFormat, *known: str) -> StreamSource:
    options = request.options
    options.refuse_others(f"{form.name} files", (*known, *_OF_FILES, "path", "bounded", "numPartitions"))
    path = request.path or options.text("path")
    if not path:
        raise PlanError(f"readStream: {form.name} files arrive in a folder: load(path)")
    filesystem, folder = filesystem_of(path, "readStream")
    if filesystem.get_file_info(folder).type is not pafs.FileType.Directory:
        raise PlanError(f"readStream: {path} is no folder that is there: make it first, files may come later")
    glob, recursive = options.text("pathGlobFilter"), options.flag("recursiveFileLookup", default=False)
    choice = file_choice("readStream", request.zone, glob, recursive)
    return FilesSource(filesystem, folder, form, options.flag("bounded", default=False), choice=choice)


def kafka(request: SourceRequest) -> StreamSource:
    """Messages of Kafka's topics."""
    if request.path is not None or request.schema is not None:
        raise PlanError("readStream: kafka has topics, option('subscribe', ...), and columns of its own: no path")
    return kafka_source(request.options)


def delta(request: SourceRequest) -> StreamSource:
    """The rows of a Delta Lake table, and of its versions as they come."""
    if request.schema is not None:
        raise PlanError("readStream: a Delta table has a schema of its own: leave schema() out")
    return replace(delta_source(request.options, request.path), reading=request.reading)


FORMATS: dict[str, Callable[[SourceRequest], StreamSource]] = {
    "rate": rate,
    "parquet": parquet,
    "text": text,
    "csv": csv,
    "json": json,
    "kafka": kafka,
    "delta": delta,
}
