# SPDX-License-Identifier: Apache-2.0
"""Random rows of any columns, and how two tables are told apart."""

from __future__ import annotations

import operator
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.types as pt

from penstock.api import delta, iceberg
from penstock.api.conditions import Condition
from penstock.api.iceberg_scan import IcebergSource
from penstock.api.parquet import ParquetSource
from penstock.api.stream import Stream
from penstock.api.writing import WrittenFile
from penstock.operators.file_write import STATUS_SCHEMA
from penstock.testing.local_runner import run_local

NAMES = "abcxyz"
HERE = object()
"""Stands for a session in streams that are written: the rows are written in this process."""

_OLD = (-1_000_000_000, -12_219_000_000, -59_000_000_000)
"""Seconds from 1970: of the last century, days after the change of calendars, and of the Middle Ages."""
_DAY = 86_400
_HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}


class Draw:
    """What chance says about rows: values differ, so that one in another row or column is seen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self._given = 0

    def table(self, schema: pa.Schema, rows: int = 3) -> pa.Table:
        """So many rows."""
        return pa.Table.from_pylist([{each.name: self._value(each) for each in schema} for _ in range(rows)], schema)

    def _value(self, field: pa.Field) -> Any:
        kind = field.type
        if self.random.random() < 0.2:
            return None
        self._given += 1
        if pt.is_struct(kind):
            return {each.name: self._value(each) for each in kind}
        if pt.is_list(kind) or pt.is_large_list(kind):
            return [self._value(kind.value_field) for _ in range(self.random.randint(0, 2))]
        if pt.is_map(kind):
            return [(f"k{number}", self._value(kind.item_field)) for number in range(self.random.randint(0, 2))]
        if pt.is_string(kind) or pt.is_large_string(kind):
            return f"w{self._given}"
        if pt.is_boolean(kind):
            return self.random.random() < 0.5
        if pt.is_date(kind) or pt.is_timestamp(kind):
            return self._time(kind)
        if pt.is_decimal(kind):
            return Decimal(self._given)
        return float(self._given) if pt.is_floating(kind) else self._given

    def _time(self, kind: pa.DataType) -> int:
        """Days, or microseconds of whole milliseconds; some are old."""
        start: int = self.random.choice(_OLD) if self.random.random() < 0.4 else 0
        if pt.is_date(kind):
            return start // _DAY + self._given
        return start * 10**6 + self._given * 1000


@contextmanager
def writing_here() -> Iterator[None]:
    """What `writeDelta` and `writeIceberg` write in this block is written in this process, without Spark."""

    def write(stream: Stream, writing: Any, prepare: Callable[[], None]) -> list[WrittenFile]:
        prepare()
        found = run_local(stream.applied(writing, STATUS_SCHEMA))
        return [WrittenFile(*row.values()) for row in found.to_pylist()]

    with mock.patch.object(delta, "write_files", write), mock.patch.object(iceberg, "write_files", write):
        yield


def read(source: ParquetSource | IcebergSource) -> pa.Table:
    """The rows that two tasks read, after a trip through pickle."""
    own = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    return pa.Table.from_batches([batch for task in range(2) for batch in own.read(task, 2)], own.schema)


def texts(rows: list[dict[str, Any]]) -> list[str]:
    """Rows to compare, in an order of their own."""
    return sorted(map(str, rows))


def differences(
    what: str, source: ParquetSource | IcebergSource, right: list[dict[str, Any]] | None, draw: Draw
) -> list[str]:
    """The ways in which a source's rows are not these, all of them and those for which a random condition holds.

    None stands for rows that the table's owner refuses to read: then they are refused here too.
    """
    if right is None:
        try:
            return [f"{what}: {read(source).to_pylist()}, which the library refuses"]
        except Exception:  # noqa: BLE001 - in the library's own words
            return []
    found = read(source)
    wrong = [] if texts(found.to_pylist()) == texts(right) else [f"{what}: {found.to_pylist()} in place of {right}"]
    plain = [each for each in found.schema if not pt.is_nested(each.type)]
    if plain and not wrong:
        given, kept = _condition(draw, draw.random.choice(plain), right)
        found = read(source.narrowed(source.columns, [given]))
        if texts(found.to_pylist()) != texts(kept):
            wrong.append(f"{what}, {given}: {found.to_pylist()} in place of {kept}")
    return wrong


def _condition(draw: Draw, field: pa.Field, rows: list[dict[str, Any]]) -> tuple[Condition, list[dict[str, Any]]]:
    """A condition on a column, and the rows for which it holds."""
    there = [row for row in rows if row[field.name] is not None]
    if not there or draw.random.random() < 0.2:
        return Condition("IsNotNull", field.name, pa.nulls(0, field.type)), there
    value, test = draw.random.choice(there)[field.name], draw.random.choice(list(_HOLDS))
    given = Condition(test, field.name, pa.array([value], field.type))
    return given, [row for row in there if _HOLDS[test](row[field.name], value)]
