# SPDX-License-Identifier: Apache-2.0
"""Lines as rows: text, CSV and JSON, by Arrow's readers; undeclared columns are found in the first lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.shuffle.errors import SchemaError

TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])


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
        body = lines[:-1] if lines.endswith(b"\n") else lines
        offsets = np.array([0, len(body)], np.int32)
        whole = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(body)])
        found = pc.list_flatten(pc.split_pattern(whole, b"\n")).cast(pa.string())
        if b"\r\n" in lines or lines.endswith(b"\r"):
            found = pc.replace_substring_regex(found, r"\r$", "")
        return pa.RecordBatch.from_arrays([found], schema=TEXT_SCHEMA)


@dataclass(frozen=True, slots=True)
class CsvLines:
    """Fields between separators, quoted where they hold one; what equals `null` unquoted is null."""

    schema: pa.Schema
    separator: str
    header: bool
    null: str

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
        table = _read_csv(lines, self, pa.schema([field.with_nullable(True) for field in self.schema]))
        return _one_batch(table, self.schema)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """An object on each line; fields that the schema does not name are left out, those that lack are null."""

    schema: pa.Schema

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

        options = pj.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore")
        read = pj.ReadOptions(use_threads=False, block_size=max(len(lines), 1 << 10))
        return _one_batch(pj.read_json(pa.BufferReader(lines), read, options), self.schema)


def csv_schema(lines: bytes, given: pa.Schema | None, form: CsvLines, *, infer: bool) -> pa.Schema:
    """The columns of a CSV file: declared, or named by its header, else `_c0`, `_c1`, ...; text unless inferred."""
    first = lines.partition(b"\n")[0].rstrip(b"\r")
    named = _read_csv(first + b"\n", form, None)
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
    if not infer:
        return pa.schema([(name, pa.string()) for name in names])
    body = lines.partition(b"\n")[2] if form.header else lines
    kinds = _read_csv(body, form, None).schema.types
    return pa.schema([(name, _known(kind)) for name, kind in zip(names, kinds, strict=True)])


def json_schema(lines: bytes) -> pa.Schema:
    """The columns that the first lines have."""
    import pyarrow.json as pj

    found = pj.read_json(pa.BufferReader(lines), pj.ReadOptions(block_size=max(len(lines), 1 << 10)))
    return pa.schema([(field.name, _known(field.type)) for field in found.schema])


def _texts(table: pa.Table) -> list[str]:
    return ["" if column[0].as_py() is None else str(column[0].as_py()) for column in table.columns]


def _known(kind: pa.DataType) -> pa.DataType:
    """A type Spark has, for one that Arrow's readers find."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return kind


def _read_csv(lines: bytes, form: CsvLines, schema: pa.Schema | None) -> pa.Table:
    import pyarrow.csv as pcsv

    names = {"autogenerate_column_names": True} if schema is None else {"column_names": schema.names}
    types = None if schema is None else dict(zip(schema.names, schema.types, strict=True))
    # Not read_csv: that takes over Ctrl-C while it reads, and keeps a pipe for it.
    with pcsv.open_csv(
        pa.BufferReader(lines),
        pcsv.ReadOptions(use_threads=False, block_size=max(len(lines), 1 << 10), **names),
        pcsv.ParseOptions(delimiter=form.separator),
        pcsv.ConvertOptions(
            column_types=types, strings_can_be_null=True, null_values=[form.null], quoted_strings_can_be_null=False
        ),
    ) as reader:
        return reader.read_all()


def _one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    chunks = [column.combine_chunks() for column in table.columns]
    chunks = [chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks) for chunk in chunks]
    return pa.RecordBatch.from_arrays(chunks, schema=schema)
