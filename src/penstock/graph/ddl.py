# SPDX-License-Identifier: Apache-2.0
"""Spark's DDL schema strings as Arrow schemas, without a JVM.

Accepts what Spark's own parser accepts as a table schema (`a int, b: array<string> NOT NULL COMMENT 'x'`) or as one
struct type (`struct<a: int>`), and gives the types PySpark's Arrow exchange uses: `timestamp` is `timestamp[us,
UTC]`, `timestamp_ntz` has no zone, day-time intervals are `duration[us]`, `char(n)` and `varchar(n)` are strings,
`void` is Arrow's null. Details that the Arrow type does not tell (a collation, `interval hour`, `time(3)`) stay in
the field's metadata (`spark_types`). Comments are read and dropped.

Limits: types that have no Arrow form in PySpark (year-month intervals, `variant`, `geometry`, `geography`) are
refused by name. Default values and generated columns belong to tables and are refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.graph.spark_types import collated, with_spark_type

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)*`)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")
      | (?P<number>\d+(?![A-Za-z_]))
      | (?P<word>\w+)
      | (?P<sign>[<>,:()])
    )""",
    re.VERBOSE | re.DOTALL,
)

_SIMPLE: dict[str, Callable[[], pa.DataType]] = {
    "boolean": pa.bool_,
    "tinyint": pa.int8,
    "byte": pa.int8,
    "smallint": pa.int16,
    "short": pa.int16,
    "int": pa.int32,
    "integer": pa.int32,
    "bigint": pa.int64,
    "long": pa.int64,
    "float": pa.float32,
    "real": pa.float32,
    "double": pa.float64,
    "date": pa.date32,
    "timestamp": lambda: pa.timestamp("us", "UTC"),
    "timestamp_ltz": lambda: pa.timestamp("us", "UTC"),
    "timestamp_ntz": lambda: pa.timestamp("us"),
    "binary": pa.binary,
    "void": pa.null,
}
_LENGTHS = {"char", "character", "varchar"}
_DECIMALS = {"decimal", "dec", "numeric"}
_DAY_TIME = ("day", "hour", "minute", "second")
_YEAR_MONTH = ("year", "month")
_NO_ARROW = {"variant", "geometry", "geography"}
_MAX_DECIMAL = 38
_DECIMAL_PRECISION = 10
_MAX_TIME = 9
_TIME_DIGITS = 6
"""The digits of `time` without a number, and those that Spark takes Arrow's times for."""

