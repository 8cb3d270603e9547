# SPDX-License-Identifier: Apache-2.0
"""Nulls where a schema promises none are found at every depth, and only where they are somebody's value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.operators.conform import conform
from penstock.operators.functions import MapInPandas
from penstock.operators.promises import broken

NUMBER = pa.field("x", pa.int64(), nullable=False)
STRUCT = pa.struct([NUMBER, pa.field("y", pa.string())])
ELEMENT = NUMBER.with_name("element")

CASES: dict[str, tuple[pa.DataType, Any, Any, str]] = {
    "struct": (STRUCT, {"x": 1, "y": None}, {"x": None, "y": "a"}, "c.x"),
    "list": (pa.list_(ELEMENT), [1], [1, None], "c.element"),
    "large list": (pa.large_list(ELEMENT), [1], [1, None], "c.element"),
    "fixed-size list": (pa.list_(ELEMENT, 2), [1, 2], [1, None], "c.element"),
    "map": (pa.map_(pa.string(), NUMBER.with_name("value")), [("k", 1)], [("k", None)], "c.value"),
    "structs in a list": (pa.list_(pa.field("element", STRUCT)), [None, {"x": 1}], [{"x": None}], "c.element.x"),
    "lists in a struct": (pa.struct([("l", pa.list_(ELEMENT))]), {"l": [1]}, {"l": [None]}, "c.l.element"),
}


def nullable(kind: pa.DataType) -> pa.DataType:
    """The type as a function may give it."""
    from penstock.graph import as_nullable

    return as_nullable(pa.schema([("c", kind)])).field("c").type


@pytest.mark.parametrize("name", CASES)
def test_nulls_inside_are_found(name: str) -> None:
    """A null in a field, an element or a value that is declared NOT NULL is refused by its path."""
    kind, _, bad, path = CASES[name]
    schema = pa.schema([("c", kind)])
    batch = pa.RecordBatch.from_arrays([pa.array([bad], nullable(kind))], names=["c"])
    with pytest.raises(SchemaError, match=f"f: column '{path}' is declared NOT NULL and has 1 nulls"):
        conform(batch, schema, "f")


@pytest.mark.parametrize("name", CASES)
def test_what_nobody_sees_breaks_nothing(name: str) -> None:
    """Rows that are null themselves, and rows outside of a slice, may hide anything."""
    kind, good, bad, _ = CASES[name]
    rows = pa.array([bad, good, None, good, bad], nullable(kind)).slice(1, 3)
    found = conform(pa.RecordBatch.from_arrays([rows], names=["c"]), pa.schema([("c", kind)]))
    assert found.column(0).to_pylist() == rows.to_pylist()
    assert found.schema.field("c").type.equals(kind)


def test_fields_of_structs_that_are_null_are_nobodys() -> None:
    """A struct that is null has null fields in memory, as Arrow and Spark make them."""
    values = pa.array([1, None], pa.int64())
    rows = pa.StructArray.from_arrays([values], fields=[NUMBER], mask=pa.array([False, True]))
    assert broken(rows, pa.field("c", rows.type)) is None
    assert broken(rows.field(0), NUMBER) is not None


@pytest.mark.parametrize("value", [None, {"x": None}])
def test_frames_are_held_to_it_too(value: object) -> None:
    """A function over frames that gives a null where none may be is refused as one over batches."""
    import pandas as pd

    def function(frames: Iterator[Any]) -> Iterator[Any]:
        for _ in frames:
            yield pd.DataFrame({"c": [{"x": 1}, value]})

    operator = MapInPandas(function, pa.schema([pa.field("c", pa.struct([NUMBER]), nullable=False)]))
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    with pytest.raises(SchemaError, match=r"column 'c(\.x)?' is declared NOT NULL and has 1 nulls"):
        list(operator.apply(iter([rows])))
