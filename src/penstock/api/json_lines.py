# SPDX-License-Identifier: Apache-2.0
"""Lines of JSON as rows: Arrow's reader takes them all at once; where it can't, halves find the lines that are bad.

Lines near a bad one are looked at field by field: what fits is kept, as in Spark. Limits: a line whose object another
reader would take otherwise is an error in each mode: an array of objects, single quotes, and a number, list or object
where a string is declared, of which Spark takes the text. Columns of bytes, which Spark reads as base64, and of maps
are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.bad_lines import BadLines
from penstock.api.csv_lines import as_utf8, line_array, one_chunk, without_blank_lines
from penstock.api.json_numbers import WORDS, JsonNumbers
from penstock.errors import SettingError
from penstock.operators.line_times import as_text, timed
from penstock.operators.line_values import has_decimals, typed

Values = dict[str, Any]

_INNER_LINE = re.compile(rb"\n[\x00-\x20]*[^{\x00-\x20]|[^}\x00-\x20][\x00-\x20]*\n")
"""The place of a line that neither begins nor ends as an object does: Arrow may see one object in several lines."""
_FEW_LINES = 256
"""Among more lines halves find the bad ones; of so few each is looked at, and what fits is read at once."""
_WHOLE = re.compile("-?[0-9]{1,40}$")
_SHORT = 300
"""Fewer digits are a double, though it may be an infinite one."""
_NULL_LINE = re.compile(rb"(?:\A|\n)[\x00-\x20]*null")


@dataclass(frozen=True, slots=True)
class JsonLines:
    """An object on each line; fields that the schema does not name are left out, those that lack are null."""

    schema: pa.Schema
    zone: str = "UTC"
    bad: BadLines = field(default_factory=BadLines)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "json"

    @property
    def skips_first(self) -> bool:
        """Every line is a row."""
        return False

    def rows(self, lines: bytes) -> pa.RecordBatch:
        """The rows; raises pa.ArrowInvalid for what ends the job."""
        text = without_blank_lines(as_utf8(lines))
        if not text:
            return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in self.schema], schema=self.schema)
        data = self.bad.data(self.schema)
        count = text.count(b"\n") + 1
        found = _JsonReader(data, self.zone, self.bad)
        parts = found.read(text.split(b"\n")) if (whole := found.parsed(text, count)) is None else [whole]
        bad = None
        if found.places:
            bad = np.zeros(count, np.bool_)
            bad[found.places] = True
        columns = [pa.concat_arrays([part[place] for part in parts]) for place in range(len(data))]
        if not columns and self.bad.column not in self.schema.names:  # which a batch would have no rows of
            return pa.RecordBatch.from_arrays([pa.nulls(count)], names=[""]).select([])
        return self.bad.rows(columns, bad, line_array(text), self.schema)


def refuse_columns(schema: pa.Schema, verb: str) -> None:
    """Raise SettingError for columns that Arrow's JSON reader reads otherwise than Spark, or not at all.

    Spark reads base64 into columns of bytes, and Arrow the text itself. Arrow reads no objects into maps.
    """
    for each in schema:
        if _holds(each.type, pt.is_map):
            raise SettingError(
                f"{verb}: column {each.name!r} is {each.type}, and JSON is not read into maps: declare it as a "
                "struct of the names that you need, or read lines (readText) and parse them with mapInArrow"
            )
        if _holds(each.type, pt.is_binary):
            raise SettingError(
                f"{verb}: column {each.name!r} is {each.type}, which JSON has as base64: declare it as string, and "
                "decode it with mapInArrow"
            )


def _holds(kind: pa.DataType, asked: Callable[[pa.DataType], bool]) -> bool:
    return asked(kind) or any(_holds(kind.field(place).type, asked) for place in range(kind.num_fields))


class _JsonReader:
    """Reads portions of lines; `places` are those of the bad ones, from the begin of all."""

    def __init__(self, data: pa.Schema, zone: str, bad: BadLines) -> None:
        self._data = data
        self._zone = zone
        self._bad = bad
        self._wanted = pa.schema([each.with_type(as_text(each.type)).with_nullable(True) for each in data])
        self._numbers = JsonNumbers(None) if bad.found else JsonNumbers.of(self._wanted)
        self._row = pa.struct(list(data))
        self._known: dict[tuple[type, Any, pa.DataType], tuple[Any, bool]] = {}
        """Whether single values fit: bad lines often have the same ones."""
        self.places: list[int] = []

    def parsed(self, text: bytes, count: int) -> list[pa.Array] | None:
        """The columns of so many lines; None where they do not fit, or are not one object each."""
        import pyarrow.json as pj

        options = pj.ParseOptions(explicit_schema=self._wanted, unexpected_field_behavior="ignore")
        read = pj.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 10))
        if _NULL_LINE.search(text):  # no object, but a row of nulls to Arrow
            return None
        if not _is_object_by_line(text, count):
            return None
        try:
            table = pj.read_json(pa.BufferReader(self._numbers.bare(text)), read, options)
            if table.num_rows != count:
                return None
            columns = [one_chunk(table.column(place)) for place in range(len(self._data))]
            for column in columns:
                if has_decimals(column.type):  # which Arrow reads with more digits than declared
                    column.validate(full=True)
            return [timed(column, each, self._zone) for column, each in zip(columns, self._data, strict=True)]
        except pa.ArrowInvalid:
            return None

    def read(self, lines: list[bytes], begin: int = 0) -> list[list[pa.Array]]:
        """The columns of lines of which one at least is bad, in pieces."""
        if len(lines) <= _FEW_LINES:
            return [self._mended(lines, begin)]
        half = len(lines) // 2
        pieces: list[list[pa.Array]] = []
        for portion, start in ((lines[:half], begin), (lines[half:], begin + half)):
            whole = self.parsed(b"\n".join(portion), len(portion))
            pieces += [whole] if whole is not None else self.read(portion, start)
        return pieces

    def _mended(self, lines: list[bytes], begin: int) -> list[pa.Array]:
        """The columns of what fits of each line."""
        mended = [self._mended_line(line, begin + number) for number, line in enumerate(lines)]
        columns = self.parsed(b"\n".join(mended), len(mended))
        if columns is None:
            worst = next(number for number, line in enumerate(mended) if self.parsed(line, 1) is None)
            raise _unclear(lines[worst].decode(), "a value")
        return columns

    def _mended_line(self, text: bytes, place: int) -> bytes:
        line = text.decode()
        found = _object(line)
        kept, fits = ({}, False) if found is None else self._fitting(found, self._row, line)
        if not fits:
            if self._bad.found:
                raise _unclear(line, "a value that is none of the types of the first lines, and")
            self._bad.refuse(line, "there is no object" if found is None else "a value does not fit the schema")
            self.places.append(place)
        return _text(kept).encode()

    def _fitting(self, value: Any, kind: pa.DataType, line: str) -> tuple[Any, bool]:
        """The part of a value that Spark would keep, and whether it is all; pa.ArrowInvalid where that is unknown."""
        if value is None:
            return None, True
        if pt.is_struct(kind):
            return self._fields(value, kind, line) if isinstance(value, dict) else (None, False)
        if pt.is_string(kind):
            if isinstance(value, dict | list):
                raise _unclear(line, "an object where a string is declared")
            return str(value).lower() if isinstance(value, bool) else str(value), True
        if isinstance(value, dict | list):
            return self._single(value, kind, line)
        known = (type(value), value, kind)
        if known not in self._known:
            self._known[known] = self._single(value, kind, line)
        return self._known[known]

    def _fields(self, value: Values, kind: pa.DataType, line: str) -> tuple[Any, bool]:
        there = [each for each in kind if each.name in value]
        found = [self._fitting(value[each.name], each.type, line) for each in there]
        kept = {each.name: item for each, (item, _) in zip(there, found, strict=True)}
        return kept, all(fits for _, fits in found)

    def _single(self, value: Any, kind: pa.DataType, line: str) -> tuple[Any, bool]:
        if pt.is_integer(kind) and isinstance(value, _Number) and _WHOLE.match(value):
            return (
                (value, True) if -(1 << kind.bit_width - 1) <= int(value) < 1 << kind.bit_width - 1 else (None, False)
            )
        if pt.is_floating(kind) and isinstance(value, _Number) and len(value) < _SHORT:
            return value, True
        if isinstance(value, str) and (
            pt.is_boolean(kind)
            or (not isinstance(value, _Number) and pt.is_integer(kind))
            or (pt.is_floating(kind) and value.encode() not in WORDS)
        ):
            return None, False
        if pt.is_temporal(kind) and isinstance(value, str):
            return self._time(value, kind, line)
        reader = _JsonReader(pa.schema([pa.field("value", kind)]), self._zone, self._bad)
        if reader.parsed(_text({"value": value}).encode(), 1) is not None:
            return value, True
        if _is_number_to_spark(value, kind):
            raise _unclear(line, f"{str(value)[:40]!r} as {kind}")
        return None, False

    def _time(self, value: str, kind: pa.DataType, line: str) -> tuple[Any, bool]:
        if isinstance(value, _Number):
            if pt.is_date(kind):
                return None, False
            raise _unclear(line, "a number where a time is declared")
        if value.strip().isdigit():
            raise _unclear(line, f"{value[:40]!r} as {kind}")
        found, _ = typed(_strings(value), pa.field("value", kind), self._zone)
        if found.null_count:
            return None, False
        return str(found.cast(pa.string())[0]), True


def _is_object_by_line(text: bytes, count: int) -> bool:
    """Tell whether no object goes over the end of a line; false also if only a look at the lines can tell."""
    most = count - 1
    return text.count(b"}\n{") == most or not _INNER_LINE.search(text)


def _is_number_to_spark(value: Any, kind: pa.DataType) -> bool:
    """Tell whether Spark may read it as a number of a type in which Arrow does not."""
    if pt.is_floating(kind):
        return isinstance(value, _Number) or str(value).encode() in WORDS
    if not (pt.is_decimal(kind) and isinstance(value, str)):
        return False
    try:
        return bool(abs(float(value)) < 10.0 ** (kind.precision - kind.scale))
    except ValueError:
        return False


def _object(line: str) -> Values | None:
    """The object of a line, None where there is none; raises pa.ArrowInvalid for what Spark may read."""
    try:
        found, _ = _DECODER.raw_decode(line.strip())  # what follows is not looked at, as in Spark
    except ValueError:
        if "'" in line:
            raise _unclear(line, "single quotes") from None
        return None
    if isinstance(found, list):
        raise _unclear(line, "an array of objects")
    return found if isinstance(found, dict) else None


def _unclear(line: str, what: str) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(
        f"{what} in the line {line[:200]!r} can't be read here, and may be a value to Spark: mend the line, declare "
        "another type, or read the file by fromDataFrame"
    )


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _text(value: Any) -> str:
    """A value as JSON, with numbers as they were written."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)


def _strings(text: str) -> pa.Array:
    return line_array(text.replace("\n", " ").encode())


_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_Number)
