# SPDX-License-Identifier: Apache-2.0
"""The log of a Delta table, as a reader of its versions needs it: entries, files in order, and what is gone.

A log or a file that can't be found is one of two: the table's file system is away, an OSError, after which a query
begins anew; or it was removed, an error that says so, because no attempt would find it. The log tells: it is away as
a whole, or it names the file no more.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.types as pt

from penstock.errors import PlanError, SchemaError
from penstock.graph import as_nullable, plain_schema
from penstock.operators.projection import Projection
from penstock.stream.delta_sink import delta_library

_BEGIN_ANEW = "start over with another checkpointLocation"
_MAPPING = "delta.columnMapping.mode"

Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The log of the table at `uri`, whose folder is `root`."""

    uri: str
    filesystem: pafs.FileSystem
    root: str

    def table(self, version: int | None = None) -> Any:
        """The table, at its newest version or at this one.

        Raises PlanError where a version can't be loaded, OSError where the log is away.
        """
        library = delta_library()
        try:
            return library.DeltaTable(self.uri, version=version)
        except library.exceptions.DeltaError as error:
            self.require()
            if version is None:
                raise
            raise PlanError(
                f"{self.uri}: version {version}, which is to be read, can't be loaded any more ({error}):"
                f" {_BEGIN_ANEW}"
            ) from error

    def actions(self, version: int, newest: int) -> list[Action] | None:
        """The entry of a version; None if it is not there yet, which it must be up to the newest one."""
        try:
            with self.filesystem.open_input_stream(f"{self.root}/_delta_log/{version:020d}.json") as log:
                return [json.loads(line) for line in log.read().splitlines() if line.strip()]
        except FileNotFoundError:
            if version > newest:
                return None
            self.require()
            raise PlanError(
                f"{self.uri}: the log has lost its entry of version {version}, the next to be read: {_BEGIN_ANEW}"
            ) from None

    @contextmanager
    def reading(self, path: str, version: int) -> Iterator[None]:
        """Open a file of a version in this block; raises PlanError where it is gone for good."""
        try:
            yield
        except FileNotFoundError:
            self.require()
            if path in pa.table(self.table().get_add_actions())["path"].to_pylist():
                raise
            raise PlanError(
                f"{self.uri}: {path} of version {version} was taken out of the table (a compaction does that) and"
                " removed (vacuum) before this query had read it: have vacuum keep files for longer than the query"
                f" is stopped, and {_BEGIN_ANEW}"
            ) from None

    def require(self) -> None:
        """Raise OSError where the log as a whole is away, as below a mount that dropped."""
        folder = f"{self.root}/_delta_log"
        if not self.filesystem.get_file_info(pafs.FileSelector(folder)):
            raise FileNotFoundError(errno.ENOENT, "the log is empty: is its file system away?", folder)


def files_in_order(table: Any) -> list[str]:
    """All files of a table, in an order that any later look at this version gives again.

    That of their writing, as Delta's own source has it; files of one moment by the least times of their rows.
    """
    found = pa.table(table.get_add_actions(flatten=True))
    times = [
        name
        for name in found.column_names
        if name.startswith("min.") and pt.is_temporal(found.schema.field(name).type)
    ]
    keys = ["modification_time", *times, "path"]
    ordered: list[str] = found.select(keys).sort_by([(key, "ascending") for key in keys])["path"].to_pylist()
    return ordered


def added_files(uri: str, version: int, actions: Sequence[Action], schema: pa.Schema, *, skips: bool) -> list[str]:
    """The files whose rows a version adds to a stream of this schema; `skips`: none of one that changes rows.

    Raises PlanError for a version that such a stream can't follow.
    """
    for action in actions:
        if "metaData" in action:
            _refuse_metadata(uri, version, action["metaData"], schema)
    changes = any(action.get("remove", {}).get("dataChange") for action in actions)
    if changes and skips:
        return []
    if changes:
        raise PlanError(
            f"{uri}: version {version} deletes or changes rows, which a stream can't take back: leave such versions"
            " out with option('skipChangeCommits', True), or start over after it"
        )
    added = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
    if any(file.get("deletionVector") for file in added):
        raise PlanError(f"{uri}: version {version} has deletion vectors: read it with Spark")
    return [file["path"] for file in added]


def refuse_table(table: Any, uri: str) -> None:
    """Raise PlanError for a table whose files are not its rows as they are."""
    _refuse_form(uri, table.metadata().partition_columns, table.metadata().configuration)
    if reason := refusal(table):
        raise PlanError(f"{uri} {reason}")


def refusal(table: Any) -> str:
    """Why a table can't be read here; empty where it can."""
    mapping = column_mapping(table)
    if mapping not in ("none", "name"):
        return f"maps its columns by {mapping}: read it with Spark"
    try:
        has_vectors = len(pa.table(table.deletion_vectors())) > 0
    except Exception as error:  # noqa: BLE001 - the library says which feature it does not know
        return f"is not read: {error}: rewrite it without that feature, or read it with Spark"
    return "has deletion vectors: purge them (REORG TABLE), or read it with Spark" if has_vectors else ""


def column_mapping(table: Any) -> str:
    """The way in which a table's files name its columns: none, name or id."""
    return str(table.metadata().configuration.get(_MAPPING, "none"))


def stream_schema(table_schema: Any) -> pa.Schema:
    """The columns of a table's rows in a stream, of the library's schema of it, whatever its files hold."""
    return as_nullable(plain_schema(pa.schema(table_schema.to_arrow()).remove_metadata()))


def _refuse_form(uri: str, partition_columns: Sequence[str], configuration: dict[str, str]) -> None:
    if partition_columns:
        raise PlanError(f"{uri} is partitioned, and a query reads tables without partitions: use readDelta, or Spark")
    if configuration.get(_MAPPING, "none") != "none":
        raise PlanError(f"{uri} maps its columns to other names: read it with Spark")


def _refuse_metadata(uri: str, version: int, metadata: Action, schema: pa.Schema) -> None:
    """Raise PlanError where a version gives the table a form, or columns, that a stream of this schema has not."""
    _refuse_form(f"{uri}: version {version}", metadata["partitionColumns"], metadata.get("configuration") or {})
    found = stream_schema(delta_library().Schema.from_json(metadata["schemaString"]))
    again = "start it again, and it goes on with the columns that the table has now"
    if more := [repr(name) for name in found.names if name not in schema.names]:
        raise PlanError(
            f"{uri}: version {version} has the new column {more[0]}, which this query does not know: {again}"
        )
    try:
        Projection(schema, f"{uri}: version {version}").check(found)
    except SchemaError as error:
        raise PlanError(f"{error}; or, if the table has other columns than when this query began, {again}") from error
