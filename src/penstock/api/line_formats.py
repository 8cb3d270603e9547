# SPDX-License-Identifier: Apache-2.0
"""Lines as rows: text, CSV and JSON, by Arrow's readers; undeclared columns are found in the first lines.

Bytes that are no UTF-8 become U+FFFD, as in Spark. Times without a zone are the session's (`task/line_times.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.csv_quotes import rows_in, with_doubled_quotes
from penstock.shuffle.errors import SchemaError
from penstock.task.line_times import as_text, is_instant, timed

T = TypeVar("T")

_ENDS = b"\r\n"

TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])


@dataclass(frozen=True, slots=True)
class Inference:
    """Which type of Spark's a column gets whose type Arrow's readers have found."""

    with_zone: bool = True

    def known(self, kind: pa.DataType) -> pa.DataType:
        """A time is an instant, unless the session's time stamps have no zone."""
        if pa.types.is_null(kind):
            return pa.string()
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", "UTC" if self.with_zone or kind.tz else None)
        return kind


@dataclass(frozen=True, slots=True)
class TextLines:
    """Each line as it is, without its end, in column `value`."""

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return "text"

    @property
    def schema(self) -> pa.Schema:
        """One column."""
        return TEXT_SCHEMA

    @property
    def skips_first(self) -> bool:
        """Every line is a row."""
        return False

    def rows(self, lines: bytes) -> pa.RecordBatch:
        """The lines."""
        return _of_text(_text_rows, lines)


def _text_rows(lines: bytes) -> pa.RecordBatch:
    if b"\r" in lines:  # it ends a line by itself, too
        lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    body = lines[:-1] if lines.endswith(b"\n") else lines
    found = pc.list_flatten(pc.split_pattern(_one_value(body), b"\n")).cast(pa.string())
    return pa.RecordBatch.from_arrays([found], schema=TEXT_SCHEMA)


@dataclass(frozen=True, slots=True)
class CsvLines:
    """Fields between separators, quoted where they hold one; what equals `null` unquoted is null."""

    schema: pa.Schema
    separator: str
    header: bool
    null: str
    zone: str = "UTC"

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return "csv"

    @property
    def skips_first(self) -> bool:
        """Whether there is a line with names."""
        return self.header

    def rows(self, lines: bytes) -> pa.RecordBatch:
        """The rows; raises pa.ArrowInvalid naming the column."""
        read = [field.with_type(pa.string()) if is_instant(field.type) else field for field in self.schema]
        wanted = pa.schema([field.with_nullable(True) for field in read])
        return _one_batch(_of_text(lambda text: _read_csv(text, self, wanted), lines), self.schema, self.zone)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """An object on each line; fields that the schema does not name are left out, those that lack are null."""

    schema: pa.Schema
    zone: str = "UTC"

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return "json"

    @property
    def skips_first(self) -> bool:
        """Every line is a row."""
        return False

    def rows(self, lines: bytes) -> pa.RecordBatch:
        """The rows; raises pa.ArrowInvalid for what is no object, or does not fit."""
        import pyarrow.json as pj

        wanted = pa.schema([field.with_type(as_text(field.type)) for field in self.schema])
        options = pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")

        text = _of_text(_checked, lines)  # Arrow's reader takes any bytes
        read = pj.ReadOptions(use_threads=False, block_size=max(len(text), 1 << 10))
        return _one_batch(pj.read_json(pa.BufferReader(text), read, options), self.schema, self.zone)


def _checked(lines: bytes) -> bytes:
    _one_value(lines).cast(pa.string())
    return lines


def _one_value(data: bytes) -> pa.Array:
    offsets = np.array([0, len(data)], np.int32)
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _of_text(read: Callable[[bytes], T], lines: bytes) -> T:
    """What the reader makes of the lines; where it refuses them, of these with U+FFFD for what is no UTF-8."""
    try:
        return read(lines)
    except pa.ArrowInvalid:
        text = lines.decode(errors="replace").encode()
        if text == lines:
            raise
        return read(text)


