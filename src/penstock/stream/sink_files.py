# SPDX-License-Identifier: Apache-2.0
"""The files that one writer fills between two barriers: one, or one for each folder of a partitioned sink.

Rows are held until there are `MOST_BYTES` of them, over all folders, or `GROUP_ROWS` of one; then they are written.
Of more than `MOST_FILES` files the one that got rows longest ago is closed: it is done, and its folder gets another
one. So neither memory nor open files grow with the number of folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from penstock.operators.csv_write import PLAIN_CSV, CsvSigns, csv_header, csv_lines
from penstock.operators.json_write import json_lines

GROUP_ROWS = 1 << 20
MOST_BYTES = 32 << 20
"""Rows are held so long, then they become a row group."""
MOST_FILES = 100


@dataclass(frozen=True, slots=True)
class FileForm:
    """The form of files: "parquet" with a `compression`, "arrow", "csv" or "json"; all may be null in `schema`."""

    format: str
    schema: pa.Schema
    compression: str = "snappy"
    csv: CsvSigns = PLAIN_CSV

    def open(self, stream: Any) -> TableWriter:
        """A file in a stream."""
        return FORMS[self.format](stream, self)


class TableWriter(Protocol):
    """A file under way."""

    def write_table(self, table: pa.Table) -> None:
        """Write rows."""

    def close(self) -> None:
        """End it; the stream stays open."""


@dataclass(slots=True)
class _OpenFile:
    """The rows that are held for one folder, and its file if it has one."""

    held: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    written: int = 0
    """The rows that are in the file."""
    name: str = ""
    stream: Any = None
    file: TableWriter | None = None


class SinkFiles:
    """The files of one writer. `open_stream` opens one of this name, `new_name` makes up one in a folder."""

    def __init__(self, form: FileForm, new_name: Callable[[str], str], open_stream: Callable[[str], Any]) -> None:
        self._form = form
        self._new_name = new_name
        self._open_stream = open_stream
        self._files: dict[str, _OpenFile] = {}
        """By folder; the one that got rows last is the last."""
        self._written: dict[str, None] = {}
        """The folders whose files are open, in the order in which these got rows."""
        self._bytes = 0
        self._closed: dict[str, int] = {}

    def write(self, folder: str, batch: pa.RecordBatch) -> None:
        """Take rows for a folder, "" where there is one; large amounts are written at once."""
        found = self._files.pop(folder) if folder in self._files else _OpenFile()
        self._files[folder] = found
        if found.file is not None:
            del self._written[folder]
            self._written[folder] = None
        found.held.append(batch)
        found.rows += batch.num_rows
        found.bytes += batch.nbytes
        self._bytes += batch.nbytes
        if found.rows >= GROUP_ROWS:
            self._write_held(folder, found)
        if self._bytes >= MOST_BYTES:
            for name, each in list(self._files.items()):
                self._write_held(name, each)

    def close(self) -> dict[str, int]:
        """Close all; the names of the files that were filled since the last time, each with its rows."""
        for folder in [*self._written, *(folder for folder in self._files if folder not in self._written)]:
            self._write_held(folder, self._files[folder])
            self._end(folder)
        closed, self._closed = self._closed, {}
        return closed

    def abandon(self) -> Iterator[str]:
        """Close what is open, whatever comes of it; the names of all that nobody was told of."""
        files, self._files, self._written = self._files, {}, {}
        for found in files.values():
            if found.file is not None:
                with suppress(OSError, pa.ArrowException, ValueError):
                    _close(found)
                yield found.name
        yield from self._closed

    def _write_held(self, folder: str, found: _OpenFile) -> None:
        if not found.held:
            return
        held, found.held = found.held, []
        self._bytes -= found.bytes
        rows, found.rows, found.bytes = found.rows, 0, 0
        if found.file is None:
            self._make_room()
            found.name = self._new_name(folder)
            found.stream = self._open_stream(found.name)
            found.file = self._form.open(found.stream)
            self._written[folder] = None
        found.file.write_table(pa.Table.from_batches(held, self._form.schema))
        found.written += rows

    def _make_room(self) -> None:
        """One file less where there are as many as may be."""
        if len(self._written) >= MOST_FILES:
            self._close_file(next(iter(self._written)))

    def _end(self, folder: str) -> None:
        if folder in self._written:
            self._close_file(folder)
        del self._files[folder]

    def _close_file(self, folder: str) -> None:
        found = self._files[folder]
        _close(found)
        self._closed[found.name] = found.written
        found.stream = found.file = None
        found.written = 0
        del self._written[folder]


def _close(found: _OpenFile) -> None:
    assert found.file is not None  # noqa: S101 - whoever calls has looked
    try:
        found.file.close()
    finally:
        found.stream.close()


def _parquet(stream: Any, form: FileForm) -> TableWriter:
    import pyarrow.parquet as pq

    made: TableWriter = pq.ParquetWriter(stream, form.schema, compression=form.compression)
    return made


def _arrow(stream: Any, form: FileForm) -> TableWriter:
    made: TableWriter = pa.ipc.new_file(stream, form.schema)
    return made


class _Lines:
    """A file of lines."""

    def __init__(self, stream: Any, lines: Callable[[pa.RecordBatch], pa.Buffer], first: bytes = b"") -> None:
        self._stream = stream
        self._lines = lines
        if first:
            stream.write(first)

    def write_table(self, table: pa.Table) -> None:
        """Batch by batch."""
        for batch in table.to_batches():
            self._stream.write(self._lines(batch))

    def close(self) -> None:
        """Nothing ends it but the end of its stream."""


def _csv(stream: Any, form: FileForm) -> TableWriter:
    first = csv_header(form.schema, form.csv) if form.csv.header else b""
    return _Lines(stream, lambda batch: csv_lines(batch, form.csv), first)


def _json(stream: Any, _: FileForm) -> TableWriter:
    return _Lines(stream, json_lines)


FORMS: dict[str, Callable[[Any, FileForm], TableWriter]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "json": _json,
}


def files_schema(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """The columns that the files have: those that folders' names have not."""
    return pa.schema([each for each in schema if each.name not in partition_by]) if partition_by else schema
