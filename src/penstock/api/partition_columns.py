# SPDX-License-Identifier: Apache-2.0
"""Columns that folder names hold, as in `year=2026/city=Bern/part-0.parquet`, typed as Spark infers them.

A value is an int, else a long, a decimal without a scale, a double, a timestamp, a date, else a string;
`__HIVE_DEFAULT_PARTITION__` is null. A column gets the one type that fits all its values, and is strings where there
is none, and void where all are null. With `spark.sql.sources.partitionColumnTypeInference.enabled=false` all values
are strings. Names and values are unescaped (`%3A`). Files of one source have the same columns, in the same order of
folders.

Facts are those of Spark's own reader, which the tests compare with. Not supported: hexadecimal doubles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SchemaError, SettingError
from penstock.graph import as_written

Column = tuple[str, str]
"""A name and the text of its value, both unescaped."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_INT_DIGITS = {pa.int32(): 10, pa.int64(): 20}
"""The digits of a decimal that holds all numbers of a type, as Spark has it."""
_MAX_DIGITS = 38


@dataclass(frozen=True, slots=True)
class PartitionTyping:
    """The session's settings that say what type a folder's value has."""

    infer: bool = True
    timezone: str = "UTC"
    with_zone: bool = True

    @classmethod
    def of(cls, session: Any) -> PartitionTyping:
        """Those of a session; Spark's own defaults where there is none."""
        conf = getattr(session, "conf", None)
        if conf is None:
            return cls()
        infer = str(conf.get("spark.sql.sources.partitionColumnTypeInference.enabled")).lower() == "true"
        with_zone = str(conf.get("spark.sql.timestampType")) != "TIMESTAMP_NTZ"
        return cls(infer, str(conf.get("spark.sql.session.timeZone")), with_zone)


def folder_columns(within: str) -> tuple[Column, ...]:
    """The columns in the names of the folders on the way from a source's folder to one of its files."""
    found: list[Column] = []
    for part in reversed(PurePosixPath(within).parent.parts):
        name, equals, value = part.partition("=")
        if equals and name and value:
            found.append((unquote(name), unquote(value)))
        elif found:
            break
    return tuple(reversed(found))


def partition_values(
    files: Sequence[tuple[str, tuple[Column, ...]]], typing: PartitionTyping, verb: str = "readParquet"
) -> pa.RecordBatch | None:
    """The columns of files by their folders, one row for each file; None where no folder has any.

    Raises SchemaError for files whose folders do not have the same columns.
    """
    first, columns = files[0]
    names = [name for name, _ in columns]
    for file, own in files:
        if [name for name, _ in own] != names:
            shown = [", ".join(name for name, _ in each) or "none" for each in (columns, own)]
            raise SchemaError(
                f"{verb}: folders' names do not have the same columns: {first} has {shown[0]}, and {file} has"
                f" {shown[1]}. Read the folders as several streams, or name the one folder that has them all"
            )
    if not names:
        return None
    if len(set(names)) != len(names):
        raise SchemaError(f"{verb}: the folders of {first} name a column twice: {', '.join(names)}")
    arrays = [_typed([own[index][1] for _, own in files], typing) for index in range(len(names))]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _typed(texts: Sequence[str], typing: PartitionTyping) -> pa.Array:
    kind = reduce(_wider, (_type_of(text, typing) for text in dict.fromkeys(texts)))
    parse = _parser(kind, typing)
    return pa.array([None if text == _NULL else parse(text) for text in texts], kind)


def _type_of(text: str, typing: PartitionTyping) -> pa.DataType:
    if text == _NULL:
        return pa.null()
    if not typing.infer:
        return pa.string()
    if _INTEGER.fullmatch(text):
        for kind in (pa.int32(), pa.int64()):
            if -(1 << kind.bit_width - 1) <= int(text) < 1 << kind.bit_width - 1:
                return kind
    digits = _whole_digits(text)
    if digits is not None and digits <= _MAX_DIGITS:
        return pa.decimal128(digits, 0)
    if _DOUBLE.fullmatch(text.strip()):
        return pa.float64()
    if _TIMESTAMP.fullmatch(text) and _is_valid(datetime.fromisoformat, text[:19]):
        return pa.timestamp("us", "UTC" if typing.with_zone else None)
    if _DATE.fullmatch(text) and _is_valid(date.fromisoformat, text):
        return pa.date32()
    return pa.string()


