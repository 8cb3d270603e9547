# SPDX-License-Identifier: Apache-2.0
"""Rows as tuples of Python values and back, for processors that work on one key at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SchemaError
from penstock.operators.conform import refuse_broken

Value = tuple[Any, ...]


def kept_by(schema: pa.Schema) -> Callable[[Iterable[Any]], Value]:
    """Makes a tuple of a row that a processor gives, and with it of the lists and bytes that it may change later."""
    return (lambda row: copy.deepcopy(tuple(row))) if may_change(schema) else tuple


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
