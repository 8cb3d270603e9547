# SPDX-License-Identifier: Apache-2.0
"""Expressions as plain, picklable data: what Spark's analyser made of a column's text, in Spark's own terms.

A `Call` carries the name Spark's analyser has for it (`Add`, `Cast`, `TruncTimestamp`), and all its arguments have
been brought to the types that function takes, because Spark puts its implicit casts into the tree. So nothing here
infers types. An `ArrowExpression` is one of `pyarrow.compute`, for streams without a Spark session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError

Option = str | int | bool | None


class UnsupportedError(Exception):
    """A kernel's refusal: Arrow has nothing that gives Spark's answer for this."""


class ValuesError(SchemaError):
    """Values for which Spark raises an error too: a division by zero, an overflow, text that is no number."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRef:
    """A column of the rows, in the type Spark has for it."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """One value: an array of length one, because that can be unpacked in a worker without importing pandas."""

    array: pa.Array

    @property
    def type(self) -> pa.DataType:
        """The value's type."""
        return self.array.type

    @property
    def scalar(self) -> pa.Scalar:
        """The value."""
        return self.array[0]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A function of Spark's over its arguments; `options` are what it was made with, by Spark's names."""

    function: str
    type: pa.DataType
    arguments: tuple[Expression, ...] = ()
    options: tuple[tuple[str, Option], ...] = ()

    def option(self, name: str) -> Option:
        """One option, or None."""
        return dict(self.options).get(name)

    @property
    def is_ansi(self) -> bool:
        """True if it raises an error for values that have no result, rather than giving null."""
        return self.option("mode") == "ANSI"

    @property
    def zone(self) -> str:
        """The session's time zone at the time the expression was written."""
        return str(self.option("zone") or "UTC")

    def text(self, position: int) -> str:
        """An argument that must be a constant string."""
        value = self.constant(position)
        if not isinstance(value, str):
            raise UnsupportedError(f"{self.function} of a null in place of a text")
        return value

    def integer(self, position: int) -> int:
        """An argument that must be a constant whole number."""
        value = self.constant(position)
        if not isinstance(value, int):
            raise UnsupportedError(f"{self.function} of a null in place of a number")
        return value

    def constant(self, position: int) -> object:
        """The value of an argument that must be a constant."""
        argument = self.arguments[position]
        if not isinstance(argument, Constant):
            raise UnsupportedError(f"{self.function} with an argument {position + 1} that is not a constant")
        return argument.scalar.as_py()


@dataclass(frozen=True, slots=True, eq=False)
class ArrowExpression:
    """An expression of `pyarrow.compute`, with Arrow's meaning; `columns` are those it reads."""

    expression: pc.Expression
    type: pa.DataType
    columns: tuple[str, ...]


Expression = ColumnRef | Constant | Call | ArrowExpression


def parts(expression: Expression) -> Iterator[Expression]:
    """The expression and everything in it."""
    yield expression
    if isinstance(expression, Call):
        for argument in expression.arguments:
            yield from parts(argument)


def columns_of(expression: Expression) -> tuple[str, ...]:
    """The columns that are read, each once."""
    names: list[str] = []
    for part in parts(expression):
        if isinstance(part, ColumnRef):
            names.append(part.name)
        elif isinstance(part, ArrowExpression):
            names += part.columns
    return tuple(dict.fromkeys(names))


def conjuncts(condition: Expression) -> list[Expression]:
    """The conditions that `AND` joins."""
    if isinstance(condition, Call) and condition.function == "And":
        return [part for argument in condition.arguments for part in conjuncts(argument)]
    return [condition]
