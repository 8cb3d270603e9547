# SPDX-License-Identifier: Apache-2.0
"""The nulls that are allowed where schemas meet: at every depth of every type, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.graph import as_nullable, as_written, merged_schema, merged_type, newly_nullable, with_spark_type


def field(kind: pa.DataType, *, nulls: bool, name: str = "element") -> pa.Field:
    """A field that may be null or not."""
    return pa.field(name, kind, nullable=nulls)


TYPES: dict[str, Callable[[bool], pa.DataType]] = {
    "list": lambda nulls: pa.list_(field(pa.int64(), nulls=nulls)),
    "large list": lambda nulls: pa.large_list(field(pa.int64(), nulls=nulls)),
    "fixed-size list": lambda nulls: pa.list_(field(pa.int64(), nulls=nulls), 2),
    "list view": lambda nulls: pa.list_view(field(pa.int64(), nulls=nulls)),
    "large list view": lambda nulls: pa.large_list_view(field(pa.int64(), nulls=nulls)),
    "struct": lambda nulls: pa.struct([field(pa.int64(), nulls=nulls, name="x"), pa.field("y", pa.string())]),
    "map": lambda nulls: pa.map_(pa.string(), field(pa.int64(), nulls=nulls, name="value"), keys_sorted=True),
    "map of lists": lambda nulls: pa.map_(pa.string(), pa.list_(field(pa.int64(), nulls=nulls))),
    "list of structs": lambda nulls: pa.list_(pa.struct([field(pa.int64(), nulls=nulls, name="x")])),
}


@pytest.mark.parametrize("name", TYPES)
def test_inner_nulls_are_merged(name: str) -> None:
    """A value may be null inside another type if it may be so on either side; layouts and sorted keys stay."""
    strict, loose = TYPES[name](False), TYPES[name](True)
    for one, other in ((strict, loose), (loose, strict)):
        assert merged_type(one, other).equals(loose)
    assert merged_type(strict, strict).equals(strict)
    assert as_nullable(pa.schema([pa.field("c", strict, nullable=False)])).equals(pa.schema([("c", loose)]))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_columns_are_nullable_if_either_is(left: bool, right: bool) -> None:
    """The merged column says so, the names of what is new are listed, and Spark's name of a type stays."""
    one, other = (
        pa.schema(
            [with_spark_type(pa.field("a", pa.string(), nullable=nulls), "string collate UNICODE"), ("b", pa.int8())]
        )
        for nulls in (left, right)
    )
    merged = merged_schema(one, other)
    assert merged is not None
    assert merged.equals(one if left else other, check_metadata=True)
    assert newly_nullable(one, merged) == (["a"] if right and not left else [])


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([("a", pa.list_(pa.int32()))]),
        pa.schema([("b", pa.list_(pa.int64()))]),
        pa.schema([("a", pa.large_list(pa.int64()))]),
        pa.schema([("a", pa.list_(pa.int64())), ("b", pa.int64())]),
        pa.schema([pa.field("a", pa.list_(with_spark_type(pa.field("element", pa.int64()), "time(3)")))]),
    ],
)
def test_other_columns_have_nothing_in_common(other: pa.Schema) -> None:
    """Another name, type, layout, number of columns, or another type of Spark's inside: no schema holds both."""
    assert merged_schema(pa.schema([pa.field("a", pa.list_(pa.int64()), nullable=False)]), other) is None


def test_keys_of_maps_are_never_null() -> None:
    """Nothing makes them so."""
    kind = as_nullable(pa.schema([("m", TYPES["map"](False))])).field("m").type
    assert (kind.key_field.nullable, kind.item_field.nullable, kind.keys_sorted) == (False, True, True)


def test_names_in_another_case() -> None:
    """The same case comes first; of several in other cases none is meant; letters of two small forms are one."""
    schema = pa.schema([(name, pa.int8()) for name in ("id", "Ab", "aB", "Σας")])
    assert [as_written(schema, name) for name in ("ID", "aB", "AB", "ΣΑΣ", "x")] == ["id", "aB", "AB", "Σας", "x"]