def csv_schema(lines: bytes, given: pa.Schema | None, form: CsvLines, types: Inference | None) -> pa.Schema:
    """The columns of a CSV file: declared, or named by its header, else `_c0`, `_c1`, ...; text unless inferred."""
    lines = _to_look_at("readCsv", lines, given)
    if not lines and given is not None:
        return given
    first = lines.partition(b"\n")[0].rstrip(b"\r")
    named = _first_csv(first + b"\n", form)
    names = [name or f"_c{place}" for place, name in enumerate(_texts(named))]
    if given is not None:
        if len(given) != len(names):
            raise SchemaError(
                f"readCsv: the schema has {len(given)} columns ({', '.join(given.names)}) and the first line has "
                f"{len(names)} fields separated by {form.separator!r}"
            )
        return given
    if not form.header:
        names = [f"_c{place}" for place in range(len(names))]
    body = lines.partition(b"\n")[2] if form.header else lines
    if types is None or not body.strip(_ENDS):
        return pa.schema([(name, pa.string()) for name in names])
    kinds = _first_csv(body, form).schema.types
    return pa.schema([(name, types.known(kind)) for name, kind in zip(names, kinds, strict=True)])


def _first_csv(lines: bytes, form: CsvLines) -> pa.Table:
    try:
        return _read_csv(lines, form, None)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"readCsv: {error}") from error


def json_schema(lines: bytes, types: Inference) -> pa.Schema:
    """The columns that the first lines have."""
    import pyarrow.json as pj

    lines = _to_look_at("readJson", lines, None)
    try:
        found = pj.read_json(pa.BufferReader(lines), pj.ReadOptions(block_size=max(len(lines), 1 << 10)))
    except pa.ArrowInvalid as error:
        raise SchemaError(f"readJson: {error}") from error
    return pa.schema([(field.name, types.known(field.type)) for field in found.schema])


def _to_look_at(verb: str, lines: bytes, given: pa.Schema | None) -> bytes:
    """The lines as text; raises SchemaError where there are none, and no schema either."""
    if not lines and given is None:
        raise SchemaError(f"{verb}: the files have no lines to find columns in: give a schema")
    return lines.decode(errors="replace").encode()


def _texts(table: pa.Table) -> list[str]:
    return ["" if column[0].as_py() is None else str(column[0].as_py()) for column in table.columns]


def _read_csv(lines: bytes, form: CsvLines, schema: pa.Schema | None) -> pa.Table:
    import pyarrow.csv as pcsv

    names = {"autogenerate_column_names": True} if schema is None else {"column_names": schema.names}
    types = None if schema is None else dict(zip(schema.names, schema.types, strict=True))
    if schema is not None and not lines.strip(_ENDS):
        return schema.empty_table()
    lines = with_doubled_quotes(lines, form.separator)
    # Not read_csv: that takes over Ctrl-C while it reads, and keeps a pipe for it.
    with pcsv.open_csv(
        pa.BufferReader(lines),
        pcsv.ReadOptions(use_threads=False, block_size=max(len(lines), 1 << 10), **names),
        pcsv.ParseOptions(delimiter=form.separator),
        pcsv.ConvertOptions(
            column_types=types, strings_can_be_null=True, null_values=[form.null], quoted_strings_can_be_null=False
        ),
    ) as reader:
        table = reader.read_all()
    if b'"' in lines and (several := rows_in(lines) - table.num_rows):
        raise pa.ArrowInvalid(
            f"{several} lines begin inside a quoted field, which holds no line end here (as in Spark without "
            "multiLine): a quote is missing, or read such files by fromDataFrame"
        )
    return table


def _one_batch(table: pa.Table, schema: pa.Schema, zone: str) -> pa.RecordBatch:
    if not len(schema):  # which a batch of no arrays would have no rows of
        return pa.RecordBatch.from_arrays([pa.nulls(table.num_rows)], names=[""]).select([])
    chunks = [column.combine_chunks() for column in table.columns]
    chunks = [chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks) for chunk in chunks]
    columns = [timed(chunk, field, zone) for chunk, field in zip(chunks, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
