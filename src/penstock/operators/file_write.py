# SPDX-License-Identifier: Apache-2.0
"""Writes a subtask's rows as one file, and gives one row that names it.

A file's name is drawn at random for each run of the operator, so no two attempts of a subtask write the same file:
the driver commits only files that a row of a job that succeeded names. Rows are collected to row groups of about a
million rows or 128 MiB, whichever comes first, so that much memory is held. A subtask without rows writes nothing.
A file that is not finished is removed, as far as the process gets to it; the driver removes the whole folder.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.machine.disk import Disk
from penstock.operators.file_forms import FileForm
from penstock.operators.layouts import fitted

ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 128 << 20

STATUS_SCHEMA = pa.schema([("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
"""One row per file: its name in the folder, its rows, its size."""


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """An operator that writes all of its input to a new file in `folder` and gives one status row."""

    filesystem: pafs.FileSystem
    folder: str
    form: FileForm
    group_rows: int = ROW_GROUP_ROWS
    group_bytes: int = ROW_GROUP_BYTES

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"write{self.form.format.capitalize()}({self.form.compression})"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the files."""
        return self.form.schema

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The row of the file; none where there are no rows."""
        file: PartWriter | None = None
        try:
            for rows in self._row_groups(batches):
                file = file or PartWriter(self)
                file.write(rows)
        except BaseException:
            if file is not None:
                file.abort()
            raise
        if file is not None:
            yield file.finish()

    def labelled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns as the file has them, where more may be null than the rows say."""
        if batch.schema.equals(self.schema):
            return batch
        columns = [fitted(column, field.type) for column, field in zip(batch.columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _row_groups(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in map(self.labelled, batches):
            start = 0
            while start < batch.num_rows:
                part = batch.slice(start, self.group_rows - rows)
                waiting.append(part)
                start, rows, size = start + part.num_rows, rows + part.num_rows, size + part.nbytes
                if rows >= self.group_rows or size >= self.group_bytes:
                    yield pa.Table.from_batches(waiting, self.schema)
                    waiting, rows, size = [], 0, 0
        if waiting:
            yield pa.Table.from_batches(waiting, self.schema)


class PartWriter:
    """One file in the making, in a folder `under` the operator's."""

    def __init__(self, operator: WriteFiles, under: str = "") -> None:
        self._filesystem = operator.filesystem
        if under:
            self._filesystem.create_dir(f"{operator.folder}/{under}", recursive=True)
        self._name = f"{under}/part-{secrets.token_hex(8)}{operator.form.ending}".removeprefix("/")
        self._path = f"{operator.folder}/{self._name}"
        self._rows = 0
        self._sink = self._filesystem.open_output_stream(self._path)
        self._writer = operator.form.open(self._sink)

    def write(self, rows: pa.Table) -> None:
        """Append one row group."""
        self._writer.write_table(rows)
        self._rows += rows.num_rows

    def finish(self) -> pa.RecordBatch:
        """Close the file and wait until it is on the disk; its status row."""
        self._writer.close()
        self._sink.close()
        Disk(self._filesystem).sync_file(self._path)
        size = self._filesystem.get_file_info(self._path).size
        columns = [_text(self._name), _number(self._rows), _number(size)]
        return pa.RecordBatch.from_arrays(columns, schema=STATUS_SCHEMA)

    def abort(self) -> None:
        """Close and remove it."""
        for part in (self._writer, self._sink):
            with suppress(OSError, pa.ArrowException, ValueError):
                part.close()
        with suppress(OSError, pa.ArrowException):
            self._filesystem.delete_file(self._path)


def _number(value: int) -> pa.Array:
    # Out of buffers, because `pa.array` of a list imports pandas: a fifth of a second of every new worker.
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(value.to_bytes(8, "little", signed=True))])


def _text(value: str) -> pa.Array:
    data = value.encode()
    offsets = (0).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
