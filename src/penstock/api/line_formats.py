# SPDX-License-Identifier: Apache-2.0
"""Lines of text as rows, and the columns that lines of CSV and JSON have where no schema declares them.

Bytes that are no UTF-8 become U+FFFD, as in Spark. Columns are found in the first lines only, where Spark looks at
all; so a later line that does not fit a type which was found ends the job, whatever the reader's mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.api.bad_lines import CORRUPT
from penstock.api.csv_lines import CsvForm, as_utf8, fields, fields_of_line, line_array, without_blank_lines
from penstock.errors import SchemaError
from penstock.graph import fields_of, with_fields
from penstock.operators.line_ends import first_line_with_text
from penstock.operators.line_values import found_type

TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])


@dataclass(frozen=True, slots=True)
class Inference:
    """Which type of Spark's a column gets: a time is an instant, unless the session's time stamps have no zone."""

    with_zone: bool = True

    def known(self, kind: pa.DataType) -> pa.DataType:
        """For a type that Arrow's reader of JSON has found, also inside structs and lists."""
        if pa.types.is_null(kind):
            return pa.string()
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", "UTC" if self.with_zone or kind.tz else None)
        inner = [field.with_type(self.known(field.type)) for field in fields_of(kind)]
        return with_fields(kind, inner) if inner else kind


@dataclass(frozen=True, slots=True)
class TextLines:
    """Each line as it is, without its end, in column `value`."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
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
        return pa.RecordBatch.from_arrays([line_array(as_utf8(lines).removesuffix(b"\n"))], schema=TEXT_SCHEMA)


def csv_schema(lines: bytes, given: pa.Schema | None, form: CsvForm, types: Inference | None) -> pa.Schema:
    """The columns of a CSV file: declared, or named by its header, else `_c0`, `_c1`, ...; text unless inferred."""
    lines = as_utf8(_to_look_at("readCsv", lines, given))
    first, rest = first_line_with_text(lines)
    try:
        if given is not None:
            if form.header and first:
                _refuse_other_header(fields_of_line(first, form), given, form)
            return given
        named = fields_of_line(first, form)
        names = [(form.header and name) or f"_c{place}" for place, name in enumerate(named)]
        body = without_blank_lines(rest if form.header else lines)
        if types is None or not body:
            return pa.schema([(name, pa.string()) for name in names])
        columns, _ = fields(body, line_array(body), len(names), form)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"readCsv: {error}") from error
    kinds = [found_type(column, form.zone, with_zone=types.with_zone) for column in columns]
    return pa.schema(list(zip(names, kinds, strict=True)))


def _refuse_other_header(names: list[str], given: pa.Schema, form: CsvForm) -> None:
    if len(given) != len(names):
        raise SchemaError(
            f"readCsv: the schema has {len(given)} columns ({', '.join(given.names)}) and the first line has "
            f"{len(names)} fields separated by {form.quoting.separator!r}"
        )


def json_schema(lines: bytes, types: Inference, *, corrupt: str = CORRUPT) -> pa.Schema:
    """The columns that the first lines have."""
    import pyarrow.json as pj

    lines = as_utf8(_to_look_at("readJson", lines, None))
    try:
        found = pj.read_json(pa.BufferReader(lines), pj.ReadOptions(block_size=max(len(lines), 1 << 10)))
    except pa.ArrowInvalid as error:
        if lines.lstrip().startswith(b"["):
            raise SchemaError(
                "readJson: the first line is an array, and each line must be an object: read the file with "
                "fromDataFrame(spark.read.json(path, multiLine=True))"
            ) from error
        raise SchemaError(
            f"readJson: {error}: give a schema, with a column {corrupt} string for lines that are bad"
        ) from error
    return pa.schema([(field.name, types.known(field.type)) for field in found.schema])


def _to_look_at(verb: str, lines: bytes, given: pa.Schema | None) -> bytes:
    """The lines; raises SchemaError where there are none, and no schema either."""
    if not lines and given is None:
        raise SchemaError(f"{verb}: the files have no lines to find columns in: give a schema")
    return lines
