# SPDX-License-Identifier: Apache-2.0
"""Delta Lake tables by the library `deltalake`: it knows the log, Penstock's tasks read and write the files.

Reading takes the files of one version and reads them as Parquet. The log says what the columns are: a file may lack
one that was added later, have one that was dropped, another order or a narrower type, or name it otherwise where the
table maps its columns by name. The values of partition columns are the log's.

Writing puts new files into a folder of its own in the table's, which no reader knows, and the library names them in
one commit: all of them are in the table then, or none. A job that fails removes its folder, unless a version may name
files of it: a commit can be made and still raise, and on a store it can come after its error.

Limits: tables with deletion vectors, and with columns mapped by numbers, are refused; nothing is written to a table
with mapped columns. A driver that is killed leaves its folder behind until the table is vacuumed. Keys and regions of
stores come from the environment.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.api.arrow_filters import Filter
from penstock.api.file_sink import FilesWritten, file_schema, refuse_own_types
from penstock.api.parquet import Columns, ParquetFiles, ParquetSource, parquet_files, source_of
from penstock.api.paths import stored_at
from penstock.api.writing import WritableStream, WrittenFile, promised, require_writer, write_files
from penstock.errors import PenstockError, SettingError, how_to_install
from penstock.graph import as_nullable, fields_of, with_fields
from penstock.operators.file_forms import FileForm
from penstock.operators.file_write import WriteFiles
from penstock.operators.partitioned_write import NOTHING, WritePartitioned
from penstock.operators.projection import Projection
from penstock.stream.delta_log import column_mapping, refusal, stream_schema
from penstock.stream.delta_sink import narrowed_column, rules

DeltaMode = Literal["error", "append", "overwrite"]
MODES: tuple[DeltaMode, ...] = get_args(DeltaMode)
_PARTITION = "partition."
_PHYSICAL = b"delta.columnMapping.physicalName"


def delta_source(
    path: str | Path, version: int | None, columns: Sequence[str] | None, where: Filter, session: Any
) -> ParquetSource:
    """The source of a table's version, by default the newest; raises SettingError for what is no such table."""
    library = _library("readDelta")
    try:
        table = library.DeltaTable(str(path), version=version)
    except library.exceptions.DeltaError as error:
        raise SettingError(f"readDelta: {path} is not read: {error}: check the path and the version") from error
    return source_of(_files(table, path, session), columns, where, path)


def _files(table: Any, path: str | Path, session: Any) -> ParquetFiles:
    if reason := refusal(table):
        raise SettingError(f"readDelta: {path} {reason}")
    filesystem, root = stored_at(table.table_uri)
    actions = pa.table(table.get_add_actions(flatten=True)).combine_chunks()
    schema = stream_schema(table.schema())
    paths = tuple(f"{root}/{unquote(name)}" for name in actions["path"].to_pylist())
    if not paths:
        return ParquetFiles(filesystem, (), schema, ())
    names = table.metadata().partition_columns
    folders = None
    if names:
        (found,) = actions.select([_PARTITION + name for name in names]).rename_columns(names).to_batches()
        folders = Projection(pa.schema([schema.field(name) for name in names]), f"readDelta: {path}").project(found)
    stored = pa.schema(map(_stored, schema)) if column_mapping(table) == "name" else None
    return parquet_files(filesystem, paths, folders, session, Columns(schema, stored))


def _stored(field: pa.Field) -> pa.Field:
    """A column as the files of a table with mapped columns name it."""
    own = (field.metadata or {}).get(_PHYSICAL)
    inner = with_fields(field.type, [_stored(each) for each in fields_of(field.type)])
    return pa.field(field.name if own is None else own.decode(), inner, field.nullable)


