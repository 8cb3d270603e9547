# SPDX-License-Identifier: Apache-2.0
"""Rows of states as tuples of Python values and back, as PySpark's processors give and get them.

A value has one form from the moment in which a processor gives it, so its own call finds what later ones find: rows
for structs, dictionaries for maps, lists, and for instants the times without a zone at the place of the process, as
PySpark makes them. A value that does not fit stays as it is until a batch is made of it, which names the column.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SchemaError
from penstock.operators.conform import refuse_broken
from penstock.stream.state.variables import VariableSpec

Value = tuple[Any, ...]
Change: TypeAlias = Callable[[Any], Any] | None
"""Makes one value of another; None: it stays as it is. It never gets a null."""
RowMaker = Callable[[list[str]], Callable[[Value], Any]]
"""Makes, of column names, what makes a row of a tuple."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000
_DIGITS: Final = Context(prec=38)
_NAN: Final = float("nan")
"""The one object for it among keys: tuples with two of them would not be equal."""


@dataclass(frozen=True, slots=True)
class Form:
    """The changes between values of a type that are kept and those of others."""

    kept: Change = None
    """Of what a processor gives."""
    read: Change = None
    """Of what Arrow gives."""
    shown: Change = None
    """To what a processor gets, which may change it."""
    stored: Change = None
    """To what Arrow takes."""


class RowForm:
    """The rows of a state, or with `is_key` those by which a map finds its values: equal ones are one."""

    def __init__(self, schema: pa.Schema, what: str, make_rows: RowMaker, *, is_key: bool = False) -> None:
        self._schema = schema
        self._what = what
        forms = [_key_form(field.type) if is_key else _form(field.type, make_rows) for field in schema]
        self._read = [_reader(field.type, form, is_key=is_key) for field, form in zip(schema, forms, strict=True)]
        self._stored = _of_rows([form.stored for form in forms])
        self.kept: Callable[[Iterable[Any]], Value] = _of_rows([form.kept for form in forms]) or tuple
        """Makes a kept value of what a processor gives."""
        self.shown = _of_rows([form.shown for form in forms])
        """Makes what a processor gets of a kept value; None: it gets that."""
        self.as_row = make_rows(list(schema.names))
        """Makes a row of a tuple."""

    def read(self, rows: pa.RecordBatch) -> Iterator[Value]:
        """The kept values of rows."""
        return zip(*(read(column) for read, column in zip(self._read, rows.columns, strict=True)), strict=True)

    def batch(self, values: list[Value]) -> pa.RecordBatch:
        """A batch of kept values; raises SchemaError, which names the column that does not fit."""
        return batch_of(list(map(self._stored, values)) if self._stored else values, self._schema, self._what)


class EntryForm:
    """The entries of a map: a dictionary of kept keys and values, as a processor is given them."""

    def __init__(self, spec: VariableSpec, what: str, make_rows: RowMaker) -> None:
        assert spec.keys is not None  # noqa: S101 - a map has them
        self.keys = RowForm(spec.keys, f"the keys of {what}", make_rows, is_key=True)
        self.values = RowForm(spec.schema, what, make_rows)
        self.key = self.keys.kept
        """Makes a kept key of what a processor gives."""
        self.row = _row_of(self.values.as_row, self.values.shown)
        """Makes a row of a kept value."""

    def own(self, entries: dict[Value, Value]) -> Iterator[Value]:
        """The keys."""
        return iter([*entries] if self.keys.shown is None else [*map(self.keys.shown, entries)])

    def shown(self, entries: dict[Value, Value]) -> Iterator[Value]:
        """The values."""
        values = entries.values()
        return iter([*values] if self.values.shown is None else [*map(self.values.shown, values)])

    def entries(self, entries: dict[Value, Value]) -> Iterator[tuple[Value, Value]]:
        """The keys with their values."""
        return zip(self.own(entries), self.shown(entries), strict=True)


def may_change(schema: pa.Schema) -> bool:
    """Tell whether values of such columns can be changed: lists, dictionaries and bytes."""
    return any(pt.is_nested(field.type) or pt.is_binary(field.type) for field in schema)


def tuples_of(rows: pa.RecordBatch) -> Iterator[Value]:
    """The rows as tuples of Python values."""
    return zip(*[column.to_pylist() for column in rows.columns], strict=True)


def batch_of(values: list[Any], schema: pa.Schema, what: str) -> pa.RecordBatch:
    """A batch of tuples of Python values; raises SchemaError, which names the column that does not fit."""
    width = len(schema)
    if any(len(value) != width for value in values):
        wrong = next(value for value in values if len(value) != width)
        raise SchemaError(f"{what} has the columns {', '.join(schema.names)}, and was given {wrong!r}")
    columns = zip(*values, strict=True) if values else ((),) * width
    arrays = []
    for field, column in zip(schema, columns, strict=True):
        try:
            array = pa.array(column, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"{what}: column {field.name!r} is declared {field.type}, and got {error}") from error
        refuse_broken(array, field, what)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _of_rows(changes: Sequence[Change]) -> Callable[[Iterable[Any]], Value] | None:
    """A change of whole rows; None where no column changes."""
    if not any(changes):
        return None

    def changed(row: Iterable[Any]) -> Value:
        values = tuple(row)
        if len(values) != len(changes):
            return values
        try:
            return tuple([_changed(value, change) for value, change in zip(values, changes, strict=True)])
        except (TypeError, ValueError, ArithmeticError):
            return values

    return changed


