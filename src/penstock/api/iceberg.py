# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables by the library `pyiceberg`: it knows the catalog, the snapshots and what a file's columns mean.

To Iceberg a column is a number; its name, place and type may change. Reading takes the library's scan tasks, a data
file each (`iceberg_scan`). Writing puts new files, whose columns have the table's numbers, into a folder of its own
below the table's location, and the library names them in one commit, with `overwrite` in the one that drops the old
files: all of them are in the table then, or none. A job that fails removes its folder, unless a snapshot may name
files of it: a commit can be made and still raise, and one whose answer got lost can come later.

Limits: one task reads a file, however large. Snapshots with deletes by values, which the library does not read, are
refused, and so is writing to a partitioned table.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from penstock.api.arrow_filters import Filter, filter_expression
from penstock.api.file_sink import FilesWritten, refuse_own_types
from penstock.api.iceberg_scan import IcebergScan, IcebergSource
from penstock.api.parquet import chosen_columns
from penstock.api.paths import stored_at
from penstock.api.writing import WritableStream, promised, require_writer, write_files
from penstock.errors import SchemaError, SettingError
from penstock.graph import as_nullable, fields_of, plain_schema, with_fields
from penstock.operators.file_forms import FileForm
from penstock.operators.file_write import WriteFiles

_NUMBER = b"PARQUET:field_id"
"""Arrow's name of a column's number, in the metadata of fields."""


def iceberg_source(table: Any, snapshot: int | None, columns: Sequence[str] | None, where: Filter) -> IcebergSource:
    """The source of a table's snapshot, by default the current one; its columns are those of that snapshot."""
    _check_table(table, "readIceberg")
    scan = table.scan(snapshot_id=snapshot)
    try:
        tasks = tuple(scan.plan_files())
    except (ValueError, NotImplementedError) as error:
        raise SettingError(
            f"readIceberg: {_name(table)} is not read: {error}: look at the snapshot; rewrite data files that have"
            " deletes by values, or read it with Spark"
        ) from error
    whole = plain_rows(scan.projection())
    chosen = chosen_columns(whole, columns, _name(table), "readIceberg")
    without_history: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
    # The library finds a filter's columns in the current schema, also where a snapshot has another.
    own = {"current_schema_id": scan.projection().schema_id}
    metadata = table.metadata.model_copy(update={**without_history, **own})
    known = IcebergScan(_name(table), metadata, table.io, scan.projection(), tasks)
    return IcebergSource(known, whole, chosen, None if where is None else filter_expression(where, whole))


def plain_rows(columns: Any) -> pa.Schema:
    """The columns that a stream has of the library's own schema."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return as_nullable(plain_schema(schema_to_pyarrow(columns, include_field_ids=False)))


def write_iceberg(stream: WritableStream, table: Any, overwrite: bool) -> FilesWritten:
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
    write = WriteFiles(filesystem, own, FileForm("parquet", numbered(stream.schema, table), "zstd"))
    known, is_sent = {each.snapshot_id for each in table.snapshots()}, False
    try:
        files = write_files(stream, write, lambda: filesystem.create_dir(own, recursive=True))
        scheme = table.location().removesuffix(root)
        commit = table.transaction()
        if overwrite:
            commit.delete("true")
        if files:
            commit.add_files([f"{scheme}{own}/{file.name}" for file in files])
        is_sent = True
        commit.commit_transaction()
    except BaseException as error:
        if is_sent and not _is_unnamed(table, own, known, error):
            error.add_note(f"writeIceberg: the files in {own} stay: a snapshot of {_name(table)} may name them")
        else:
            with suppress(OSError):
                filesystem.delete_dir(own)
        raise
    size, rows = sum(file.bytes for file in files), sum(file.rows for file in files)
    return FilesWritten(_name(table), len(files), rows, size, time.monotonic() - began)


def _is_unnamed(table: Any, own: str, known: set[int], error: BaseException) -> bool:
    """Tell whether no snapshot but the known ones names files of a folder, and none will."""
    if type(error).__name__ not in ("CommitFailedException", "ValidationException"):
        return False
    try:
        return not any(
            f"{own}/" in entry.data_file.file_path
            for snapshot in table.refresh().snapshots()
            if snapshot.snapshot_id not in known
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id not in known
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        )
    except Exception:  # noqa: BLE001 - whatever the catalog and its client raise, nothing is known then
        return False


def numbered(schema: pa.Schema, table: Any) -> pa.Schema:
    """The columns of rows that fit a table, with the table's numbers, at any depth."""
    return pa.schema(
        [_numbered(mine, theirs) for mine, theirs in zip(schema, table.schema().as_arrow(), strict=True)]
    )


def _numbered(mine: pa.Field, theirs: pa.Field) -> pa.Field:
    pairs = zip(fields_of(mine.type), fields_of(theirs.type), strict=True)
    kind = with_fields(mine.type, [_numbered(one, other) for one, other in pairs])
    number = (theirs.metadata or {}).get(_NUMBER)
    return mine.with_type(kind).with_metadata({} if number is None else {_NUMBER: number})


def check_columns(schema: pa.Schema, table: Any, verb: str) -> None:
    """Raise SchemaError where rows of this schema do not fit a table."""
    refuse_own_types(schema, verb, "Iceberg")
    wanted, given = (
        [(each.name, each.type) for each in as_nullable(plain_schema(columns))]
        for columns in (plain_rows(table.schema()), schema)
    )
    if wanted != given:
        shown = [", ".join(f"{name} {kind}" for name, kind in each) for each in (wanted, given)]
        raise SchemaError(
            f"{verb}: the columns of {_name(table)} are {shown[0]}, those of the stream {shown[1]}: bring them"
            " to the same names, order and types with select"
        )


def _check_table(table: Any, verb: str) -> None:
    if not (hasattr(table, "scan") and hasattr(table, "transaction") and hasattr(table, "location")):
        raise TypeError(
            f"{verb} takes a table of pyiceberg, not {type(table).__name__}: load_catalog(...).load_table('db.name')"
        )


def _name(table: Any) -> str:
    return ".".join(table.name())
