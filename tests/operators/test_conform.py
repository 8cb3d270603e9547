# SPDX-License-Identifier: Apache-2.0
"""The batches that fit a declared schema, and those that are refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.operators.conform import Conformer, conform

UTC = pa.timestamp("us", "UTC")
NAIVE = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - naive on purpose
MOMENT = dt.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
ELEMENT = pa.list_(pa.field("element", pa.string()))
ENTRY = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int32()))
NESTED = pa.struct([("x", pa.string()), ("l", pa.list_(pa.field("element", pa.int64())))])
NESTED_LARGE = pa.struct([("x", pa.large_string()), ("l", pa.large_list(pa.int64()))])

VARIANTS = [
    (pa.array(["a", None], pa.large_string()), pa.string()),
    (pa.array(["a", None], pa.string_view()), pa.string()),
    (pa.array([b"a", None], pa.large_binary()), pa.binary()),
    (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
    (pa.array(["a", "b", "a", None]).dictionary_encode(), pa.string()),
    (pa.array([MOMENT, None], pa.timestamp("us", "Europe/Berlin")), UTC),
    (pa.array([MOMENT, None], pa.timestamp("ns", "UTC")), UTC),
    (
        pa.array(
            [
                dt.datetime(2024, 1, 1),  # noqa: DTZ001 - naive on purpose
                None,
            ],
            pa.timestamp("ms"),
        ),
        pa.timestamp("us"),
    ),
    (pa.array([dt.timedelta(seconds=1), None], pa.duration("s")), pa.duration("us")),
    (pa.array([dt.date(2024, 1, 1), None], pa.date64()), pa.date32()),
    (pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), pa.decimal128(9, 2)),
    (pa.array([Decimal("1.50"), None], pa.decimal256(5, 2)), pa.decimal128(9, 2)),
    (pa.nulls(2), pa.int64()),
    (pa.nulls(2), NESTED),
    (pa.array([["a", None], None, []], pa.large_list(pa.large_string())), ELEMENT),
    (pa.array([["a", None], None, []], pa.list_view(pa.string())), ELEMENT),
    (pa.array([["a", None], None], pa.list_(pa.string(), 2)), ELEMENT),
    (pa.array([[("a", 1)], None, []], pa.map_(pa.large_string(), pa.int32())), ENTRY),
    (pa.array([{"x": "a", "l": [1]}, None, {"x": None, "l": None}], NESTED_LARGE), NESTED),
    (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None])), pa.string()),
]


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_physical_variants_are_cast(number: int) -> None:
    """Another layout of the declared type is cast, values and nulls kept, also when the column is a slice."""
    column, declared = VARIANTS[number]
    schema = pa.schema([("c", declared)])
    for part in (column, column.slice(1), column.slice(0, 1), column.slice(0, 0)):
        result = conform(pa.record_batch([part], ["c"]), schema)
        assert result.schema == schema
        result.validate(full=True)
        assert result.column(0).to_pylist() == part.to_pylist()


def test_equal_types_pass_untouched() -> None:
    """The fast path gives the very same batch."""
    batch = pa.record_batch({"a": [1, 2], "b": ["x", None]})
    assert conform(batch, batch.schema) is batch


def test_list_fields_may_be_called_anything() -> None:
    """Names of list elements are no difference: Arrow writes `item`, Spark `element`."""
    batch = pa.record_batch([pa.array([["a"]], pa.list_(pa.string()))], ["c"])
    assert conform(batch, pa.schema([("c", ELEMENT)])).column(0).to_pylist() == [["a"]]


def test_columns_are_put_in_order() -> None:
    """The same names in another order are reordered, as PySpark's group functions do."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    result = conform(pa.record_batch({"b": ["x"], "a": [1]}), schema)
    assert result.schema == schema
    assert result.to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("column", "declared"),
    [
        (pa.array([1], pa.int32()), pa.int64()),
        (pa.array([1], pa.int64()), pa.int32()),
        (pa.array([1]), pa.string()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1.0], pa.float32()), pa.float64()),
        (
            pa.array([NAIVE]),
            UTC,
        ),
        (pa.array([MOMENT]), pa.timestamp("us")),
        (pa.array([Decimal("1.50")]), pa.decimal128(9, 3)),
        (pa.array([Decimal("123.50")]), pa.decimal128(4, 2)),
        (pa.array([b"a"]), pa.string()),
        (pa.array([{"y": 1}]), pa.struct([("x", pa.int64())])),
        (pa.array([["a"]]), ENTRY),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), ELEMENT),
        (pa.array([[1]]), ELEMENT),
    ],
)
def test_other_types_are_refused(column: pa.Array, declared: pa.DataType) -> None:
    """A column of another type is a SchemaError naming operator, column, declared and found type."""
    with pytest.raises(SchemaError) as caught:
        conform(pa.record_batch([column], ["price"]), pa.schema([("price", declared)]), "mapInArrow(f)")
    for part in ("mapInArrow(f)", "'price'", str(declared), str(column.type)):
        assert part in str(caught.value)


def test_a_cast_never_loses() -> None:
    """Nanoseconds that microseconds cannot hold are refused, not cut."""
    column = pa.array([1], pa.timestamp("ns", "UTC"))
    with pytest.raises(SchemaError, match="lose data"):
        conform(pa.record_batch([column], ["t"]), pa.schema([("t", UTC)]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a"], "missing: b, unexpected: none"),
        (["a", "c"], "missing: b, unexpected: c"),
        (["a", "b", "c"], "unexpected: c"),
        (["a", "a"], "missing: b"),
    ],
)
def test_other_columns_are_refused(names: list[str], message: str) -> None:
    """Missing and extra columns are named."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(SchemaError, match=message):
        conform(pa.record_batch([pa.array([1])] * len(names), names), schema)


def test_not_null_is_checked() -> None:
    """A null in a column declared NOT NULL is refused with the count; without nulls the column passes."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert conform(pa.record_batch({"a": [1]}), schema).schema == schema
    with pytest.raises(SchemaError, match="NOT NULL and has 2 nulls"):
        conform(pa.record_batch({"a": [1, None, None]}), schema)


def test_zero_columns_keep_their_rows() -> None:
    """A batch without columns passes with its number of rows."""
    batch = pa.record_batch({"a": [1, 2, 3]}).select([])
    assert conform(batch, pa.schema([])).num_rows == 3


def test_the_plan_follows_a_change_of_schema() -> None:
    """A function may yield another layout in the next batch."""
    conformer = Conformer(pa.schema([("a", pa.string())]), "f")
    for kind in (pa.string(), pa.large_string(), pa.string()):
        assert conformer.conform(pa.record_batch([pa.array(["x"], kind)], ["a"])).column(0).type == pa.string()
