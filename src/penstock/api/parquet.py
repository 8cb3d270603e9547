# SPDX-License-Identifier: Apache-2.0
"""Parquet read by the tasks themselves: Arrow batches that never were JVM rows.

A path is a file, a folder (all of it, without names that start with `_` or `.`), a glob, or a list of these; URIs
that `pyarrow.fs` knows work too. The footers are read at the call, so a missing path or files that differ are refused
there. Subtasks get whole row groups, balanced by bytes, so parallelism above their number is of no use. With a
filter, row groups are skipped by their statistics. Names of folders with values, as in `year=2026/`, are columns too
(`partition_columns`): after those of the files, or in place of one of the same name.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.api.arrow_filters import Filter, all_of, columns_of, filter_expression, matching
from penstock.api.conditions import Condition
from penstock.api.partition_columns import (
    PartitionTyping,
    constant,
    folder_columns,
    names_of,
    partition_values,
    with_folders,
)
from penstock.api.paths import PathLike, data_files
from penstock.api.reading import reading_of
from penstock.errors import SchemaError, SettingError
from penstock.graph import unreadable
from penstock.machine.file_choice import EACH_FILE, FileChoice
from penstock.operators.columns import only_column
from penstock.operators.parquet_read import (
    AS_SPARK,
    FileReading,
    ParquetRows,
    open_parquet,
    rows_schema,
    tells_by_statistics,
    zone_of_old,
)
from penstock.operators.parquet_read import UNIT as INT96_UNIT

BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of one file."""

    file: int
    number: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table; `stored` has the same ones under the files' names for them, where these are others."""

    schema: pa.Schema
    stored: pa.Schema | None = None

    def in_files(self, names: Sequence[str]) -> pa.Schema:
        """Some of the columns as files have them."""
        known = self.schema if self.stored is None else self.stored
        return pa.schema([known.field(self.schema.get_field_index(name)) for name in names])


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """The files of a source: where they are, their rows' schema, their row groups.

    `folders` has the columns that the names of their folders hold, with one row for each file.
    """

    filesystem: pafs.FileSystem
    paths: tuple[str, ...]
    schema: pa.Schema
    row_groups: tuple[RowGroup, ...]
    folders: pa.RecordBatch | None = None
    reading: FileReading = AS_SPARK
    stored: pa.Schema | None = None
    """The columns under the files' names for them, where these are others."""


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """Reads its share of the row groups; picklable."""

    files: ParquetFiles
    columns: tuple[str, ...]
    filter: Filter = None
    batch_rows: int = BATCH_ROWS

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        paths = self.files.paths or ("without files",)
        more = f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
        return f"parquet {paths[0]}{more}"

    @property
    def whole(self) -> pa.Schema:
        """All columns that there are."""
        return self.files.schema

    @property
    def parts(self) -> Sequence[RowGroup]:
        """The parts of which a subtask gets some."""
        return self.files.row_groups

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return pa.schema([self.files.schema.field(column) for column in self.columns])

    def joined(self, others: Sequence[ParquetSource]) -> ParquetSource | None:
        """One source of their rows too; None where they are read otherwise."""
        own = _without_files(self)
        paths, groups = list(self.files.paths), list(self.files.row_groups)
        for other in others:
            files = other.files
            if files.folders is not None or _without_files(other) != own or not _is_same(other.filter, self.filter):
                return None
            groups += [replace(group, file=group.file + len(paths)) for group in files.row_groups]
            paths += files.paths
        return replace(self, files=replace(self.files, paths=tuple(paths), row_groups=tuple(groups)))

    def narrowed(self, columns: tuple[str, ...], conditions: Sequence[Condition]) -> ParquetSource:
        """The source of fewer columns, and of the rows for which conditions hold too."""
        return replace(self, columns=columns, filter=all_of(self.filter, conditions))

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's row groups, file by file."""
        share = shares(self.files.row_groups, parallelism)[subtask]
        for file in dict.fromkeys(group.file for group in share):
            numbers = [group.number for group in share if group.file == file]
            if self.filter is None:
                yield from self._plain(file, numbers, self.columns)
            else:
                yield from self._filtered(file, numbers)

    def _plain(self, number: int, numbers: list[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        files, path = self.files, self.files.paths[number]
        wanted = pa.schema([files.schema.field(column) for column in columns])
        held = pa.schema([field for field in wanted if field.name not in names_of(files.folders)])
        stored = Columns(files.schema, files.stored).in_files(held.names)
        with open_parquet(path, files.filesystem) as file:
            rows = ParquetRows(file, stored, f"readParquet: {path}", files.reading)
            for batch in rows.batches(self.batch_rows, numbers, held):
                yield batch if held.equals(wanted) else self._with_folders(batch, number, wanted)

    def _with_folders(self, batch: pa.RecordBatch, file: int, wanted: pa.Schema) -> pa.RecordBatch:
        """The rows with the columns that the names of the file's folders hold."""
        folders, rows = self.files.folders, batch.num_rows
        assert folders is not None  # noqa: S101 - the caller has looked
        own = folders.schema.names
        arrays = [
            constant(folders.column(name), file, rows) if name in own else batch.column(name) for name in wanted.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def _tells(self, fragment: Any, tested: Collection[str], path: str) -> bool:
        files = self.files
        if files.stored is not None:
            return False
        held = pa.schema([field for field in files.schema if field.name in {*tested} - {*names_of(files.folders)}])
        return tells_by_statistics(fragment.physical_schema, fragment.metadata, held, path, files.reading)

    def _filtered(self, number: int, numbers: list[int]) -> Iterator[pa.RecordBatch]:
        """The rows that pass the filter; row groups in which none can, as their statistics say, are not read.

        Arrow's scanner would filter too, but it reads row groups whole.
        """
        import pyarrow.dataset as ds

        files, path = self.files, self.files.paths[number]
        format_ = ds.ParquetFileFormat(coerce_int96_timestamp_unit=INT96_UNIT)
        folder = _folder_expression(files.folders, number)
        fragment = format_.make_fragment(path, files.filesystem, folder, row_groups=numbers)
        tested = columns_of(self.filter, files.schema)
        names = [name for name in files.schema.names if name in tested or name in self.columns]
        if self._tells(fragment, tested, path):
            numbers = [group.id for group in fragment.subset(self.filter, schema=files.schema).row_groups]
        for batch in self._plain(number, numbers, names):
            yield from matching(batch, self.filter, self.columns)


def _without_files(source: ParquetSource) -> ParquetSource:
    """What two sources are compared by; their filters can't be by `==`, which makes another one."""
    return replace(source, files=replace(source.files, paths=(), row_groups=()), filter=None)


def _is_same(one: Filter, other: Filter) -> bool:
    return one is other or (one is not None and other is not None and bool(one.equals(other)))


def parquet_source(
    path: PathLike | Sequence[PathLike],
    columns: Sequence[str] | None,
    where: Filter,
    session: Any = None,
    choice: FileChoice = EACH_FILE,
) -> ParquetSource:
    """The source of a path, checked; raises SettingError or SchemaError."""
    return source_of(_open(path, session, choice), columns, where, path)


def source_of(files: ParquetFiles, columns: Sequence[str] | None, where: Filter, shown: object) -> ParquetSource:
    """The source of some columns of these files; raises SchemaError for columns and filters that do not fit."""
    chosen = chosen_columns(files.schema, columns, shown)
    return ParquetSource(files, chosen, None if where is None else filter_expression(where, files.schema))


def chosen_columns(
    schema: pa.Schema, columns: Sequence[str] | None, shown: object, verb: str = "readParquet"
) -> tuple[str, ...]:
    """The columns that were asked for, all if none were; raises SchemaError for one that is not there once."""
    chosen = tuple(schema.names if columns is None else columns)
    missing = [column for column in chosen if column not in schema.names]
    if missing:
        raise SchemaError(
            f"{verb}: no column {', '.join(map(repr, missing))} in {shown}; there are {', '.join(schema.names)}"
        )
    for column in chosen:
        if reason := unreadable(only_column(schema, column, verb)):
            raise SchemaError(f"{verb}: column {column!r} of {shown} {reason}; or leave it out with columns=[...]")
    return chosen


def shares(row_groups: Sequence[RowGroup], parallelism: int) -> list[list[RowGroup]]:
    """The row groups of each subtask: the largest first to the one that has least; in file order within one."""
    loads = [(0, subtask) for subtask in range(parallelism)]
    result: list[list[RowGroup]] = [[] for _ in range(parallelism)]
    for group in sorted(row_groups, key=lambda item: (-item.bytes, item.file, item.number)):
        load, subtask = heapq.heappop(loads)
        result[subtask].append(group)
        heapq.heappush(loads, (load + group.bytes, subtask))
    return [sorted(share, key=lambda item: (item.file, item.number)) for share in result]


def _open(path: PathLike | Sequence[PathLike], session: Any, choice: FileChoice) -> ParquetFiles:
    filesystem, listed = data_files(path, "readParquet", choice)
    held = [file for file in listed if file.size or not file.within]
    if not held:
        raise SettingError(
            f"readParquet: there is no Parquet file in {path} (names that begin with _ or . do not count): check the"
            " path, and the options that choose files"
        )
    columns = tuple((file.path, () if choice.recursive else folder_columns(file.within)) for file in held)
    folders = partition_values(columns, PartitionTyping.of(session))
    return parquet_files(filesystem, tuple(name for name, _ in columns), folders, session)


def parquet_files(
    filesystem: pafs.FileSystem,
    paths: tuple[str, ...],
    folders: pa.RecordBatch | None,
    session: Any,
    columns: Columns | None = None,
) -> ParquetFiles:
    """These files, of which there is at least one, with the columns that are not in them; reads the footers.

    Without `columns` the first file's are those of all, as Spark has it.
    """
    groups: list[RowGroup] = []
    reading = reading_of(session)
    for index, name in enumerate(paths):
        with _parquet(name, filesystem) as file:
            zone = zone_of_old(file.metadata, reading.calendars)
            if zone is not None and zone not in reading.calendars.zones:
                reading = reading_of(session, (*reading.calendars.zones, zone))
            columns = Columns(rows_schema(file.schema_arrow, file.metadata)) if columns is None else columns
            held = [each for each in columns.schema.names if each not in names_of(folders)]
            ParquetRows(file, columns.in_files(held), f"readParquet: {name}", reading).check()
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                groups.append(RowGroup(index, number, group.num_rows, group.total_byte_size))
    assert columns is not None  # noqa: S101 - there is at least one path
    whole = with_folders(columns.schema, folders, is_case_sensitive=reading.is_case_sensitive)
    return ParquetFiles(filesystem, paths, whole, tuple(groups), folders, reading, columns.stored)


@contextmanager
def _parquet(name: str, filesystem: pafs.FileSystem) -> Iterator[Any]:
    try:
        file = open_parquet(name, filesystem)
    except pa.ArrowInvalid as error:
        raise SettingError(
            f"readParquet: {name} is not a Parquet file: {error}: remove it, or read it with "
            "readCsv, readJson or readText"
        ) from error
    with file:
        yield file


def _folder_expression(folders: pa.RecordBatch | None, row: int) -> Any:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    expression = pc.scalar(True)
    if folders is None:
        return expression
    for name in folders.schema.names:
        value = folders.column(name)[row]
        expression &= ds.field(name) == value if value.is_valid else ds.field(name).is_null()
    return expression
