# SPDX-License-Identifier: Apache-2.0
"""Rows as lines of JSON that PySpark reads as the same rows.

A field that is null is left out, as by Spark; in lists and maps it is `null`. Reals that JSON has no number for are
Java's words in quotes, times are texts, keys of maps are texts of whatever they are. Bytes have no form here.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.values import EMPTY, array_of, text_scalar
from penstock.operators.value_texts import as_lines, is_plain, joined, value_texts
from penstock.record.layout import children, null_mask

_CONTROL = r"[\x00-\x1f]"


def json_fault(schema: pa.Schema) -> str:
    """The reason why rows can't be lines of JSON; empty if they can."""
    for field in schema:
        if wrong := _without_text(field.type):
            return f"column {field.name!r} is {field.type}, and JSON has nothing for {wrong}"
    return ""


def json_lines(batch: pa.RecordBatch) -> pa.Buffer:
    """The lines of a batch."""
    return as_lines(_object(batch.columns, batch.schema.names, batch.num_rows))


def _without_text(kind: pa.DataType) -> pa.DataType | None:
    if pt.is_struct(kind) or pt.is_map(kind) or pt.is_list(kind):
        return next((found for child in children(kind) if (found := _without_text(child.type))), None)
    return None if is_plain(kind) else kind


def _text(column: pa.Array) -> pa.Array:
    """The text of each value; null where that is null."""
    kind = column.type
    if pt.is_struct(kind):
        fields = [pc.struct_field(column, place) for place in range(kind.num_fields)]
        names = [kind.field(place).name for place in range(kind.num_fields)]
        return _but_nulls(_object(fields, names, len(column)), column)
    if pt.is_map(kind):
        return _map(column)
    if pt.is_list(kind):
        return _but_nulls(_enclosed("[", _in_lists(column, _elements(_text(column.flatten()))), "]"), column)
    texts = value_texts(column)
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_decimal(kind):
        return texts
    if pt.is_floating(kind):
        is_word = pc.match_substring_regex(texts, "[NI]")
        return pc.if_else(is_word, _enclosed('"', texts, '"'), texts)
    return _string(texts)


def _string(texts: pa.Array) -> pa.Array:
    """The texts in quotes."""
    if pc.any(pc.match_substring_regex(texts, r'["\\]')).as_py():
        texts = pc.replace_substring_regex(texts, r'(["\\])', r"\\\1")
    if pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py():
        for code in range(32):
            texts = pc.replace_substring(texts, chr(code), json.dumps(chr(code))[1:-1])
    return _enclosed('"', texts, '"')


def _object(columns: list[pa.Array], names: list[str], rows: int) -> pa.Array:
    """Of each row the fields that are not null, in braces."""
    # Arrow's own way to skip nulls loses the rows in which all are null.
    fields = [
        pc.fill_null(_enclosed(f"{json.dumps(name, ensure_ascii=False)}:", _text(column), ","), EMPTY)
        for name, column in zip(names, columns, strict=True)
    ]
    found = pc.utf8_rtrim(joined(fields), ",") if fields else pc.fill_null(pa.nulls(rows, pa.string()), EMPTY)
    return _enclosed("{", found, "}")


def _map(column: pa.Array) -> pa.Array:
    kind = column.type
    column = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    entries = column.flatten()
    keys, items = pc.struct_field(entries, 0), pc.struct_field(entries, 1)
    keys = _text(keys) if pt.is_string(keys.type) else _string(value_texts(keys))
    pairs = joined([keys, text_scalar(":"), _elements(_text(items))])
    return _but_nulls(_enclosed("{", _in_lists(column, pairs), "}"), column)


def _elements(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, text_scalar("null"))


def _in_lists(column: pa.Array, texts: pa.Array) -> pa.Array:
    """The texts of each list's or map's elements, with commas; empty for a null."""
    if not len(column):
        return pa.nulls(0, pa.string())
    lengths = np.diff(np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4))
    missing = null_mask(column)
    if missing is not None:
        lengths = np.where(missing, 0, lengths)
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    lists = pa.ListArray.from_arrays(array_of(ends, pa.int32()), texts)
    return pc.binary_join(lists, text_scalar(","))


def _enclosed(before: str, texts: pa.Array, after: str) -> pa.Array:
    return joined([text_scalar(before), texts, text_scalar(after)])


def _but_nulls(texts: pa.Array, column: pa.Array) -> pa.Array:
    if not column.null_count:
        return texts
    return pc.if_else(pc.is_valid(column), texts, pa.nulls(len(column), pa.string()))
