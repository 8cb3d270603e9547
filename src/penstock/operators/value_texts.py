# SPDX-License-Identifier: Apache-2.0
"""Values as text that Spark's readers of lines turn into the same values: what CSV and JSON files hold.

Instants are written in UTC, `2026-01-31T23:59:59.000001Z`, and times without a zone without the Z, both to the
microsecond: Spark's own writer stops at milliseconds. Reals are the shortest text that gives them again, and NaN and
Infinity are Java's words. Nulls stay nulls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.values import text_scalar

_REALS = (("nan", "NaN"), ("-inf", "-Infinity"), ("inf", "Infinity"))


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether values of a type have a text."""
    return bool(
        pt.is_string(kind)
        or pt.is_boolean(kind)
        or pt.is_integer(kind)
        or pt.is_floating(kind)
        or pt.is_decimal(kind)
        or pt.is_date32(kind)
        or pt.is_timestamp(kind)
        or pt.is_null(kind)
    )


def value_texts(column: pa.Array) -> pa.Array:
    """The texts of a column of plain values."""
    kind = column.type
    if pt.is_string(kind):
        return column
    if pt.is_timestamp(kind):
        text = column.cast(pa.timestamp("us")).cast(pa.string())
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
        return text if kind.tz is None else joined([text, text_scalar("Z")])
    text = column.cast(pa.string())
    if pt.is_floating(kind):
        for arrows, javas in _REALS:
            text = pc.if_else(pc.equal(text, text_scalar(arrows)), text_scalar(javas), text)
    return text


def joined(parts: Sequence[pa.Array | pa.Scalar], between: str = "") -> pa.Array:
    """The texts of all in a row; null where one of them is."""
    return pc.binary_join_element_wise(*parts, text_scalar(between))


def as_lines(texts: pa.Array) -> pa.Buffer:
    """The bytes of texts, none of which is null, each with the sign of a line's end."""
    lines = joined([texts, text_scalar("\n")])
    _, offsets, data = lines.buffers()
    if data is None or not len(lines):
        return pa.py_buffer(b"")
    ends = np.frombuffer(offsets, np.int32, len(lines) + 1, lines.offset * 4)
    return data.slice(int(ends[0]), int(ends[-1] - ends[0]))
