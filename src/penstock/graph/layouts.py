# SPDX-License-Identifier: Apache-2.0
"""Spark's one layout of each type, of which Arrow has several.

Strings may be large, views or dictionaries, lists may be large, views or of a fixed size, instants have units and
labels of zones. To Spark they are one type, and files of one table may differ in them. `plain_type` is that type;
what comes in from files has it (`penstock.operators.layouts` brings columns there). Arrow's decimals have widths and
its texts a label for JSON, too. Half floats, of which Spark has none, are floats: Arrow has few kernels for them.

Nanoseconds stay: Spark has none, and to cut them is a loss. So do unsigned numbers and times of day.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from penstock.graph.nullability import fields_of, with_fields

_UTC = "UTC"
_MICROS = "us"
_PLAIN = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.float16(): pa.float32(),
}
_MOST_DIGITS = 38
_JSON = "arrow.json"


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns in Spark's layouts, with what else is known of them."""
    return pa.schema([plain_field(field) for field in schema])


def plain_field(field: pa.Field) -> pa.Field:
    """A field in Spark's layout, also inside others."""
    return field.with_type(plain_type(field.type))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in Spark's layout."""
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pt.is_timestamp(kind):
        return pa.timestamp("ns" if kind.unit == "ns" else _MICROS, None if kind.tz is None else _UTC)
    if pt.is_duration(kind) and kind.unit != "ns":
        return pa.duration(_MICROS)
    if pt.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type) if kind.extension_name == _JSON else kind
    inner = [plain_field(field) for field in fields_of(kind)]
    if inner and not (pt.is_struct(kind) or pt.is_map(kind)):
        return pa.list_(inner[0])
    return with_fields(kind, inner) if inner else _PLAIN.get(kind, kind)
