# SPDX-License-Identifier: Apache-2.0
"""Delta Lake tables as sinks: one version of the table for the rows between two checkpoints.

Each commit carries Delta's own mark for that, an application's transaction: the query and a number that grows. A
commit whose number the table has is not made again. The library `deltalake` makes the commits.

The library does not look at the files that it is told of. One that is gone would fail every reader of the table, so
nothing is committed then: what no version named yet was removed, as by a `vacuum` of all files.

With keys a commit is a merge: the rows of the files replace those of the table with the same keys (`delta_merge`).
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.types as pt

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import OutsideError, PenstockError, PlanError, how_to_install
from penstock.graph import fields_of
from penstock.machine.disk import Disk
from penstock.stream.commit_sink import CommitId
from penstock.stream.delta_merge import merge_rows, newest_rows
from penstock.stream.table_files import TableFile

_RULES = ("delta.constraints.", "delta.invariants", "delta.generationExpression", "delta.identity.")
"""Beginnings of the names under which a table says what values it takes."""
_IMPORTANT = ("SchemaMismatchError", "DeltaProtocolError")
"""Errors of the library that another attempt would meet again."""


def delta_library() -> Any:
    """The module; raises PenstockError that says how to get it."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise PenstockError(f"a Delta table needs the library deltalake: {how_to_install('delta')}") from error
    return deltalake


def narrowed_column(schema: pa.Schema) -> pa.Field | None:
    """The first column that the library takes for one of a narrower type, which would not hold its values."""
    return next((field for field in schema if _is_narrowed(field.type)), None)


def _is_narrowed(kind: pa.DataType) -> bool:
    if pt.is_unsigned_integer(kind) or (pt.is_timestamp(kind) and kind.unit == "ns"):
        return True
    return any(_is_narrowed(field.type) for field in fields_of(kind))


def rules(table: Any) -> str:
    """What a table says of the values of its rows, by its names; the library looks at it where it writes the rows."""
    names = {*table.metadata().configuration, *_metadata_names(json.loads(table.schema().to_json()))}
    return ", ".join(sorted(name for name in names if name.startswith(_RULES)))


def _metadata_names(schema: Any) -> Iterator[str]:
    """The names in the metadata of fields, at any depth."""
    if isinstance(schema, dict):
        yield from schema.get("metadata", {})
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _metadata_names(each)


@dataclass(frozen=True, slots=True)
class DeltaCommitter:
    """Commits to the table at `uri`, which is there; `root` is its folder.

    With `keys` rows replace those of the same keys, else they are added.
    """

    uri: str
    filesystem: pafs.FileSystem
    root: str
    keys: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The place that is written to, and by which keys: a query does not change them between two runs."""
        return f"Delta table {self.uri}" + (f" by {', '.join(self.keys)}" if self.keys else "")

    def check_anew(self, query: str) -> None:
        """Raise CheckpointError where the table has a commit of this query."""
        library = delta_library()
        if not library.DeltaTable.is_deltatable(self.uri):
            return
        if library.DeltaTable(self.uri).transaction_version(query) is not None:
            raise CheckpointError(
                f"the checkpointLocation is empty, and {self.name} has commits of this query: is the location away?"
                " Bring it back. To start over, which writes all rows again, give another checkpointLocation"
            )

    def check(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Raise CheckpointError where the files of a commit that was not made are gone."""
        if _is_made(delta_library().DeltaTable(self.uri), commit):
            return
        try:
            self._require([TableFile.of(message) for message in messages])
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{error.filename} is {error.strerror}, and the checkpoint has its rows to commit to {self.name}: was"
                " the table vacuumed while the query was stopped? Bring the file back, or start over with another"
                " checkpointLocation"
            ) from None

    def commit(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Name the files in a new version, or merge their rows into one, unless a version has done so."""
        library = delta_library()
        files = [TableFile.of(message) for message in messages]
        try:
            table = library.DeltaTable(self.uri)
            if not _is_made(table, commit):
                self._require(files)
                before = table.version()
                mark = library.Transaction(commit.query, commit.version, int(time.time() * 1000))
                properties = library.CommitProperties(
                    custom_metadata={"penstock.checkpoint": str(commit.checkpoint)}, app_transactions=[mark]
                )
                self._write(table, files, properties)
                self._sync(before + 1)
        except library.exceptions.DeltaError as error:
            if type(error).__name__ in _IMPORTANT:
                raise
            raise OutsideError(f"{self.name} takes no commit: {type(error).__name__}: {error}") from error
        if self.keys:  # no version names them: their rows were copied
            for file in files:
                with suppress(OSError):
                    self.filesystem.delete_file(f"{self.root}/{file.name}")

    def _write(self, table: Any, files: Sequence[TableFile], properties: Any) -> None:
        if self.keys:
            paths = [f"{self.root}/{file.name}" for file in files]
            merge_rows(table, newest_rows(self.filesystem, paths, self.keys), self.keys, properties)
        else:
            if found := rules(table):
                raise PlanError(f"{self.name} has rules for its values ({found}), to which no task holds the rows")
            library = delta_library()
            table.create_write_transaction(
                [_added(library, file) for file in files],
                "append",
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=properties,
            )

    def _require(self, files: Sequence[TableFile]) -> None:
        """Raise OSError where one of these files is not there as it was written."""
        paths = [f"{self.root}/{file.name}" for file in files]
        for file, info in zip(files, self.filesystem.get_file_info(paths), strict=True):
            if info.type != pafs.FileType.File:
                raise FileNotFoundError(errno.ENOENT, "gone", info.path)
            if info.size != file.size:
                raise FileNotFoundError(errno.ENOENT, f"another file of {info.size} bytes", info.path)

    def _sync(self, version: int) -> None:
        """Wait until the log has the versions from this one on on the disk, and what a merge wrote for them.

        The library does not wait, and the next checkpoint does not name the files any more.
        """
        disk = Disk(self.filesystem)
        log = f"{self.root}/_delta_log"
        newest = delta_library().DeltaTable(self.uri).version() if disk.is_needed else 0
        for number in range(version, newest + 1):
            path = f"{log}/{number:020d}.json"
            if self.keys:
                self._sync_added(disk, path)
            disk.sync_file(path)
        if disk.is_needed:
            disk.sync_folder(log)

    def _sync_added(self, disk: Disk, version: str) -> None:
        """Wait for the files that a version names anew, as far as they are still there."""
        with self.filesystem.open_input_stream(version) as stream:
            entries = [json.loads(line) for line in stream.read().splitlines()]
        paths = [f"{self.root}/{unquote(entry['add']['path'])}" for entry in entries if "add" in entry]
        for path in paths:
            with suppress(FileNotFoundError):  # another writer has replaced it, and a vacuum removed it
                disk.sync_file(path)
        for folder in {path.rpartition("/")[0] for path in paths}:
            disk.sync_folder(folder)


def _added(library: Any, file: TableFile) -> Any:
    return library.transaction.AddAction(
        file.name,
        file.size,
        dict(file.values),
        int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _is_made(table: Any, commit: CommitId) -> bool:
    """Tell whether the table has this commit."""
    known = table.transaction_version(commit.query)
    return known is not None and known >= commit.version
