# SPDX-License-Identifier: Apache-2.0
"""The files that one writer fills between two barriers: one, or one for each folder of a partitioned sink.

Rows are held until there are `MOST_BYTES` of them, over all folders, or `GROUP_ROWS` of one; then they are written.
Of more than `MOST_FILES` files the one that got rows longest ago is closed: it is done, and its folder gets another
one. So neither memory nor open files grow with the number of folders.

At a barrier the files end: they get no more rows and have their names, and the rows that are held of them are written
later, by any thread (`EndedFiles`). So no row behind a barrier waits for the encoding of those in front of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.operators.file_forms import FileForm, TableWriter

GROUP_ROWS = 1 << 20
MOST_BYTES = 32 << 20
"""Rows are held so long, then they become a row group."""
MOST_FILES = 100


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

    def write(self, form: FileForm, open_stream: Callable[[str], Any]) -> None:
        """Write what is held, into a file of its name that is opened where there is none."""
        held, self.held = self.held, []
        if not held:
            return
        if self.file is None:
            self.stream = open_stream(self.name)
            self.file = form.open(self.stream)
        self.file.write_table(pa.Table.from_batches(held, form.schema))
        self.written += self.rows
        self.rows = self.bytes = 0

    def close(self) -> None:
        """End the file."""
        assert self.file is not None  # noqa: S101 - the caller has looked
        try:
            self.file.close()
        finally:
            self.stream.close()
            self.stream = self.file = None

    def abandon(self) -> None:
        """Close what is open, whatever comes of it."""
        self.held = []
        if self.file is not None:
            with suppress(OSError, pa.ArrowException, ValueError):
                self.close()


class EndedFiles:
    """Files that get no more rows; `rows` are those of each, by name. Some are still to be written."""

    def __init__(
        self, rows: dict[str, int], left: Sequence[_OpenFile], form: FileForm, open_stream: Callable[[str], Any]
    ) -> None:
        self.rows = rows
        self._left = deque(left)
        self._form = form
        self._open_stream = open_stream

    def finish(self) -> None:
        """Write all that is held, and close the files; any thread, one at a time. After an error only `abandon`."""
        while self._left:
            found = self._left[0]
            found.write(self._form, self._open_stream)
            found.close()
            self._left.popleft()

    def abandon(self) -> list[str]:
        """Close what is open, whatever comes of it; the names of all files that are not whole."""
        left, self._left = self._left, deque()
        for found in left:
            found.abandon()
        return [found.name for found in left]


class SinkFiles:
    """The files of one writer. `open_stream` opens one of this name, `new_name` makes up one in a folder."""

    def __init__(self, form: FileForm, new_name: Callable[[str], str], open_stream: Callable[[str], Any]) -> None:
        self._form = form
        self._new_name = new_name
        self._open_stream = open_stream
        self._files: dict[str, _OpenFile] = {}
        """The open files by folder; the one that got rows last is the last."""
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
        ended = self.end()
        ended.finish()
        return ended.rows

    def end(self) -> EndedFiles:
        """Go on with new files; the ones that were filled since the last time."""
        order = [*self._written, *(folder for folder in self._files if folder not in self._written)]
        left = [(folder, self._files[folder]) for folder in order]
        rows, self._closed = self._closed, {}
        for folder, found in left:
            if found.file is None and found.held:
                found.name = self._new_name(folder)
            if found.file is not None or found.held:
                rows[found.name] = found.written + found.rows
        self._files, self._written, self._bytes = {}, {}, 0
        unfinished = [found for _, found in left if found.file is not None or found.held]
        return EndedFiles(rows, unfinished, self._form, self._open_stream)

    def abandon(self) -> Iterator[str]:
        """Close what is open, whatever comes of it; the names of all that were not told of."""
        files, self._files, self._written = self._files, {}, {}
        for found in files.values():
            if found.file is not None:
                found.abandon()
                yield found.name
        yield from self._closed

    def _write_held(self, folder: str, found: _OpenFile) -> None:
        if not found.held:
            return
        self._bytes -= found.bytes
        if found.file is None:
            self._make_room()
            found.name = self._new_name(folder)
        found.write(self._form, self._open_stream)
        self._written[folder] = None

    def _make_room(self) -> None:
        """One file less where there are as many as may be."""
        if len(self._written) >= MOST_FILES:
            self._close_file(next(iter(self._written)))

    def _close_file(self, folder: str) -> None:
        found = self._files[folder]
        found.close()
        self._closed[found.name] = found.written
        found.written = 0
        del self._written[folder]


def files_schema(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """The columns that the files have: those that folders' names have not."""
    return pa.schema([each for each in schema if each.name not in partition_by]) if partition_by else schema
