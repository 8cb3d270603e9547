# SPDX-License-Identifier: Apache-2.0
"""Lines of CSV as rows: Arrow's reader splits them into texts, which become values as Spark's reader has it.

Lines of nothing but blanks are no rows. A line with more or fewer fields than there are columns is read apart, and
is bad (`bad_lines`), as is one with a text that is no value of its column's type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.bad_lines import BadLines, Bools
from penstock.api.csv_quotes import Quoting, well_quoted
from penstock.operators.expressions.values import array_of, text_scalar
from penstock.operators.line_times import is_instant
from penstock.operators.line_values import typed

_BLANK = re.compile(rb"^[\x00-\x09\x0b-\x20]*\n", re.MULTILINE)
_BLANK_BEGIN = re.compile(rb"(?:\A|\n)[\x00-\x20]")


@dataclass(frozen=True, slots=True)
class CsvForm:
    """The way from lines to texts: the signs, the text that stands for null, and whether a first line has names."""

    quoting: Quoting = field(default_factory=Quoting)
    null: str = ""
    header: bool = False
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class CsvLines:
    """Fields between separators, quoted where they hold one."""

    schema: pa.Schema
    form: CsvForm = field(default_factory=CsvForm)
    bad: BadLines = field(default_factory=BadLines)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "csv"

    @property
    def skips_first(self) -> bool:
        """True if there is a line with names."""
        return self.form.header

    def rows(self, lines: bytes) -> pa.RecordBatch:
        """The rows; raises pa.ArrowInvalid naming the column."""
        text = without_blank_lines(as_utf8(lines))
        data = self.bad.data(self.schema)
        if not text:
            return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in self.schema], schema=self.schema)
        held = line_array(text)
        columns, odd = fields(text, held, len(data), self.form)
        bad = np.zeros(len(held), np.bool_) if odd is None else odd
        if odd is not None:
            self._refuse(held, odd, f"there are not {len(data)} fields")
        values = []
        for column, each in zip(columns, data, strict=True):
            value, wrong = typed(column, each, self.form.zone)
            values.append(value)
            if wrong is not None and wrong.any():
                shown = str(column.filter(_mask(wrong))[0])
                why = f"column {each.name!r}: {shown!r} is no {'timestamp' if is_instant(each.type) else each.type}"
                if each.name in self.bad.found:
                    raise pa.ArrowInvalid(f"{why}, which the first lines were: declare the column's type by a schema")
                self._refuse(held, wrong, why)
                bad = bad | wrong
        return self.bad.rows(values, bad if bad.any() else None, held, self.schema)

    def _refuse(self, held: pa.Array, bad: Bools, why: str) -> None:
        self.bad.refuse(str(held[int(np.flatnonzero(bad)[0])]), why)


def as_utf8(lines: bytes) -> bytes:
    """The lines with U+FFFD for what is no UTF-8."""
    try:
        lines.decode()
    except UnicodeDecodeError:
        return lines.decode(errors="replace").encode()
    return lines


def without_blank_lines(text: bytes) -> bytes:
    """The text without lines that hold nothing but blanks, and without its last line end."""
    if _BLANK_BEGIN.search(text):
        text = _BLANK.sub(b"", text)
        last = text.rfind(b"\n") + 1
        if not text[last:].strip(bytes(range(33))):
            text = text[:last]
    return text.removesuffix(b"\n")


def line_array(text: bytes) -> pa.Array:
    """Each line of a text without a last line end as a string."""
    offsets = np.array([0, len(text)], np.int32)
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    return pc.list_flatten(pc.split_pattern(whole, b"\n")).cast(pa.string())


def fields(text: bytes, held: pa.Array, count: int, form: CsvForm) -> tuple[list[pa.Array], Bools | None]:
    """So many columns of texts, and where a line has more or fewer fields: these are cut, or null."""
    odd: list[Any] = []
    quoted = well_quoted(text, held, form.quoting)
    columns = _read(quoted, count, form, odd)
    if not odd:
        if len(columns[0]) != len(held):
            raise pa.ArrowInvalid(f"{len(held)} lines were read as {len(columns[0])} rows")
        return columns, None
    numbers = np.array([row.number - 1 for row in odd], np.int64)
    is_odd = np.zeros(len(held), np.bool_)
    is_odd[numbers] = True
    widths = np.array([row.actual_columns for row in odd], np.int64)
    places = [np.flatnonzero(~is_odd)]
    parts = [columns]
    split = quoted.split(b"\n")
    for width in np.unique(widths).tolist():
        chosen = numbers[widths == width]
        found = _read(b"\n".join(split[place] for place in chosen.tolist()), width, form, [])[:count]
        parts.append(found + [pa.nulls(len(chosen), pa.string())] * (count - len(found)))
        places.append(chosen)
    order = array_of(np.argsort(np.concatenate(places)), pa.int64())
    return [pa.concat_arrays([part[place] for part in parts]).take(order) for place in range(count)], is_odd


def fields_of_line(line: bytes, form: CsvForm) -> list[str]:
    """The texts of one line, however many there are; empty ones for nulls."""
    text = well_quoted(line, line_array(line), form.quoting)
    odd: list[Any] = []
    columns = _read(text, 1, form, odd)
    if odd:
        columns = _read(text, odd[0].actual_columns, form, [])
    return [str(column[0].as_py() or "") for column in columns]


def _read(text: bytes, count: int, form: CsvForm, odd: list[Any]) -> list[pa.Array]:
    """The fields of well quoted lines; those with another number of them are left out, and put into `odd`."""
    import pyarrow.csv as pcsv

    names = [str(place) for place in range(count)]

    def left_out(row: Any) -> str:
        odd.append(row)
        return "skip"

    # Not read_csv: that takes over Ctrl-C while it reads, and keeps a pipe for it.
    with pcsv.open_csv(
        pa.BufferReader(text + b"\n"),  # without it, an empty last field is none to Arrow
        pcsv.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 10), column_names=names),
        pcsv.ParseOptions(
            delimiter=form.quoting.separator, quote_char=form.quoting.quote or False, invalid_row_handler=left_out
        ),
        pcsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=not form.null,
        ),
    ) as reader:
        columns = [one_chunk(column) for column in reader.read_all().columns]
    if form.null:
        null = text_scalar(form.null)
        nothing = pa.nulls(1, pa.string())[0]
        columns = [pc.if_else(pc.equal(column, null), nothing, column) for column in columns]
    return columns


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array, without pandas."""
    chunks = column.chunks or [pa.nulls(0, column.type)]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _mask(mask: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little"))])