_Typed = tuple[pa.DataType, str | None]
"""A type, and Spark's name for it where the Arrow type does not tell."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def parse_ddl(text: str) -> pa.Schema:
    """The Arrow schema of a DDL string; raises SchemaError that shows the place."""
    parser = _Parser(text)
    if parser.starts_with_struct():
        parser.next()
        fields = parser.struct_fields()
    else:
        fields = parser.fields(())
    parser.expect_end()
    return pa.schema(fields)


def _tokens(text: str) -> list[_Token]:
    tokens = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise _error(text, start, f"{text[start]!r} does not belong in a schema")
        tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        position = match.end()
    tokens.append(_Token("end", "", end))
    return tokens


def _error(text: str, position: int, problem: str) -> SchemaError:
    shown = text.replace("\n", " ").replace("\t", " ")
    return SchemaError(f"{problem} at position {position} of the schema:\n  {shown}\n  {' ' * position}^")


class _Parser:
    """Recursive descent over one schema string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0

    def starts_with_struct(self) -> bool:
        """Tell whether the whole text is one struct type rather than a list of columns."""
        return self._tokens[0].text.lower() == "struct" and self._tokens[1].text == "<"

    def next(self) -> _Token:
        """Take one token."""
        token = self._tokens[self._index]
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def expect_end(self) -> None:
        """Refuse anything that is left."""
        if self._peek().kind != "end":
            raise self._problem(f"unexpected {self._peek().text!r}")

    def fields(self, closing: tuple[str, ...]) -> list[pa.Field]:
        """Columns separated by commas, up to the end or to a closing sign."""
        if self._at_end(closing):
            return []
        found = [self._field()]
        while self._peek().text == ",":
            self.next()
            found.append(self._field())
        if not self._at_end(closing):
            expected = closing[0] if closing else "a comma or the end"
            raise self._problem(f"expected {expected}, found {self._peek().text or 'the end'!r}")
        return found

    def struct_fields(self) -> list[pa.Field]:
        """The columns between `<` and `>`."""
        self._sign("<")
        fields = self.fields((">",))
        self._sign(">")
        return fields

    def _at_end(self, closing: tuple[str, ...]) -> bool:
        token = self._peek()
        return token.text in closing if closing else token.kind == "end"

    def _field(self) -> pa.Field:
        token = self.next()
        if token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
        elif token.kind == "word":
            name = token.text
        else:
            raise self._problem(f"expected a column name, found {token.text or 'the end'!r}", token)
        if self._peek().text == ":":
            self.next()
        kind, spark_name = self._type()
        nullable = self._nullable()
        if pa.types.is_null(kind) and not nullable:
            raise self._problem(f"column {name!r} of type void cannot be NOT NULL", token)
        return with_spark_type(pa.field(name, kind, nullable=nullable), spark_name)

    def _nullable(self) -> bool:
        nullable = True
        if self._word_is("not"):
            self.next()
            if not self._word_is("null"):
                raise self._problem("expected NULL after NOT")
            self.next()
            nullable = False
        if self._word_is("comment"):
            self.next()
            token = self.next()
            if token.kind != "text":
                raise self._problem("expected a quoted text after COMMENT", token)
        return nullable

    def _type(self) -> _Typed:
        token = self.next()
        word = token.text.lower()
        if token.kind != "word":
            raise self._problem(f"expected a type, found {token.text or 'the end'!r}", token)
        if word in _SIMPLE:
            return _SIMPLE[word](), None
        if word == "string":
            return pa.string(), self._collation()
        if word in _LENGTHS:
            self._numbers(token, 1, 1)
            return pa.string(), None
        if word in _DECIMALS:
            return self._decimal(token), None
        if word in ("array", "map", "struct"):
            return self._nested(word), None
        if word == "interval":
            return self._interval(token)
        if word == "time":
            return self._time(token)
        if word in _NO_ARROW:
            raise self._problem(f"type {word} has no Arrow form in PySpark, so a Python stage cannot take it", token)
        close = difflib.get_close_matches(word, [*_SIMPLE, *_DECIMALS, "string", "array", "map", "struct"], 1)
        hint = f" (did you mean {close[0]}?)" if close else " (types are Spark's: long, double, string, array<long>)"
        raise self._problem(f"unknown type {token.text!r}{hint}", token)

    def _nested(self, word: str) -> pa.DataType:
        if word == "struct":
            return pa.struct(self.struct_fields())
        self._sign("<")
        first, name = self._type()
        if word == "array":
            self._sign(">")
            return pa.list_(with_spark_type(pa.field("element", first), name))
        key = with_spark_type(pa.field("key", first, nullable=False), name)
        self._sign(",")
        second, name = self._type()
        self._sign(">")
        return pa.map_(key, with_spark_type(pa.field("value", second), name))

    def _collation(self) -> str | None:
        if not self._word_is("collate"):
            return None
        self.next()
        token = self.next()
        if token.kind not in ("word", "quoted"):
            raise self._problem("expected a collation after COLLATE", token)
        return collated(token.text.strip("`"))

    def _decimal(self, token: _Token) -> pa.DataType:
        numbers = self._numbers(token, 0, 2)
        precision = numbers[0] if numbers else _DECIMAL_PRECISION
        scale = numbers[1] if len(numbers) > 1 else 0
        if not (1 <= precision <= _MAX_DECIMAL and scale <= precision):
            raise self._problem(
                f"decimal({precision},{scale}) is not possible: 1 <= precision <= 38, scale <= precision", token
            )
        return pa.decimal128(precision, scale)

    def _time(self, token: _Token) -> _Typed:
        digits = self._numbers(token, 0, 1)
        if digits and digits[0] > _MAX_TIME:
            raise self._problem(f"time({digits[0]}) is not possible: the precision is 0 to {_MAX_TIME}", token)
        precision = digits[0] if digits else _TIME_DIGITS
        return pa.time64("ns"), None if precision == _TIME_DIGITS else f"time({precision})"

    def _interval(self, token: _Token) -> _Typed:
        start = self.next().text.lower()
        if start in _YEAR_MONTH:
            raise self._problem("year-month intervals have no Arrow form in PySpark: use a number of months", token)
        if start not in _DAY_TIME:
            raise self._problem("expected DAY, HOUR, MINUTE or SECOND after INTERVAL", token)
        end = start
        if self._word_is("to"):
            self.next()
            end = self.next().text.lower()
            if end not in _DAY_TIME or _DAY_TIME.index(end) <= _DAY_TIME.index(start):
                raise self._problem(f"an interval from {start} to {end or 'the end'} is not possible", token)
        if (start, end) == (_DAY_TIME[0], _DAY_TIME[-1]):
            return pa.duration("us"), None
        return pa.duration("us"), f"interval {start}" + (f" to {end}" if end != start else "")

    def _numbers(self, token: _Token, least: int, most: int) -> list[int]:
        numbers: list[int] = []
        if self._peek().text == "(":
            self.next()
            while self._peek().kind == "number":
                numbers.append(int(self.next().text))
                if self._peek().text != ",":
                    break
                self.next()
            self._sign(")")
            least = max(least, 1)
        if not least <= len(numbers) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise self._problem(f"type {token.text} takes {count} numbers in parentheses", token)
        return numbers

    def _sign(self, sign: str) -> None:
        token = self.next()
        if token.text != sign or token.kind != "sign":
            raise self._problem(f"expected {sign!r}, found {token.text or 'the end'!r}", token)

    def _word_is(self, word: str) -> bool:
        token = self._peek()
        return token.kind == "word" and token.text.lower() == word

    def _peek(self) -> _Token:
        return self._tokens[self._index]

    def _problem(self, problem: str, token: _Token | None = None) -> SchemaError:
        place = token if token is not None else self._peek()
        return _error(self._text, place.position, problem)