def write_delta(stream: WritableStream, path: str | Path, mode: str, partition_by: Sequence[str]) -> FilesWritten:
    """See `Stream.writeDelta`."""
    began = time.monotonic()
    require_writer(stream, "writeDelta")
    if mode not in MODES:
        raise SettingError(f"writeDelta: mode {mode!r} is none of {', '.join(MODES)}")
    library = _library("writeDelta")
    held = file_schema(stream.schema, partition_by, "writeDelta")
    refuse_own_types(stream.schema, "writeDelta", "Delta Lake's library")
    if narrowed := narrowed_column(stream.schema):
        raise SettingError(
            f"writeDelta: column {narrowed.name!r} is {narrowed.type}, which Delta Lake does not have: cast it to a"
            " signed or wider type"
        )
    try:
        schema = library.Schema.from_arrow(stream.schema)
    except Exception as error:
        raise SettingError(
            f"writeDelta: Delta Lake has no type for a column of this stream ({error}): bring it to another type"
        ) from error
    columns = library.Schema.from_arrow(as_nullable(stream.schema))
    target = str(path) if "://" in str(path) else str(Path(path).expanduser().absolute())
    filesystem, root = stored_at(target)
    table = library.DeltaTable(target) if library.DeltaTable.is_deltatable(target) else None
    _refuse(table, filesystem, root, mode, columns, partition_by)
    if table is not None:
        schema = table.schema()
        stream = promised(stream, pa.schema(schema.to_arrow()), root)
        held = file_schema(stream.schema, partition_by, "writeDelta")
    own = f"penstock-{secrets.token_hex(6)}"
    write = WriteFiles(filesystem, f"{root}/{own}", FileForm("parquet", held, "zstd"))
    operator = WritePartitioned(write, tuple(partition_by)) if partition_by else write
    before, is_sent = -1 if table is None else table.version(), False
    try:
        files = write_files(stream, operator, lambda: filesystem.create_dir(f"{root}/{own}", recursive=True))
        actions = [_added(library, own, file, partition_by) for file in files]
        is_sent = True
        if table is None:
            library.transaction.create_table_with_add_actions(
                target, schema, actions, mode="error", partition_by=list(partition_by)
            )
        else:
            table.create_write_transaction(actions, mode, schema, partition_by=list(partition_by))
    except BaseException as error:
        if is_sent and not _is_unnamed(filesystem, root, own, before, error):
            error.add_note(f"writeDelta: the files in {root}/{own} stay: a version of the table may name them")
        else:
            with suppress(OSError):
                filesystem.delete_dir(f"{root}/{own}")
        raise
    size, rows = sum(file.bytes for file in files), sum(file.rows for file in files)
    return FilesWritten(str(path), len(files), rows, size, time.monotonic() - began)


def _is_unnamed(filesystem: pafs.FileSystem, root: str, own: str, before: int, error: BaseException) -> bool:
    """Tell whether no version after this one names files of a folder, and none will."""
    if not isinstance(filesystem, pafs.LocalFileSystem) and type(error).__name__ != "CommitFailedError":
        return False
    log = f"{root}/_delta_log"
    try:
        names = [info.base_name for info in filesystem.get_file_info(pafs.FileSelector(log, allow_not_found=True))]
        newest = max((int(name[:20]) for name in names if name[:20].isdecimal()), default=-1)
        for number in range(before + 1, newest + 1):  # one that was cleaned away is not found
            with filesystem.open_input_stream(f"{log}/{number:020d}.json") as entry:
                if own.encode() in entry.read():
                    return False
    except (OSError, pa.ArrowException):
        return False
    return newest >= before


def _refuse(
    table: Any, filesystem: pafs.FileSystem, root: str, mode: str, schema: Any, partition_by: Sequence[str]
) -> None:
    if table is None:
        if filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True)):
            raise SettingError(f"writeDelta: {root} is not empty and no Delta table: name another folder")
        return
    if mode == "error":
        raise SettingError(f"writeDelta: {root} is a table already: say mode='append' or mode='overwrite'")
    if column_mapping(table) != "none":
        raise SettingError(f"writeDelta: {root} maps its columns to other names: write it with Spark")
    if found := rules(table):
        raise SettingError(
            f"writeDelta: {root} has rules for its values ({found}), to which no task holds the rows: write it with"
            " Spark, or with deltalake"
        )
    known = table.metadata().partition_columns
    if known != list(partition_by):
        raise SettingError(f"writeDelta: {root} is partitioned by {known}: say partitionBy={known}")
    known = type(schema).from_arrow(as_nullable(pa.schema(table.schema().to_arrow())))
    mine, theirs = ([(field.name, str(field.type)) for field in each.fields] for each in (schema, known))
    if mine != theirs:
        raise SettingError(
            f"writeDelta: the columns of {root} are {_shown(theirs)}, those of the stream {_shown(mine)}: bring them"
            " to the same names, order and types with select"
        )


def _shown(fields: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in fields)


def _added(library: Any, folder: str, file: WrittenFile, partition_by: Sequence[str]) -> Any:
    """The file as an action of the log."""
    parts = [part.partition("=") for part in file.name.split("/")[:-1]]
    texts = {unquote(name): unquote(value) for name, _, value in parts}
    values = {name: None if texts[name] == NOTHING else texts[name] for name in partition_by}
    return library.transaction.AddAction(
        f"{folder}/{file.name}",
        file.bytes,
        values,
        int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _library(verb: str) -> Any:
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise PenstockError(f"{verb} needs the library deltalake: {how_to_install('delta')}") from error
    return deltalake
