# SPDX-License-Identifier: Apache-2.0
"""The functions of `penstock` that read files and tables: where streams begin that need no JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.api.bad_lines import BadLineMode, bad_lines
from penstock.api.csv_lines import CsvForm, CsvLines
from penstock.api.csv_quotes import quoting
from penstock.api.delta import delta_source
from penstock.api.expressions import is_spark_column
from penstock.api.iceberg import iceberg_source
from penstock.api.iceberg_scan import IcebergSource
from penstock.api.json_lines import JsonLines, refuse_columns
from penstock.api.known_arguments import suggests_arguments
from penstock.api.line_files import LinesSource, first_lines, lines_source, pieces_of, values_of_folders
from penstock.api.line_formats import Inference, TextLines, csv_schema, json_schema
from penstock.api.lineage import SourceStep
from penstock.api.parquet import ParquetSource, parquet_source
from penstock.api.partition_columns import PartitionTyping, declared_values
from penstock.api.paths import ListedFile, PathLike
from penstock.api.reading import is_case_sensitive
from penstock.api.schemas import partitions_argument, schema_argument, session_argument
from penstock.api.stream import Stream
from penstock.api.streaming.kafka import kafka_batch
from penstock.api.streaming.options import Options
from penstock.errors import PlanError
from penstock.graph import as_nullable
from penstock.machine.file_choice import FileChoice, file_choice
from penstock.operators.expressions.calendar import arrow_zone

if TYPE_CHECKING:
    from penstock.spark.user_types import Expression, Schema, SparkSession

Filters: TypeAlias = Sequence[tuple[Any, ...]] | Sequence[Sequence[tuple[Any, ...]]]
"""Conditions as `pyarrow.parquet` takes them: tuples that all hold, or lists of such tuples, of which one holds."""
_JSON_FILES = 32
"""So many small files are looked at for columns: in each, other fields may be left out."""


@suggests_arguments
def readParquet(
    spark: SparkSession,
    path: PathLike | Sequence[PathLike],
    columns: Sequence[str] | None = None,
    filter: Expression | Filters | None = None,  # noqa: A002 - the name pyarrow.parquet users know
    *,
    pathGlobFilter: str | None = None,
    recursiveFileLookup: bool = False,
    modifiedAfter: str | None = None,
    modifiedBefore: str | None = None,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of Parquet files' rows, read by the tasks without the JVM.

    `filter` is what `Stream.filter` takes: a SQL string, a Column, or a `pyarrow.compute` expression; also a list of
    tuples as `pyarrow.parquet` takes. Row groups that cannot match are not read, nor are columns that nothing needs.
    `numPartitions` tasks read them; left out, as many as there are slots and row groups. Names of folders with
    values, as in `year=2026/`, are columns, typed as Spark infers them; `recursiveFileLookup` reads such folders
    without. Of the files in folders `pathGlobFilter`, `modifiedAfter` and `modifiedBefore` choose some.
    """
    session_argument(spark, "readParquet")
    choice = _choice(spark, "readParquet", pathGlobFilter, recursiveFileLookup, modifiedAfter, modifiedBefore)
    is_spark = isinstance(filter, str) or is_spark_column(filter)
    source = parquet_source(path, None if is_spark else columns, None if is_spark else filter, spark, choice)
    rows = _files(spark, source, "readParquet", numPartitions)
    return _kept(rows, filter, columns) if is_spark else rows


