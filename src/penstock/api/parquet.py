# SPDX-License-Identifier: Apache-2.0
"""Parquet read by the tasks themselves: Arrow batches that never were JVM rows.

A path is a file, a folder (all of it, without names that start with `_` or `.`), a glob, or a list of these; URIs
that `pyarrow.fs` knows work too. The footers are read at the call, so a missing path or files that differ are
refused there. Subtasks get whole row groups, balanced by bytes, so parallelism above their number is of no use.
With a filter, row groups are skipped by their statistics. Not supported: partition columns in folder names.
"""

from __future__ import annotations

import glob
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.shuffle.errors import SchemaError, SettingError

BATCH_ROWS = 1 << 16

PathLike = str | Path
Filter = Any
"""A `pyarrow.compute.Expression`, or the list of tuples that `pyarrow.parquet` takes."""

_READ_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of one file."""

    file: int
    number: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """The files of a source: where they are, their schema, their row groups."""

    filesystem: pafs.FileSystem
    paths: tuple[str, ...]
    schema: pa.Schema
    row_groups: tuple[RowGroup, ...]


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """Reads its share of the row groups; picklable."""

    files: ParquetFiles
    columns: tuple[str, ...]
    filter: Filter = None
    batch_rows: int = BATCH_ROWS

    @property
    def name(self) -> str:
        """What `explain` shows."""
        paths = self.files.paths
        more = f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
        return f"parquet {paths[0]}{more}"

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return pa.schema([self.files.schema.field(column) for column in self.columns])

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's row groups, file by file."""
        share = shares(self.files.row_groups, parallelism)[subtask]
        for file in dict.fromkeys(group.file for group in share):
            numbers = [group.number for group in share if group.file == file]
            if self.filter is None:
                yield from self._plain(self.files.paths[file], numbers)
            else:
                yield from self._filtered(self.files.paths[file], numbers)

    def _plain(self, path: str, numbers: list[int]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        # Measured: threads and pre-buffering cost more than they give on local files. A memory map would save
        # 2 ns a row and kill the worker where a file is truncated meanwhile.
        remote = not isinstance(self.files.filesystem, pafs.LocalFileSystem)
        # Column chunks are read through a buffer: read whole, each lands in fresh pages (measured: twice the time).
        buffer = 0 if remote else _READ_BUFFER
        with pq.ParquetFile(path, filesystem=self.files.filesystem, pre_buffer=remote, buffer_size=buffer) as file:
            for batch in file.iter_batches(
                self.batch_rows, row_groups=numbers, columns=list(self.columns), use_threads=False
            ):
                yield self._conformed(batch)

    def _filtered(self, path: str, numbers: list[int]) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds

        fragment = ds.ParquetFileFormat().make_fragment(path, self.files.filesystem, row_groups=numbers)
        batches = fragment.to_batches(
            schema=self.files.schema,
            columns=list(self.columns),
            filter=self.filter,
            batch_size=self.batch_rows,
            use_threads=False,
        )
        for batch in batches:
            if batch.num_rows:
                yield self._conformed(batch)

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Parquet gives columns in the file's order whatever order was asked for.
        names = list(self.columns)
        return batch if batch.schema.names == names else batch.select(names)


def parquet_source(
    path: PathLike | Sequence[PathLike], columns: Sequence[str] | None, where: Filter
) -> ParquetSource:
    """The source of a path, checked; raises SettingError or SchemaError."""
    files = _open(path)
    chosen = tuple(files.schema.names if columns is None else columns)
    missing = [column for column in chosen if column not in files.schema.names]
    if missing:
        raise SchemaError(
            f"readParquet: no column {', '.join(map(repr, missing))} in {path}; there are "
            f"{', '.join(files.schema.names)}"
        )
    return ParquetSource(files, chosen, None if where is None else _expression(where, files.schema))


def shares(row_groups: Sequence[RowGroup], parallelism: int) -> list[list[RowGroup]]:
    """The row groups of each subtask: the largest first to whoever has least; in file order within a subtask."""
    loads = [(0, subtask) for subtask in range(parallelism)]
    result: list[list[RowGroup]] = [[] for _ in range(parallelism)]
    for group in sorted(row_groups, key=lambda item: (-item.bytes, item.file, item.number)):
        load, subtask = heapq.heappop(loads)
        result[subtask].append(group)
        heapq.heappush(loads, (load + group.bytes, subtask))
    return [sorted(share, key=lambda item: (item.file, item.number)) for share in result]


def _open(path: PathLike | Sequence[PathLike]) -> ParquetFiles:
    import pyarrow.parquet as pq

    given = [path] if isinstance(path, str | Path) else list(path)
    if not given:
        raise SettingError("readParquet: the list of paths is empty")
    found = [_found(str(item)) for item in given]
    filesystem = found[0][0]
    if any(other != filesystem for other, _ in found):
        raise SettingError("readParquet: all paths must be on one file system")
    paths = tuple(dict.fromkeys(name for _, names in found for name in names))
    schema: pa.Schema | None = None
    groups: list[RowGroup] = []
    for index, name in enumerate(paths):
        try:
            with pq.ParquetFile(name, filesystem=filesystem) as file:
                metadata, own = file.metadata, file.schema_arrow.remove_metadata()
        except pa.ArrowInvalid as error:
            raise SettingError(f"readParquet: {name} is not a Parquet file: {error}") from error
        schema = own if schema is None else schema
        _check_schema(schema, own, paths[0], name)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            groups.append(RowGroup(index, number, group.num_rows, group.total_byte_size))
    return ParquetFiles(filesystem, paths, schema, tuple(groups))


def _check_schema(expected: pa.Schema, found: pa.Schema, first: str, name: str) -> None:
    if found.equals(expected):
        return
    differing = [field for field in found if field not in list(expected)] or list(found)
    shown = ", ".join(f"{field.name} {field.type}" for field in differing)
    raise SchemaError(
        f"readParquet: {name} has other columns than {first} ({shown}): read them as two streams and bring them to "
        "one schema with mapInArrow before a union"
    )


def _found(path: str) -> tuple[pafs.FileSystem, list[str]]:
    if "://" in path:
        filesystem, inner = pafs.FileSystem.from_uri(path)
    else:
        filesystem, inner = pafs.LocalFileSystem(), str(Path(path).expanduser().absolute())
        if glob.has_magic(inner) and not Path(inner).exists():
            matches = sorted(glob.glob(inner, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
            names = [name for match in matches for name in _files(filesystem, match, path)]
            if not names:
                raise SettingError(f"readParquet: nothing matches {path}")
            return filesystem, names
    return filesystem, _files(filesystem, inner, path)


def _files(filesystem: pafs.FileSystem, inner: str, shown: str) -> list[str]:
    info = filesystem.get_file_info(inner)
    if info.type == pafs.FileType.NotFound:
        raise SettingError(f"readParquet: {shown} does not exist")
    if info.is_file:
        return [inner]
    entries = filesystem.get_file_info(pafs.FileSelector(inner, recursive=True))
    names = sorted(entry.path for entry in entries if entry.is_file and entry.size and _is_data(inner, entry.path))
    if not names:
        raise SettingError(f"readParquet: there is no Parquet file in {shown}")
    return names


def _is_data(folder: str, name: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in Path(name).relative_to(folder).parts)


def _expression(where: Filter, schema: pa.Schema) -> Filter:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    try:
        expression = where if isinstance(where, pc.Expression) else pq.filters_to_expression(where)
        ds.dataset(schema.empty_table()).scanner(filter=expression)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise SchemaError(f"readParquet: the filter does not fit the columns ({error})") from error
    return expression
