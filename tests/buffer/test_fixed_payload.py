# SPDX-License-Identifier: Apache-2.0
"""Heads of payloads that are filled in are those that Arrow's serializer writes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.buffer.fixed_payload import FixedPayloads, filled_up

KINDS = [
    *(pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.timestamp("us", "UTC"), pa.duration("s")),
    *(pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(30, 3), pa.decimal256(60, 1), pa.binary(5)),
    pa.month_day_nano_interval(),
]


@settings(max_examples=examples(100), deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=6),
    batches=st.lists(st.tuples(st.integers(1, 300), st.lists(st.booleans(), min_size=6, max_size=6)), max_size=4),
)
def test_heads_are_arrows(kinds: list[pa.DataType], batches: list[tuple[int, list[bool]]]) -> None:
    """For any columns, rows and nulls a head is, byte for byte, what stands before the body that Arrow writes."""
    schema = pa.schema([pa.field(f"c{at}", kind) for at, kind in enumerate(kinds)])
    payloads = FixedPayloads.of(schema)
    assert payloads is not None
    for rows, missing in batches:
        flagged = missing[: len(kinds)]
        columns = [
            pa.nulls(rows, kind)
            if is_null
            else pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(bytes(rows * 32))])
            for kind, is_null in zip(kinds, flagged, strict=True)
        ]
        whole = pa.RecordBatch.from_arrays(columns, schema=schema)
        sizes = payloads.body_sizes(np.array([rows]), flagged)
        (head,) = payloads.heads(np.array([rows]), np.array([[rows * each for each in flagged]]), sizes)
        message = pa.RecordBatch.from_arrays([_exact(each) for each in whole.columns], schema=schema).serialize()
        assert head.tobytes() == message.to_pybytes()[: payloads.head_size]
        assert len(head) + filled_up(sizes).sum() == message.size


def _exact(array: pa.Array) -> pa.Array:
    """The same with buffers of just the bytes its rows need, as Arrow sends what stands behind them too."""
    bits = (len(array) + 7) // 8
    width = bits if pa.types.is_boolean(array.type) else len(array) * array.type.bit_width // 8
    validity, values = array.buffers()
    parts = [None if validity is None else validity.slice(0, bits), values.slice(0, width)]
    return pa.Array.from_buffers(array.type, len(array), parts)


def test_many_heads_at_once_are_those_of_each_alone() -> None:
    """A line for each batch."""
    payloads = FixedPayloads.of(pa.schema([("a", pa.int32()), ("b", pa.bool_())]))
    assert payloads is not None
    rows, nulls = np.array([1, 9, 1000]), np.array([[0, 0], [3, 0], [999, 1000]])
    sizes = payloads.body_sizes(rows, [True, True])
    together = payloads.heads(rows, nulls, sizes)
    for at in range(3):
        alone = payloads.heads(rows[at : at + 1], nulls[at : at + 1], sizes[at : at + 1])
        assert together[at].tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.string(), pa.large_binary(), pa.string_view(), pa.null(), pa.binary(0), pa.list_(pa.int8(), 2)),
        *(
            pa.dictionary(pa.int8(), pa.int8()),
            pa.run_end_encoded(pa.int32(), pa.int8()),
            pa.struct([("a", pa.int8())]),
        ),
        pa.uuid(),
    ],
    ids=str,
)
def test_other_columns_have_no_such_payloads(kind: pa.DataType) -> None:
    """Of what has no fixed width, more buffers, or a type of its own."""
    assert FixedPayloads.of(pa.schema([("a", pa.int8()), ("b", kind)])) is None


def test_no_columns_have_no_such_payloads() -> None:
    """Rows of nothing are nothing to put together."""
    assert FixedPayloads.of(pa.schema([])) is None
