# SPDX-License-Identifier: Apache-2.0
"""Text, CSV and JSON lines read by the tasks themselves, as Arrow batches.

A line is a record: files are cut at line ends into pieces of some megabytes, which the tasks share; a compressed file
(`.gz`, `.bz2`, `.zst`, ...) is one piece. Paths are as for `readParquet`. Types are declared, or found in the first
piece when the stream is built; the reader's mode says what becomes of a line that does not fit. Values in names of
folders are columns after those of the lines, or in place of one of the same name.

Limits: UTF-8; a quoted CSV field may hold no line end, as in Spark without multiLine. JSON fields that the schema
does not name are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.api.partition_columns import (
    PartitionTyping,
    constant,
    folder_columns,
    names_of,
    partition_values,
    with_folders,
)
from penstock.api.paths import ListedFile, PathLike, data_files
from penstock.errors import SchemaError, SettingError
from penstock.machine.file_choice import EACH_FILE, FileChoice
from penstock.operators.line_ends import (
    behind_line,
    cut_at_lines,
    first_line_with_text,
    plain_lines,
    portions,
    without_mark,
)
from penstock.operators.line_format import COMPRESSED, LineFormat, most_lines, refuse_compressed

PIECE_BYTES = 8 << 20
READ_BYTES = 1 << 20
_BY_SPARK = "read it by penstock.fromDataFrame(spark.read.format({!r}).load(...))"
_NO_LINES = {
    b"PAR1": ("a Parquet file", "read it by penstock.readParquet"),
    b"ORC": ("an ORC file", _BY_SPARK.format("orc")),
    b"Obj\x01": ("an Avro file", _BY_SPARK.format("avro")),
    b"ARROW1": ("an Arrow file", "read it by pyarrow.ipc in a function, or write it as Parquet"),
    b"PK\x03\x04": ("a ZIP archive", "unpack it, or compress each file by gzip"),
}
"""The beginnings of files that are no lines, and what to do with them."""
_LONGEST_START = max(map(len, _NO_LINES))


@dataclass(frozen=True, slots=True)
class LineRange:
    """Bytes of one file: the lines that begin in them."""

    file: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LinesSource:
    """Reads its share of the pieces; picklable."""

    filesystem: pafs.FileSystem
    files: tuple[ListedFile, ...]
    pieces: tuple[LineRange, ...]
    format: LineFormat
    folders: pa.RecordBatch | None = None
    """What the names of each file's folders hold."""
    is_case_sensitive: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return with_folders(self.format.schema, self.folders, is_case_sensitive=self.is_case_sensitive)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return f"{self.format.name} {self.files[0].path}{more}"

    def joined(self, others: Sequence[LinesSource]) -> LinesSource | None:
        """One source of their rows too; None where they are read otherwise."""
        files, pieces = list(self.files), list(self.pieces)
        for other in others:
            if (other.filesystem, other.format) != (self.filesystem, self.format):
                return None
            if other.folders is not None or self.folders is not None:
                return None
            pieces += [replace(piece, file=piece.file + len(files)) for piece in other.pieces]
            files += other.files
        return replace(self, files=tuple(files), pieces=tuple(pieces))

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's pieces: neighbours, so that each file is opened by few."""
        count, schema = len(self.pieces), self.schema
        most = most_lines(schema)
        for piece in self.pieces[subtask * count // parallelism : (subtask + 1) * count // parallelism]:
            path = self.files[piece.file].path
            for lines in (part for read in self._lines(piece, path) for part in portions(read, most)):
                try:
                    batch = self.format.rows(lines)
                except pa.ArrowInvalid as error:
                    raise SchemaError(f"{self.format.name} {path}: {error}") from error
                if batch.num_rows:
                    yield batch if self.folders is None else self._with_folders(batch, piece.file, schema)

    def _with_folders(self, batch: pa.RecordBatch, file: int, schema: pa.Schema) -> pa.RecordBatch:
        folders = dict(zip(names_of(self.folders), self.folders or (), strict=True))
        arrays = [
            constant(folders[name], file, batch.num_rows) if name in folders else batch.column(place)
            for place, name in enumerate(schema.names)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _lines(self, piece: LineRange, path: str) -> Iterator[bytes]:
        is_first = piece.start == 0
        needs_header = is_first and self.format.skips_first
        for read in whole_lines(self.filesystem, path, piece):
            lines = plain_lines(without_mark(read) if is_first else read)
            is_first = False
            if needs_header:
                header, lines = first_line_with_text(lines)
                needs_header = not header
            if lines:
                yield lines


def lines_source(
    path: PathLike | Sequence[PathLike], verb: str, choice: FileChoice = EACH_FILE
) -> tuple[pafs.FileSystem, tuple[ListedFile, ...]]:
    """The files of a path with anything in them, or one that is empty; raises SettingError for what is not there."""
    filesystem, files = data_files(path, verb, choice)
    if not files:
        raise SettingError(
            f"{verb}: there is no file in {path} (names that begin with _ or . do not count): check the path, and the"
            " options that choose files"
        )
    held = tuple(file for file in files if file.size) or files[:1]
    for file in held:
        refuse_compressed(file.path, verb)
    refuse_no_lines(filesystem, held[0].path, verb)
    return filesystem, held


def values_of_folders(
    files: Sequence[ListedFile], typing: PartitionTyping, verb: str, choice: FileChoice
) -> pa.RecordBatch | None:
    """The columns in the names of the files' folders; None where there are none, or they are not asked for."""
    columns = [(file.path, () if choice.recursive else folder_columns(file.within)) for file in files]
    return partition_values(columns, typing, verb)


def refuse_no_lines(filesystem: pafs.FileSystem, path: str, verb: str) -> None:
    """Raise SettingError where a file begins as one of a format that has no lines."""
    with filesystem.open_input_stream(path) as stream:
        start = stream.read(_LONGEST_START)
    for begins, (kind, advice) in _NO_LINES.items():
        if start.startswith(begins):
            raise SettingError(f"{verb}: {path} is {kind}, and has no lines of text: {advice}")


def pieces_of(files: Sequence[ListedFile]) -> tuple[LineRange, ...]:
    """All files cut into pieces."""
    found: list[LineRange] = []
    for number, file in enumerate(files):
        if file.size and file.path.endswith(COMPRESSED):
            found.append(LineRange(number, 0, -1))
            continue
        starts = range(0, file.size, PIECE_BYTES)
        found += [LineRange(number, start, min(start + PIECE_BYTES, file.size)) for start in starts]
    return tuple(found)


def first_lines(filesystem: pafs.FileSystem, files: Sequence[ListedFile], most: int = 1) -> bytes:
    """Whole lines from the start of the first files that have any, at most so many: about a megabyte in all."""
    found: list[bytes] = []
    for file in files:
        lines = plain_lines(without_mark(_start(filesystem, file.path)))
        if lines.strip():
            found.append(lines.lstrip(b"\n"))
        if len(found) == most or sum(map(len, found)) >= READ_BYTES:
            break
    return b"\n".join(found)


def _start(filesystem: pafs.FileSystem, path: str) -> bytes:
    """The first lines of a file, or all; the last of a file comes by itself where nothing says that it has ended."""
    found = b""
    for lines in whole_lines(filesystem, path, LineRange(0, 0, -1)):
        found += lines
        if len(found) >= READ_BYTES // 2:
            break
    return found


def whole_lines(filesystem: pafs.FileSystem, path: str, piece: LineRange) -> Iterator[bytes]:
    """The lines that begin in a piece, some whole ones at a time, each with its end.

    A line that begins before the piece belongs to the one before. The byte ahead of a piece says whether it begins
    inside a line.
    """
    if piece.end < 0:
        with filesystem.open_input_stream(path) as stream:
            yield from cut_at_lines(_chunks(stream, None))
        return
    with filesystem.open_input_file(path) as file:
        if piece.start:
            file.seek(piece.start - 1)
            _skip_line(file, piece.end)
        yield from cut_at_lines(_chunks(file, piece.end - file.tell()))


def _skip_line(file: pa.NativeFile, end: int) -> None:
    """Go on to the place after the next line end; if there is none ahead of `end`, to `end` or after it."""
    place, chunk = file.tell(), b""
    while place < end:
        more = file.read(READ_BYTES)
        chunk += more
        behind = behind_line(chunk, 0, is_all=not more)
        if behind >= 0 or not more:
            place += len(chunk) if behind < 0 else behind
            break
        place, chunk = place + len(chunk), b""
        if more.endswith(b"\r"):  # which may be half of a line end
            place, chunk = place - 1, b"\r"
    file.seek(place)


def _to_line_end(file: pa.NativeFile, chunk: bytes, start: int) -> tuple[bytes, int]:
    """The bytes, and more until a line ends after `start`, and the place after that; -1 at the file's end."""
    ahead: list[bytes] = []
    behind = behind_line(chunk, start, is_all=False)
    while behind < 0:
        more = file.read(READ_BYTES)
        if not more:
            behind = behind_line(chunk, start, is_all=True)
            break
        known = len(chunk) - chunk.endswith(b"\r")
        ahead.append(chunk[:known])
        chunk, start = chunk[known:] + more, max(0, start - known)
        behind = behind_line(chunk, start, is_all=False)
    return b"".join((*ahead, chunk)), behind if behind < 0 else sum(map(len, ahead)) + behind


def _chunks(file: pa.NativeFile, left: int | None) -> Iterator[bytes]:
    """The bytes of lines that begin within `left` bytes from here."""
    while (left is None or left > 0) and (chunk := file.read(READ_BYTES)):
        if left is not None and len(chunk) >= left:
            # The last line that begins in the piece may end after it.
            chunk, end = _to_line_end(file, chunk, left - 1)
            yield chunk if end < 0 else chunk[:end]
            return
        left = None if left is None else left - len(chunk)
        yield chunk
