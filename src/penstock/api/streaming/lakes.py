# SPDX-License-Identifier: Apache-2.0
"""`format("delta")` and `format("iceberg")` of queries: tables get one commit for each checkpoint that has rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.api.file_sink import file_schema, refuse_own_types
from penstock.api.iceberg import check_columns, numbered
from penstock.api.paths import stored_at
from penstock.api.streaming.key_columns import KEY_COLUMNS, key_columns
from penstock.api.streaming.options import QUERY_OPTIONS, Options
from penstock.api.streaming.places import one_spelling
from penstock.errors import PlanError, SchemaError
from penstock.graph import as_nullable
from penstock.stream.commit_sink import CommitSink
from penstock.stream.delta_log import column_mapping, refuse_table, stream_schema
from penstock.stream.delta_merge import refuse_keys
from penstock.stream.delta_sink import DeltaCommitter, delta_library, narrowed_column, rules
from penstock.stream.delta_source import DeltaSource
from penstock.stream.iceberg_sink import IcebergCommitter
from penstock.stream.table_files import WriteTableFiles

_CATALOG = "catalog."


def delta_source(options: Options, path: str | None) -> DeltaSource:
    """A Delta table that is there."""
    options.refuse_others("delta", ("path", "startingVersion", "skipChangeCommits"))
    path = path or options.text("path")
    if not path:
        raise PlanError("readStream.format('delta') needs a path: load(path)")
    library = delta_library()
    uri = one_spelling(path)
    if not library.DeltaTable.is_deltatable(uri):
        raise PlanError(f"readStream: {uri} is no Delta table: make it first, its rows may come later")
    table = library.DeltaTable(uri)
    refuse_table(table, uri)
    start = options.text("startingVersion")
    first = table.version() + 1 if start == "latest" else options.value("startingVersion", int, None)
    filesystem, root = stored_at(table.table_uri)
    schema = stream_schema(table.schema())
    return DeltaSource(uri, filesystem, root, schema, first, options.flag("skipChangeCommits", default=False))


def delta_sink(
    options: Options,
    path: str | None,
    schema: pa.Schema,
    uid: str,
    partition_by: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
) -> CommitSink:
    """A Delta table, made if it is not there; `uid` is the query's. `groups`: its keys if no others are named."""
    options.refuse_others("delta", ("path", KEY_COLUMNS, *QUERY_OPTIONS))
    path = path or options.text("path")
    if not path:
        raise PlanError("writeStream.format('delta') needs a path: start(path)")
    keys = key_columns(options, schema) or groups
    if groups and set(keys) != set(groups):
        raise PlanError(
            f"writeStream: keyColumns are {', '.join(keys)}, and the groups of outputMode('complete') are"
            f" {', '.join(groups)}: leave keyColumns out, or say outputMode('update')"
        )
    refuse_keys(schema, keys)
    library = delta_library()
    uri = one_spelling(path)
    refuse_own_types(schema, "writeStream", "Delta Lake's library")
    if narrowed := narrowed_column(schema):
        raise SchemaError(
            f"writeStream: column {narrowed.name!r} is {narrowed.type}, which Delta Lake does not have: cast it to a"
            " signed or wider type"
        )
    try:
        columns = library.Schema.from_arrow(as_nullable(schema))
    except Exception as error:
        raise SchemaError(
            f"writeStream: Delta Lake has no type for a column of this stream ({error}): bring it to another type"
        ) from error
    file_schema(schema, partition_by, "writeStream")
    filesystem, root = stored_at(uri)
    is_new = not library.DeltaTable.is_deltatable(uri)
    if is_new and filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True)):
        raise PlanError(f"writeStream: {root} is not empty and no Delta table: name another folder")
    table = library.DeltaTable.create(uri, columns, mode="ignore", partition_by=list(partition_by) or None)
    _refuse_table(library, table, columns, uri)
    if not keys and (found := rules(table)):  # the library holds the rows of its merges to them
        raise PlanError(
            f"writeStream: {uri} has rules for its values ({found}), to which no task holds the rows: write it by"
            " foreachBatch with deltalake"
        )
    by = tuple(table.metadata().partition_columns)
    if partition_by not in ((), by):
        raise PlanError(
            f"writeStream: {uri} is partitioned by {', '.join(by) or 'nothing'}, and partitionBy says"
            f" {', '.join(partition_by)}: leave it out, or write another table"
        )
    file_schema(schema, by, "writeStream")
    rows = WriteTableFiles(filesystem, root, f"penstock-{uid}", as_nullable(schema), f"{root}/_delta_log")
    writing = replace(rows, keys=keys) if keys else replace(rows, partition_by=by)  # a merge makes its own files
    return CommitSink(DeltaCommitter(uri, filesystem, root, keys), writing, uid, keys=keys, is_whole=bool(groups))


def _refuse_table(library: Any, table: Any, columns: Any, uri: str) -> None:
    if column_mapping(table) != "none":
        raise PlanError(f"writeStream: {uri} maps its columns to other names: write it with Spark")
    known = library.Schema.from_arrow(as_nullable(pa.schema(table.schema().to_arrow())))
    theirs, mine = ([(field.name, str(field.type)) for field in each.fields] for each in (known, columns))
    if theirs != mine or any(not field.nullable for field in table.schema().fields):
        shown = [", ".join(f"{name} {kind}" for name, kind in each) for each in (theirs, mine)]
        raise SchemaError(
            f"writeStream: the columns of {uri} are {shown[0]}, those of the stream {shown[1]}: bring them to the"
            " same names, order and types, all of which may be null"
        )


def iceberg_sink(options: Options, path: str | None, schema: pa.Schema, uid: str) -> CommitSink:
    """An Iceberg table that is there, by its name in a catalog; `uid` is the query's."""
    properties = {key[len(_CATALOG) :]: text for key, text in options.given().items() if key.startswith(_CATALOG)}
    own = [f"{_CATALOG}{key}" for key in properties]
    options.refuse_others("iceberg", ("path", "catalog", *own, *QUERY_OPTIONS))
    name = path or options.text("path")
    if not name:
        raise PlanError("writeStream.format('iceberg') needs a table: start('db.name')")
    committer = IcebergCommitter(name, options.text("catalog") or "default", properties)
    with committer.loaded() as table:
        if table.spec().fields:
            raise PlanError(f"writeStream: {committer.name} is partitioned, which format('iceberg') does not do")
        check_columns(schema, table, "writeStream")
        columns = numbered(as_nullable(schema), table)
        location = table.location()
    filesystem, root = stored_at(location)
    scheme, folder = location.removesuffix(root), f"{root}/data"
    committer = IcebergCommitter(name, committer.catalog, properties, f"{scheme}{folder}")
    mark = f"{root}/metadata"
    known = "" if filesystem.get_file_info(mark).type == pafs.FileType.NotFound else mark  # it may be elsewhere
    return CommitSink(committer, WriteTableFiles(filesystem, folder, f"penstock-{uid}", columns, known), uid)