@suggests_arguments
def readDelta(
    spark: SparkSession,
    path: PathLike,
    columns: Sequence[str] | None = None,
    filter: Expression | Filters | None = None,  # noqa: A002 - as for readParquet
    *,
    version: int | None = None,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of a Delta Lake table's rows, by default of its newest version; the other arguments as `readParquet`.

    It needs the extra `delta`. One task reads a file, however large. Tables with deletion vectors are refused.
    """
    session_argument(spark, "readDelta")
    if isinstance(filter, str) or is_spark_column(filter):
        return _kept(readDelta(spark, path, version=version, numPartitions=numPartitions), filter, columns)
    return _files(spark, delta_source(path, version, columns, filter, spark), "readDelta", numPartitions)


@suggests_arguments
def readIceberg(
    spark: SparkSession,
    table: Any,
    columns: Sequence[str] | None = None,
    filter: Expression | Filters | None = None,  # noqa: A002 - as for readParquet
    *,
    snapshot: int | None = None,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of an Iceberg table's rows, by default of its current snapshot; the other arguments as `readParquet`.

    `table` is one of pyiceberg's, `load_catalog(...).load_table("db.name")`. It needs the extra `iceberg`. One task
    reads a file, however large. Snapshots with deletes by values are refused.
    """
    session_argument(spark, "readIceberg")
    if isinstance(filter, str) or is_spark_column(filter):
        return _kept(readIceberg(spark, table, snapshot=snapshot, numPartitions=numPartitions), filter, columns)
    return _files(spark, iceberg_source(table, snapshot, columns, filter), "readIceberg", numPartitions)


@suggests_arguments
def readKafka(spark: SparkSession, options: Mapping[str, Any], *, numPartitions: int | None = None) -> Stream:
    """The messages of Kafka's topics that are there now, as `spark.read.format("kafka")` reads them, without the JVM.

    `options` are Spark's: `kafka.bootstrap.servers`, `subscribe` or `subscribePattern`, `startingOffsets` (left out,
    `earliest`), `endingOffsets` (`latest`), and times in their place. Both ends are asked for here, so each action
    reads the same. A partition is read by one task. It needs the extra `kafka`.
    """
    session_argument(spark, "readKafka")
    given = Options("readKafka")
    for name, value in options.items():
        given.set(name, value)
    source = kafka_batch(given)
    partitions = partitions_argument(numPartitions, "readKafka")
    step = SourceStep(source.name, source.schema, source, limit=max(1, len(source.ends or ())), partitions=partitions)
    return Stream((step,), spark)


@suggests_arguments
def readPersisted(spark: SparkSession, name: str, service: str = "external") -> Stream:
    """A stream of the rows that an application of this user has persisted under a name.

    They stay until no application has read them for the lease of the service. Raises PlanError where it has none.
    """
    from penstock.spark.datasets import HeldResult
    from penstock.spark.runtime import SparkRuntime

    session_argument(spark, "readPersisted")
    runtime = SparkRuntime.of(spark)
    found = runtime.find_result(name, service)
    if found is None:
        raise PlanError(
            f"readPersisted: nothing is kept under the name {name!r} for this user at the service {service!r}:"
            f" an application makes it by persist(name={name!r}, service={service!r}) and an action, and its lease"
            " may have ended"
        )
    schema = pa.ipc.read_schema(pa.py_buffer(found.schema))
    held = HeldResult(found.name, found.partitions, 0, 0, 0.0)
    source = runtime.persisted_source(name, held, schema, runtime.settings())
    return Stream((SourceStep(f"persisted {name}", schema, source, limit=max(1, len(held.present))),), spark)


def _choice(
    spark: Any, verb: str, glob: str | None, recursive: bool, after: str | None, before: str | None
) -> FileChoice:
    zone = arrow_zone(PartitionTyping.of(spark).timezone)
    return file_choice(verb, zone, glob, recursive, after, before)


def _kept(rows: Stream, condition: Any, columns: Sequence[str] | None) -> Stream:
    """The rows for which a SQL string or a Column holds, and of these the columns; the condition may use others."""
    kept = rows.filter(condition)
    return kept if columns is None else kept.select(*columns)


def _files(spark: Any, source: ParquetSource | IcebergSource, verb: str, numPartitions: int | None) -> Stream:
    partitions = partitions_argument(numPartitions, verb)
    limit, size = max(1, len(source.parts)), sum(part.bytes for part in source.parts)
    step = SourceStep(source.name, source.schema, source, limit=limit, partitions=partitions, bytes=size)
    return Stream((step,), spark)


@suggests_arguments
def readText(
    spark: SparkSession,
    path: PathLike | Sequence[PathLike],
    *,
    pathGlobFilter: str | None = None,
    recursiveFileLookup: bool = False,
    modifiedAfter: str | None = None,
    modifiedBefore: str | None = None,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of text files' lines, in column `value`, read by the tasks without the JVM.

    Several tasks read a large file, cut at line ends; one task reads a compressed one. The options that choose files
    are those of `readParquet`.
    """
    session_argument(spark, "readText")
    choice = _choice(spark, "readText", pathGlobFilter, recursiveFileLookup, modifiedAfter, modifiedBefore)
    filesystem, files = lines_source(path, "readText", choice)
    folders = values_of_folders(files, PartitionTyping.of(spark), "readText", choice)
    source = LinesSource(filesystem, files, pieces_of(files), TextLines(), folders, is_case_sensitive(spark))
    return _lines(spark, source, "readText", numPartitions)


@suggests_arguments
def readCsv(
    spark: SparkSession,
    path: PathLike | Sequence[PathLike],
    schema: Schema | None = None,
    *,
    header: bool = False,
    sep: str = ",",
    nullValue: str = "",
    inferSchema: bool = False,
    quote: str = '"',
    escape: str | None = None,
    mode: BadLineMode = "PERMISSIVE",
    columnNameOfCorruptRecord: str = "_corrupt_record",
    pathGlobFilter: str | None = None,
    recursiveFileLookup: bool = False,
    modifiedAfter: str | None = None,
    modifiedBefore: str | None = None,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of CSV files' rows, read by the tasks without the JVM.

    As in Spark, columns are strings unless there is a `schema` (DDL, StructType or Arrow) or `inferSchema`, which
    looks at about the first megabyte; whole numbers are longs then. With `header` the first line of each file has
    names. A quote in a quoted field has an `escape` ahead of it; left out, that is a backslash or a second quote. A
    field that equals `nullValue` is null. A time without a zone is one of the session's. `mode` says what becomes of
    lines that do not fit, as in Spark. As in Spark, all columns may be null, whatever the schema says. The options
    that choose files are those of `readParquet`.
    """
    session_argument(spark, "readCsv")
    signs, bad = quoting(sep, quote, escape, "readCsv"), bad_lines(mode, columnNameOfCorruptRecord, "readCsv")
    choice = _choice(spark, "readCsv", pathGlobFilter, recursiveFileLookup, modifiedAfter, modifiedBefore)
    filesystem, files = lines_source(path, "readCsv", choice)
    given = None if schema is None else as_nullable(schema_argument(schema, "readCsv"))
    folders, given = _with_folders(spark, files, given, "readCsv", choice)
    typing = PartitionTyping.of(spark)
    form = CsvForm(signs, nullValue, header, arrow_zone(typing.timezone))
    lines = first_lines(filesystem, files)
    if given is None:
        found = csv_schema(lines, None, form, Inference(typing.with_zone) if inferSchema else None)
        bad = replace(bad, column=None, found=frozenset(found.names))
    else:
        bad.check(given, "readCsv")
        csv_schema(lines, bad.data(given), form, None)
        found = given
    source = LinesSource(
        filesystem, files, pieces_of(files), CsvLines(found, form, bad), folders, is_case_sensitive(spark)
    )
    return _lines(spark, source, "readCsv", numPartitions)


@suggests_arguments
def readJson(
    spark: SparkSession,
    path: PathLike | Sequence[PathLike],
    schema: Schema | None = None,
    *,
    mode: BadLineMode = "PERMISSIVE",
    columnNameOfCorruptRecord: str = "_corrupt_record",
    pathGlobFilter: str | None = None,
    recursiveFileLookup: bool = False,
    modifiedAfter: str | None = None,
    modifiedBefore: str | None = None,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of JSON objects, one on each line, read by the tasks without the JVM.

    Without a `schema` the columns are those of about the first megabyte, of several files where they are small. A
    time without a zone is one of the session's. `mode` says what becomes of lines that do not fit, as in Spark. As in
    Spark, all columns may be null, whatever the schema says, also inside others. The options that
    choose files are those of `readParquet`.
    """
    session_argument(spark, "readJson")
    bad = bad_lines(mode, columnNameOfCorruptRecord, "readJson")
    choice = _choice(spark, "readJson", pathGlobFilter, recursiveFileLookup, modifiedAfter, modifiedBefore)
    filesystem, files = lines_source(path, "readJson", choice)
    typing = PartitionTyping.of(spark)
    given = None if schema is None else as_nullable(schema_argument(schema, "readJson"))
    folders, given = _with_folders(spark, files, given, "readJson", choice)
    if given is None:
        found = json_schema(first_lines(filesystem, files, _JSON_FILES), Inference(typing.with_zone))
        bad = replace(bad, column=None, found=frozenset(found.names))
    else:
        found = given
        bad.check(found, "readJson")
        refuse_columns(found, "readJson")
    form = JsonLines(found, arrow_zone(typing.timezone), bad)
    source = LinesSource(filesystem, files, pieces_of(files), form, folders, is_case_sensitive(spark))
    return _lines(spark, source, "readJson", numPartitions)


def _with_folders(
    spark: Any, files: Sequence[ListedFile], given: pa.Schema | None, verb: str, choice: FileChoice
) -> tuple[pa.RecordBatch | None, pa.Schema | None]:
    """What the names of folders hold, and the columns of a given schema that lines have then."""
    typing = PartitionTyping.of(spark)
    folders = values_of_folders(files, typing, verb, choice)
    if folders is None or given is None:
        return folders, given
    texts = values_of_folders(files, replace(typing, infer=False), verb, choice)
    return declared_values(folders, texts, given, verb, is_case_sensitive=is_case_sensitive(spark))


def _lines(spark: Any, source: LinesSource, verb: str, numPartitions: int | None) -> Stream:
    partitions = partitions_argument(numPartitions, verb)
    limit, size = max(1, len(source.pieces)), sum(file.size for file in source.files)
    step = SourceStep(source.name, source.schema, source, limit=limit, partitions=partitions, bytes=size)
    return Stream((step,), spark)