def _whole_digits(text: str) -> int | None:
    """The digits of a decimal number without a scale, or None for any other text."""
    if not _DECIMAL.fullmatch(text):
        return None
    _, digits, exponent = Decimal(text).as_tuple()
    return len(digits) + exponent if isinstance(exponent, int) and exponent >= 0 else None


def _is_valid(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a column that has values of both, as Spark resolves it; strings where nothing else fits."""
    if one == other or pt.is_null(other):
        return one
    if pt.is_null(one):
        return other
    kinds = (one, other)
    if all(pt.is_integer(kind) for kind in kinds):
        return pa.int64()
    if all(pt.is_integer(kind) or pt.is_decimal(kind) for kind in kinds):
        return pa.decimal128(max(_INT_DIGITS[k] if pt.is_integer(k) else k.precision for k in kinds), 0)
    if set(kinds) == {pa.int32(), pa.float64()}:
        return pa.float64()
    if any(pt.is_date(kind) for kind in kinds) and any(pt.is_timestamp(kind) for kind in kinds):
        return one if pt.is_timestamp(one) else other
    return pa.string()


def _parser(kind: pa.DataType, typing: PartitionTyping) -> Callable[[str], Any]:
    if pt.is_integer(kind):
        return int
    if pt.is_decimal(kind):
        return Decimal
    if pt.is_floating(kind):
        return lambda text: float(text.strip().rstrip("fFdD"))
    if pt.is_date(kind):
        return date.fromisoformat
    if pt.is_timestamp(kind):
        zone = _zone(typing.timezone) if kind.tz is not None else None
        return lambda text: _instant(text, zone)
    return str


def _instant(text: str, zone: ZoneInfo | None) -> datetime:
    head, _, fraction = text.partition(".")
    found = datetime.fromisoformat(head).replace(microsecond=int(fraction.ljust(6, "0")[:6] or 0))
    return found if zone is None else found.replace(tzinfo=zone).astimezone(UTC)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise SettingError(
            f"readParquet: folders' names have timestamps, and the session's time zone {name!r} is not known to "
            "Python: set spark.sql.session.timeZone to a name such as Europe/Zurich"
        ) from None


def with_folders(schema: pa.Schema, folders: pa.RecordBatch | None, *, is_case_sensitive: bool) -> pa.Schema:
    """The files' columns, and those of their folders after them or in place of one of the same name."""
    for field in folders.schema if folders is not None else ():
        place = schema.get_field_index(field.name if is_case_sensitive else as_written(schema, field.name))
        schema = schema.append(field) if place < 0 else schema.set(place, field)
    return schema


def declared_values(
    found: pa.RecordBatch, texts: pa.RecordBatch, declared: pa.Schema, verb: str, *, is_case_sensitive: bool
) -> tuple[pa.RecordBatch, pa.Schema]:
    """The folders' columns in the types that a schema has for them, and the schema's other columns."""
    arrays, own = [], []
    for field, column, text in zip(found.schema, found.columns, texts.columns, strict=True):
        name = field.name if is_case_sensitive else as_written(declared, field.name)
        place = declared.get_field_index(name)
        wanted = field if place < 0 else declared.field(place)
        declared = declared if place < 0 else declared.remove(place)
        try:
            arrays.append(column if column.type.equals(wanted.type) else text.cast(wanted.type))
        except pa.ArrowException as error:
            raise SchemaError(
                f"{verb}: names of folders say {field.name}, which is {field.type} there and {wanted.type} in the"
                f" schema ({error}): leave it out of the schema, or declare {field.type}"
            ) from error
        own.append(field.with_type(wanted.type).with_name(wanted.name))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(own)), declared


def constant(values: pa.Array, row: int, count: int) -> pa.Array:
    """One of the values, repeated for `count` rows."""
    return pa.nulls(count, values.type) if not values[row].is_valid else pa.repeat(values[row], count)


def names_of(values: pa.RecordBatch | None) -> Iterable[str]:
    """The names of the columns that folders hold."""
    return () if values is None else values.schema.names
