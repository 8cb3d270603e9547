# SPDX-License-Identifier: Apache-2.0
"""Columns of timestamps as numbers: microseconds since 1970, in UTC, whatever their unit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SchemaError
from penstock.record.layout import fixed_values, null_mask

Times = npt.NDArray[np.int64]

_FACTORS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def time_column(schema: pa.Schema, name: object, verb: str) -> str:
    """The name of a column of timestamps; raises SchemaError for one that is none."""
    if not isinstance(name, str):
        raise TypeError(f"{verb} takes the name of a column of timestamps, not {type(name).__name__}")
    if len(schema.get_all_field_indices(name)) != 1:
        raise SchemaError(f"{verb}: column {name!r} does not exist; the columns are {', '.join(schema.names)}")
    kind = schema.field(name).type
    if not pt.is_timestamp(kind):
        raise SchemaError(
            f"{verb}: column {name!r} is of type {kind}, and event time is a timestamp: make one first, "
            f"such as withColumn({name!r}, 'timestamp_millis({name})')"
        )
    return name


def time_of_window(schema: pa.Schema, name: object, verb: str) -> str:
    """The name of a column of timestamps or windows; raises SchemaError for one that is none."""
    if isinstance(name, str) and name in schema.names:
        kind = schema.field(name).type
        if pt.is_struct(kind) and any(field.name == "end" and pt.is_timestamp(field.type) for field in kind):
            return name
    return time_column(schema, name, verb)


def microseconds_of(column: pa.Array) -> tuple[Times, npt.NDArray[np.bool_] | None]:
    """The times in microseconds, rounded down; and which are null, None where none is."""
    values: Times = fixed_values(column, np.dtype(np.int64))
    unit = column.type.unit
    if unit == "ns":
        values = np.floor_divide(values, 1000)
    elif unit != "us":
        values = values * _FACTORS[unit]
    return values, null_mask(column)


def greatest(column: pa.Array) -> int | None:
    """The greatest time; None where there is none."""
    values, missing = microseconds_of(column)
    if missing is not None:
        values = values[~missing]
    return int(values.max()) if len(values) else None