def _row_of(as_row: Callable[[Value], Any], shown: Change) -> Callable[[Value], Any]:
    return as_row if shown is None else lambda value: as_row(shown(value))


def _changed(value: Any, change: Change) -> Any:
    return value if value is None or change is None else change(value)


def _reader(kind: pa.DataType, form: Form, *, is_key: bool) -> Callable[[pa.Array], list[Any]]:
    """Makes the kept values of a column."""
    if _is_instant(kind) and kind.unit == "us":  # to make an object of a zone of each takes most of the time
        if is_key:
            return lambda column: column.view(pa.int64()).to_pylist()
        return lambda column: [_changed(each, _local) for each in column.view(pa.int64()).to_pylist()]
    if form.read is None:
        return lambda column: column.to_pylist()
    return lambda column: [_changed(each, form.read) for each in column.to_pylist()]


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind)) and kind.tz is not None


def _key_form(kind: pa.DataType) -> Form:
    """That of a type by which a map finds its values: none of them is nested."""
    if _is_instant(kind):  # in the hour that comes twice two instants have one local time
        return Form(_microseconds, _microseconds, _local, None if kind.unit == "us" else _instant)
    if pt.is_floating(kind):
        return Form(_float_key(_single if pt.is_float32(kind) else float), _float_key(float))
    return _leaf_form(kind)


def _form(kind: pa.DataType, make_rows: RowMaker) -> Form:
    if pt.is_struct(kind):
        return _struct_form(kind, make_rows)
    if pt.is_map(kind):
        return _map_form(_form(kind.key_type, make_rows), _form(kind.item_type, make_rows))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _list_form(_form(kind.value_type, make_rows))
    return _leaf_form(kind)


def _leaf_form(kind: pa.DataType) -> Form:
    if _is_instant(kind):
        return Form(
            lambda value: _local(_microseconds(value)), lambda value: _local(_microseconds(value)), None, _utc
        )
    if pt.is_float32(kind):
        return Form(_single)
    if pt.is_decimal(kind):
        return Form(_decimal(kind.scale))
    if pt.is_date(kind):
        return Form(_date)
    return Form(_bytes) if pt.is_binary(kind) or pt.is_large_binary(kind) else Form()


def _struct_form(kind: pa.StructType, make_rows: RowMaker) -> Form:
    names = [field.name for field in kind]
    forms = [_form(field.type, make_rows) for field in kind]
    row = make_rows(names)

    def made(values: Iterable[Any], changes: Iterable[Change]) -> Any:
        return row(tuple([_changed(value, change) for value, change in zip(values, changes, strict=True)]))

    def kept(value: Any) -> Any:
        if isinstance(value, str | bytes):
            raise TypeError
        values = [value.get(name) for name in names] if isinstance(value, dict) else value
        return made(values, [form.kept for form in forms])

    def read(value: dict[str, Any]) -> Any:
        return made([value[name] for name in names], [form.read for form in forms])

    def shown(value: Value) -> Any:
        return made(value, [form.shown for form in forms])

    stored = _of_rows([form.stored for form in forms])
    return Form(kept, read, shown if any(form.shown for form in forms) else None, stored)


def _list_form(item: Form) -> Form:
    def each(change: Change) -> Callable[[Any], list[Any]]:
        return lambda values: [_changed(value, change) for value in values]

    def kept(values: Any) -> Any:
        if isinstance(values, str | bytes | dict):
            raise TypeError
        return [_changed(value, item.kept) for value in values]

    return Form(
        kept,
        each(item.read) if item.read else None,
        each(item.shown),
        each(item.stored) if item.stored else None,
    )


def _map_form(key: Form, item: Form) -> Form:
    def changed(of_keys: Change, of_items: Change) -> Callable[[Any], dict[Any, Any]]:
        return lambda value: {
            _changed(one, of_keys): _changed(other, of_items)
            for one, other in (value.items() if isinstance(value, dict) else value)
        }

    stored = None
    if key.stored or item.stored:
        stored = changed(key.stored, item.stored)
    return Form(changed(key.kept, item.kept), changed(key.read, item.read), changed(key.shown, item.shown), stored)


def _microseconds(value: datetime) -> int:
    """The instant of a time; one without a zone is of the place of the process."""
    if hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime()
    return ((value if value.tzinfo else value.astimezone(UTC)) - _EPOCH) // _MICROSECOND


def _local(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // _SECOND).replace(microsecond=microseconds % _SECOND)  # noqa: DTZ006


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _instant(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _single(value: float) -> float:
    return ctypes.c_float(value).value


def _float_key(number: Callable[[Any], float]) -> Callable[[Any], float]:
    """Makes one of -0.0 and 0.0, and of all that are no number."""

    def key(value: Any) -> float:
        found = number(value) + 0.0
        return found if found == found else _NAN

    return key


def _decimal(scale: int) -> Callable[[Any], Any]:
    unit = Decimal(1).scaleb(-scale)

    def change(value: Any) -> Any:
        scaled = _DIGITS.quantize(Decimal(value), unit) if isinstance(value, Decimal | int) else value
        return scaled if scaled == value else value

    return change


def _date(value: date) -> date:
    return value.date() if isinstance(value, datetime) else value


def _bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
