# SPDX-License-Identifier: Apache-2.0
"""The numbers of bytes of rows, by Arrow's own count of gathered ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.record.layout import int64_array, take
from penstock.record.row_sizes import BatchBytes, RowSizes, bounded

COLUMNS = {
    "integers": pa.array([1, None, 3]),
    "booleans": pa.array([True, False, None]),
    "decimals": pa.array([1, 2, 3]).cast(pa.decimal128(38, 2)),
    "strings": pa.array(["a", "b" * 100, None]),
    "large strings": pa.array(["a", "b" * 100, None], pa.large_string()),
    "views": pa.array(["a" * 30, "b" * 100, None], pa.string_view()),
    "binaries of a size": pa.array([b"ab", b"cd", None], pa.binary(2)),
    "lists": pa.array([[1], [2, 3], None]),
    "lists of strings": pa.array([["a"], None, ["b" * 50, "c"]]),
    "lists of lists": pa.array([[[1], [2]], [[3]], []]),
    "list views": pa.array([[1], [2, 3], None], pa.list_view(pa.int64())),
    "lists of a size": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int64(), 2)),
    "maps": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "structs": pa.array([{"a": "x" * 70, "b": 1}, {"a": None, "b": 2}, None]),
    "indices": pa.array(["a" * 100, "a" * 100, None]).dictionary_encode(),
    "extension": pa.array([b"0" * 16] * 3, pa.uuid()),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1, 2])),
    "nulls": pa.nulls(3),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_sizes_are_those_of_copies(name: str) -> None:
    """Within 32 bytes a row of what a gathered row takes, which has its offsets twice."""
    column = COLUMNS[name]
    for part in (column, column.slice(1, 2), column.slice(3)):
        rows = np.arange(len(part))
        found = RowSizes([part, pa.array(rows)]).of(rows)
        assert RowSizes([part, part]).most == max((2 * (found - 8)).tolist(), default=RowSizes([part, part]).most)
        for row, size in enumerate(found.tolist()):
            copy = take(part, int64_array(np.array([row])))
            assert abs(copy.nbytes + 8 - size) <= 32 + 100 * (name == "indices")


def test_rows_that_are_taken_together() -> None:
    """As many as have room, at least one, and each once."""
    assert list(bounded(np.array([1, 2, 3, 100, 1, 1]), 5)) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(bounded(np.zeros(0, np.int64), 5)) == []


@pytest.mark.parametrize("name", list(COLUMNS))
def test_bytes_of_a_batch_are_arrows_but_for_null_flags(name: str) -> None:
    """Of a fixed width they are computed, else asked for; of all batches of a schema."""
    bytes_of = BatchBytes()
    for times in (8, 80):
        column = pa.concat_arrays([COLUMNS[name]] * times)
        batch = pa.record_batch([column, column], names=["a", "b"])
        flags = 2 * -(-len(batch) // 8)
        assert batch.nbytes - flags <= bytes_of(batch) <= batch.nbytes
