# SPDX-License-Identifier: Apache-2.0
"""Structs, arrays and maps: taking a part out, and making a struct.

`FieldsByName` is no function of Spark's: fields of structs in another order, and nulls for those that there are not.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.expressions.tree import Call, UnsupportedError, ValuesError
from penstock.operators.expressions.values import Datum, Kernel, columns_of_rows, number_scalar, of_type, refuse_where
from penstock.operators.layouts import Differences, fitted


def _field(call: Call, values: list[Datum]) -> Datum:
    place = call.option("ordinal")
    assert isinstance(place, int)  # noqa: S101 - for the type checker
    return pc.struct_field(values[0], [place])


def _element(values: Datum, place: int, call: Call) -> Datum:
    """The element at a place counted from zero; what is too short gives null, or an error in ANSI mode."""
    short = pc.less_equal(pc.list_value_length(values), number_scalar(place, pa.int32()))
    if call.option("failOnError"):
        refuse_where(short, pc.list_value_length(values), f"elements are too few for place {place}")
    (column,) = columns_of_rows([values])
    long_enough = pc.if_else(short, pa.nulls(1, column.type)[0], column)
    return pc.list_element(pc.list_slice(long_enough, place, place + 1, return_fixed_size_list=True), 0)


def _item(call: Call, values: list[Datum]) -> Datum:
    place = call.integer(1)
    if place < 0:
        raise ValuesError(f"place {place} of an array: they are counted from zero")
    return _element(values[0], place, call)


def _element_at(call: Call, values: list[Datum]) -> Datum:
    place = call.constant(1)
    if not isinstance(place, int) or place < 1 or not pa.types.is_list(values[0].type):
        raise UnsupportedError("element_at but for a constant place from 1 on in an array")
    return _element(values[0], place - 1, call)


def _size(call: Call, values: list[Datum]) -> Datum:
    if pa.types.is_map(values[0].type) or call.option("legacySizeOfNull"):
        raise UnsupportedError("size of a map, or with spark.sql.legacy.sizeOfNull")
    return pc.list_value_length(values[0]).cast(pa.int32())


def _map_value(call: Call, values: list[Datum]) -> Datum:
    key = call.arguments[1]
    call.constant(1)
    return pc.map_lookup(values[0], key.array[0], "first")  # type: ignore[union-attr]


def _struct(call: Call, values: list[Datum]) -> Datum:
    arrays = columns_of_rows(values[1::2])
    arrays = [of_type(array, field.type) for array, field in zip(arrays, call.type, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(call.type))


def _by_name(call: Call, values: list[Datum]) -> Datum:
    (column,) = columns_of_rows(values)
    return fitted(column, call.type, Differences(widens=True, is_case_sensitive=bool(call.option("caseSensitive"))))


NESTED: dict[str, Kernel] = {
    "GetStructField": _field,
    "GetArrayItem": _item,
    "ElementAt": _element_at,
    "Size": _size,
    "GetMapValue": _map_value,
    "CreateNamedStruct": _struct,
    "FieldsByName": _by_name,
}
