# SPDX-License-Identifier: Apache-2.0
"""The rows of one file, from a position on: lines that a format parses, and Parquet.

A position is a pair: the place where a part of the file begins (a byte of the uncompressed text, a row group) and the
number of rows after it that were given. Reading from a position gives the rows that a reader which had never stopped
would have given.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import SchemaError
from penstock.machine.locations import is_here
from penstock.operators.line_ends import cut_at_lines, first_line_with_text, plain_lines, portions, without_mark
from penstock.operators.line_format import COMPRESSED, LineFormat, most_lines, refuse_compressed
from penstock.operators.parquet_read import AS_SPARK, FileReading, ParquetRows, open_parquet

READ_BYTES = 1 << 20
BATCH_ROWS = 1 << 16

Position = tuple[int, int]
START: Position = (0, 0)
Placed = tuple[Position, pa.RecordBatch]
"""Rows, and the position that they follow."""


class FileFormat(Protocol):
    """The way from files to rows; picklable."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""

    def rows(self, filesystem: pafs.FileSystem, path: str, position: Position) -> Iterator[Placed]:
        """The rows after a position, each batch with the position that it follows; raises SchemaError."""


@dataclass(frozen=True, slots=True)
class LineFileFormat:
    """Files of lines, compressed by their ending (`.gz`, `.bz2`, `.zst`, ...)."""

    format: LineFormat

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return self.format.name

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return self.format.schema

    def rows(self, filesystem: pafs.FileSystem, path: str, position: Position) -> Iterator[Placed]:
        """Whole lines, about a megabyte at a time."""
        refuse_compressed(path, self.name)
        offset, skip = position
        most = most_lines(self.schema)
        with _decoding(filesystem, f"{self.name} {path}"), _opened(filesystem, path, offset) as stream:
            for lines in cut_at_lines(iter(lambda: stream.read(READ_BYTES), b"")):
                body = plain_lines(without_mark(lines) if offset == 0 else lines)
                if offset == 0 and self.format.skips_first:
                    _, body = first_line_with_text(body)
                given = 0
                for part in portions(body, most) if body else ():
                    batch = self.format.rows(part)
                    if batch.num_rows > skip:
                        yield (offset, given + skip), batch.slice(skip)
                    # Lines may be read in other portions than before: what is to be skipped may be in several.
                    skip, given = max(0, skip - batch.num_rows), given + batch.num_rows
                offset += len(lines)
            if skip:
                raise _shorter(path)


@dataclass(frozen=True, slots=True)
class ParquetFileFormat:
    """Files of Parquet as rows of these columns: others are not read, and those that a file lacks are null."""

    schema: pa.Schema
    reading: FileReading = AS_SPARK

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "parquet"

    def rows(self, filesystem: pafs.FileSystem, path: str, position: Position) -> Iterator[Placed]:
        """Row group by row group."""
        first, skip = position
        with _decoding(filesystem, f"parquet {path}"), open_parquet(path, filesystem) as file:
            stored = ParquetRows(file, self.schema, f"parquet {path}", self.reading)
            for group in range(first, file.num_row_groups):
                begin = 0
                for batch in stored.batches(BATCH_ROWS, [group]):
                    if begin + batch.num_rows > skip:
                        unread = max(0, skip - begin)
                        yield (group, begin + unread), batch.slice(unread)
                    begin += batch.num_rows
                if begin < skip:
                    raise _shorter(path)
                skip = 0
            if first > file.num_row_groups or skip:
                raise _shorter(path)


@contextmanager
def _decoding(filesystem: pafs.FileSystem, file: str) -> Iterator[None]:
    """A decoder's complaint about a file is an error of its contents, SchemaError; reading it may fail otherwise.

    Arrow's decoders raise OSError too. Those of this machine's disks have a number, so one without is a decoder's.
    Elsewhere nothing tells them apart, and the reader tries again.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{file}: {error}") from error
    except OSError as error:
        if error.errno is None and is_here(filesystem):
            raise SchemaError(f"{file}: {error}") from error
        raise


def _shorter(path: str) -> OSError:
    """A mount may show an old view of a file, or none of its bytes; a file that was replaced stays an error."""
    return OSError(errno.ESTALE, "the file is shorter than what was read of it before", path)


def _opened(filesystem: pafs.FileSystem, path: str, offset: int) -> Any:
    """The file's text from an offset on."""
    if path.endswith(COMPRESSED):
        stream = filesystem.open_input_stream(path, compression="detect", buffer_size=READ_BYTES)
        while offset > 0 and (skipped := len(stream.read(min(offset, READ_BYTES)))):
            offset -= skipped
        if offset:
            raise _shorter(path)
        return stream
    file = filesystem.open_input_file(path)
    if offset > file.size():
        raise _shorter(path)
    file.seek(offset)
    return file
