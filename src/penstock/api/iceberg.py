# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables by the library `pyiceberg`: it knows the catalog and the snapshots, our tasks the files.

Reading takes the data files of one snapshot and reads them as Parquet. Writing puts new files into a folder of its
own below the table's location, and the library names them in one commit, with `overwrite` in the one that drops the
old files: all of them are in the table then, or none. A job that fails removes its folder.

Limits: snapshots with deletes that readers must apply are refused, and so are files of another schema than the first
one's, and writing to a partitioned table.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.parquet import Filter, ParquetFiles, ParquetSource, parquet_files, source_of
from penstock.api.parquet_sink import ParquetWritten
from penstock.api.paths import stored_at
from penstock.api.writing import WritableStream, promised, require_writer, write_files
from penstock.errors import SchemaError, SettingError
from penstock.graph import as_nullable
from penstock.operators.parquet_write import WriteParquet


def iceberg_source(
    table: Any, snapshot: int | None, columns: Sequence[str] | None, where: Filter, session: Any
) -> ParquetSource:
    """The source of a table's snapshot, by default the current one."""
    _check_table(table, "readIceberg")
    tasks = list(table.scan(snapshot_id=snapshot).plan_files())
    if any(task.delete_files for task in tasks):
        raise SettingError(
            f"readIceberg: {_name(table)} has deletes that readers must apply: rewrite its data files, or read it"
            " with Spark"
        )
    uris = [task.file.file_path for task in tasks]
    filesystem, _ = stored_at(uris[0] if uris else table.location())
    if not uris:
        schema = as_nullable(pa.schema([_plain(field) for field in table.schema().as_arrow()]))
        return source_of(ParquetFiles(filesystem, (), schema, ()), columns, where, _name(table))
    files = parquet_files(filesystem, tuple(stored_at(uri)[1] for uri in uris), None, session)
    known = [field.name for field in table.schema().fields]
    if snapshot is None and files.schema.names != known:
        raise SchemaError(
            f"readIceberg: the files of {_name(table)} have the columns {', '.join(files.schema.names)}, and the"
            f" table has {', '.join(known)}: rewrite its data files, or read it with Spark"
        )
    return source_of(files, columns, where, _name(table))


def write_iceberg(stream: WritableStream, table: Any, overwrite: bool) -> ParquetWritten:
    """See `Stream.writeIceberg`."""
    began = time.monotonic()
    require_writer(stream, "writeIceberg")
    _check_table(table, "writeIceberg")
    if table.spec().fields:
        raise SettingError(f"writeIceberg: {_name(table)} is partitioned: write it with stream.toDF().writeTo")
    check_columns(stream.schema, table, "writeIceberg")
    stream = promised(stream, table.schema().as_arrow(), _name(table))
    filesystem, root = stored_at(table.location())
    own = f"{root}/data/penstock-{secrets.token_hex(6)}"
    write = WriteParquet(filesystem, own, stream.schema, "zstd")
    try:
        files = write_files(stream, write, lambda: filesystem.create_dir(own, recursive=True))
        scheme = table.location().removesuffix(root)
        with table.transaction() as commit:
            if overwrite:
                commit.delete("true")
            if files:
                commit.add_files([f"{scheme}{own}/{file.name}" for file in files])
    except BaseException:
        filesystem.delete_dir(own)
        raise
    size, rows = sum(file.bytes for file in files), sum(file.rows for file in files)
    return ParquetWritten(_name(table), len(files), rows, size, time.monotonic() - began)


def check_columns(schema: pa.Schema, table: Any, verb: str) -> None:
    """Raise SchemaError where rows of this schema do not fit a table."""
    wanted = [(field.name, field.type) for field in as_nullable(pa.schema(map(_plain, table.schema().as_arrow())))]
    given = [(field.name, field.type) for field in as_nullable(schema)]
    if wanted != given:
        shown = [", ".join(f"{name} {kind}" for name, kind in each) for each in (wanted, given)]
        raise SchemaError(
            f"{verb}: the columns of {_name(table)} are {shown[0]}, those of the stream {shown[1]}: bring them"
            " to the same names, order and types with select"
        )


def _plain(field: pa.Field) -> pa.Field:
    """A field without the library's numbers, and with the types of texts and lists that streams have."""
    return pa.field(field.name, _plain_type(field.type), field.nullable)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([_plain(field) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(_plain(kind.value_field))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _check_table(table: Any, verb: str) -> None:
    if not (hasattr(table, "scan") and hasattr(table, "transaction") and hasattr(table, "location")):
        raise TypeError(
            f"{verb} takes a table of pyiceberg, not {type(table).__name__}: load_catalog(...).load_table('db.name')"
        )


def _name(table: Any) -> str:
    return ".".join(table.name())
