# SPDX-License-Identifier: Apache-2.0
"""The functions of `penstock` that read files and tables: where streams begin that need no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.api.delta import delta_source
from penstock.api.expressions import is_spark_column
from penstock.api.iceberg import iceberg_source
from penstock.api.line_files import LinesSource, first_lines, lines_source, pieces_of
from penstock.api.line_formats import CsvLines, Inference, JsonLines, TextLines, csv_schema, json_schema
from penstock.api.lineage import SourceStep
from penstock.api.parquet import Filter, ParquetSource, PathLike, parquet_source
from penstock.api.partition_columns import PartitionTyping
from penstock.api.schemas import partitions_argument, schema_argument, session_argument
from penstock.api.stream import Stream
from penstock.shuffle.errors import SettingError
from penstock.task.expressions.calendar import arrow_zone

_JSON_FILES = 32
"""So many small files are looked at for columns: in each, other fields may be left out."""


def readParquet(
    spark: Any,
    path: PathLike | Sequence[PathLike],
    columns: Sequence[str] | None = None,
    filter: Filter = None,  # noqa: A002 - the name pyarrow.parquet users know
    *,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of Parquet files' rows, read by the tasks without the JVM.

    `filter` is what `Stream.filter` takes: a SQL string, a Column, or a `pyarrow.compute` expression; also a list of
    tuples as `pyarrow.parquet` takes. Row groups that cannot match are not read, nor are columns that nothing needs.
    `numPartitions` tasks read them; left out, as many as there are slots and row groups. What folder names hold, as
    in `year=2026/`, are columns, typed as Spark infers them.
    """
    session_argument(spark, "readParquet")
    if isinstance(filter, str) or is_spark_column(filter):
        return _kept(readParquet(spark, path, numPartitions=numPartitions), filter, columns)
    source = parquet_source(path, columns, filter, PartitionTyping.of(spark))
    return _files(spark, source, "readParquet", numPartitions)


def readDelta(
    spark: Any,
    path: PathLike,
    columns: Sequence[str] | None = None,
    filter: Filter = None,  # noqa: A002 - as for readParquet
    *,
    version: int | None = None,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of a Delta Lake table's rows, by default of its newest version; the other arguments as `readParquet`.

    It needs `penstock[delta]`; limits are in `penstock.api.delta`.
    """
    session_argument(spark, "readDelta")
    if isinstance(filter, str) or is_spark_column(filter):
        return _kept(readDelta(spark, path, version=version, numPartitions=numPartitions), filter, columns)
    return _files(spark, delta_source(path, version, columns, filter), "readDelta", numPartitions)


def readIceberg(
    spark: Any,
    table: Any,
    columns: Sequence[str] | None = None,
    filter: Filter = None,  # noqa: A002 - as for readParquet
    *,
    snapshot: int | None = None,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of an Iceberg table's rows, by default of its current snapshot; the other arguments as `readParquet`.

    `table` is one of pyiceberg's, `load_catalog(...).load_table("db.name")`. It needs `penstock[iceberg]`; limits are
    in `penstock.api.iceberg`.
    """
    session_argument(spark, "readIceberg")
    if isinstance(filter, str) or is_spark_column(filter):
        return _kept(readIceberg(spark, table, snapshot=snapshot, numPartitions=numPartitions), filter, columns)
    return _files(spark, iceberg_source(table, snapshot, columns, filter), "readIceberg", numPartitions)


def _kept(rows: Stream, condition: Any, columns: Sequence[str] | None) -> Stream:
    """The rows for which a SQL string or a Column holds, and of these the columns; the condition may use others."""
    kept = rows.filter(condition)
    return kept if columns is None else kept.select(*columns)


def _files(spark: Any, source: ParquetSource, verb: str, numPartitions: int | None) -> Stream:
    partitions = partitions_argument(numPartitions, verb)
    groups = source.files.row_groups
    limit, size = max(1, len(groups)), sum(group.bytes for group in groups)
    step = SourceStep(source.name, source.schema, source, limit=limit, partitions=partitions, bytes=size)
    return Stream((step,), spark)


def readText(spark: Any, path: PathLike | Sequence[PathLike], *, numPartitions: int | None = None) -> Stream:
    """A stream of text files' lines, in column `value`, read by the tasks without the JVM.

    A large file is read by several tasks; see `penstock.api.line_files` for its limits.
    """
    session_argument(spark, "readText")
    filesystem, files = lines_source(path, "readText")
    return _lines(spark, LinesSource(filesystem, files, pieces_of(files), TextLines()), "readText", numPartitions)


def readCsv(
    spark: Any,
    path: PathLike | Sequence[PathLike],
    schema: Any = None,
    *,
    header: bool = False,
    sep: str = ",",
    nullValue: str = "",
    inferSchema: bool = False,
    numPartitions: int | None = None,
) -> Stream:
    """A stream of CSV files' rows, read by the tasks without the JVM.

    As in Spark, columns are strings unless there is a `schema` (DDL, StructType or Arrow) or `inferSchema`, which
    looks at about the first megabyte; whole numbers are longs then. With `header` the first line of each file has
    names. A quote in a quoted field is doubled, or escaped by a backslash as Spark writes it. An unquoted `nullValue`
    is null. A time without a zone is one of the session's. What does not fit its type fails the job.
    """
    session_argument(spark, "readCsv")
    filesystem, files = lines_source(path, "readCsv")
    if not (isinstance(sep, str) and len(sep) == 1):
        raise SettingError(f"readCsv: sep must be one character, not {sep!r}")
    given = None if schema is None else schema_argument(schema, "readCsv")
    typing = PartitionTyping.of(spark)
    form = CsvLines(pa.schema([]), sep, header, nullValue)
    types = Inference(typing.with_zone) if inferSchema else None
    found = csv_schema(first_lines(filesystem, files), given, form, types)
    form = CsvLines(found, sep, header, nullValue, arrow_zone(typing.timezone))
    return _lines(spark, LinesSource(filesystem, files, pieces_of(files), form), "readCsv", numPartitions)


def readJson(
    spark: Any, path: PathLike | Sequence[PathLike], schema: Any = None, *, numPartitions: int | None = None
) -> Stream:
    """A stream of JSON objects, one on each line, read by the tasks without the JVM.

    Without a `schema` the columns are those of about the first megabyte, of several files where they are small. A
    time without a zone is one of the session's. What does not fit its type fails the job.
    """
    session_argument(spark, "readJson")
    filesystem, files = lines_source(path, "readJson")
    typing = PartitionTyping.of(spark)
    if schema is None:
        found = json_schema(first_lines(filesystem, files, _JSON_FILES), Inference(typing.with_zone))
    else:
        found = schema_argument(schema, "readJson")
    form = JsonLines(found, arrow_zone(typing.timezone))
    source = LinesSource(filesystem, files, pieces_of(files), form)
    return _lines(spark, source, "readJson", numPartitions)


def _lines(spark: Any, source: LinesSource, verb: str, numPartitions: int | None) -> Stream:
    partitions = partitions_argument(numPartitions, verb)
    limit, size = max(1, len(source.pieces)), sum(file.size for file in source.files)
    step = SourceStep(source.name, source.format.schema, source, limit=limit, partitions=partitions, bytes=size)
    return Stream((step,), spark)
