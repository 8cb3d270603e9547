# SPDX-License-Identifier: Apache-2.0
"""The writers of Parquet files: Polars, DuckDB, Arrow in several layouts, we, and where there is a session Spark.

Spark writes as the session says: by the old calendar or the new one, instants of three kinds, in several zones, lists
and decimals in the form of its first versions. What we write the libraries read back at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.api.file_sink import file_schema
from penstock.operators.file_forms import FileForm
from penstock.operators.file_write import WriteFiles
from penstock_torture.tables.rows import texts

_ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kolkata")
_MODES = ("LEGACY", "CORRECTED")


def written_by_others(rows: pa.Table, path: Path, draw: random.Random, spark: Any = None) -> tuple[str, pa.Table]:
    """Write a Parquet file as one of the writers has it; gives the writer's name, and the rows that are in the file.

    Raises ValueError where a library does not read what we wrote.
    """
    name = draw.choice([*_WRITERS, *(("spark", "spark") if spark is not None else ())])
    if name == "polars":  # which makes lists of maps
        rows = rows.select([each.name for each in rows.schema if not pt.is_map(each.type)])
    if name == "spark":
        _spark(rows, path, draw, spark)
    else:
        _WRITERS[name](rows, path)
    return name, rows


def _polars(rows: pa.Table, path: Path) -> None:
    import polars as pl

    found = pl.from_arrow(rows)
    assert isinstance(found, pl.DataFrame)  # noqa: S101 - for the type checker
    found.write_parquet(path)


def _duckdb(rows: pa.Table, path: Path) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.from_arrow(rows).write_parquet(str(path))


def _cast(rows: pa.Table, path: Path, change: Callable[[pa.DataType], pa.DataType]) -> None:
    schema = pa.schema([field.with_type(change(field.type)) for field in rows.schema])
    pq.write_table(rows.cast(schema), path)


def _large(rows: pa.Table, path: Path) -> None:
    _cast(rows, path, lambda kind: pa.large_string() if pt.is_string(kind) else kind)


def _views(rows: pa.Table, path: Path) -> None:
    _cast(rows, path, lambda kind: pa.string_view() if pt.is_string(kind) else kind)


def _dictionaries(rows: pa.Table, path: Path) -> None:
    _cast(rows, path, lambda kind: pa.dictionary(pa.int32(), pa.string()) if pt.is_string(kind) else kind)


def _ours(rows: pa.Table, path: Path) -> None:
    form = FileForm("parquet", file_schema(rows.schema, (), "writeParquet"), "zstd")
    write = WriteFiles(pafs.LocalFileSystem(), str(path.parent), form)
    (status,) = write.apply(iter(rows.to_batches()))
    (path.parent / status.column("file")[0].as_py()).rename(path)
    for library, read in (("polars", _by_polars), ("duckdb", _by_duckdb), ("arrow", pq.read_table)):
        found = read(path)
        common = [each for each in rows.schema.names if each in found.column_names]
        found = found.select(common).cast(rows.select(common).schema)
        if texts(found.to_pylist()) != texts(rows.select(common).to_pylist()):
            raise ValueError(f"{library} reads {found.to_pylist()} of ours in place of {rows.to_pylist()}")


def _by_polars(path: Path) -> pa.Table:
    import polars as pl

    held = [each.name for each in pq.read_schema(path) if not pt.is_map(each.type)]
    return pl.read_parquet(path, columns=held).to_arrow()


def _by_duckdb(path: Path) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return pa.table(connection.read_parquet(str(path)).arrow())


_WRITERS: Mapping[str, Callable[[pa.Table, Path], None]] = {
    "polars": _polars,
    "duckdb": _duckdb,
    "large": _large,
    "views": _views,
    "dictionaries": _dictionaries,
    "ours": _ours,
}


def _spark(rows: pa.Table, path: Path, draw: random.Random, spark: Any) -> None:
    from penstock.spark.types import struct_type

    conf = {
        "spark.sql.session.timeZone": draw.choice(_ZONES),
        "spark.sql.parquet.outputTimestampType": draw.choice(("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS")),
        "spark.sql.parquet.datetimeRebaseModeInWrite": draw.choice(_MODES),
        "spark.sql.parquet.int96RebaseModeInWrite": draw.choice(_MODES),
        "spark.sql.parquet.writeLegacyFormat": draw.choice(("true", "false")),
    }
    folder = path.with_suffix(".spark")
    with _conf(spark, conf):
        spark.createDataFrame(rows, struct_type(rows.schema)).coalesce(1).write.parquet(str(folder))
    (part,) = folder.glob("*.parquet")
    part.rename(path)
    for left in sorted(folder.iterdir()):
        left.unlink()
    folder.rmdir()


@contextmanager
def _conf(spark: Any, conf: Mapping[str, str]) -> Iterator[None]:
    """The session with other settings for a block."""
    kept = {name: spark.conf.get(name) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in kept.items():
            spark.conf.set(name, value)
