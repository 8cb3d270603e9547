# SPDX-License-Identifier: Apache-2.0
"""Filters of readers leave the rows that Arrow's own filter of a table leaves, in their order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.api.arrow_filters import matching

ROWS = 100_000
"""More than Arrow takes at once in a plan."""
BATCH = pa.RecordBatch.from_pydict(
    {
        "n": pa.array([None if n % 7 == 0 else n for n in range(ROWS)]),
        "s": pa.array([f"{n % 100}" for n in range(ROWS)]).dictionary_encode(),
        "l": pa.array([[n, None] if n % 3 else None for n in range(ROWS)]),
    }
)
FILTERS = [
    pc.field("n") >= 0,
    pc.field("n").is_null(),
    pc.field("n") < 0,
    pc.field("n") > ROWS // 2,
    (pc.field("n") > 10) | (pc.field("s") == "7"),
    pc.scalar(True),
    pc.scalar(pa.scalar(None, pa.bool_())),
]


@pytest.mark.parametrize("number", range(len(FILTERS)))
@pytest.mark.parametrize("part", [(0, ROWS), (99, 40_000), (5, 0)], ids=["whole", "a slice", "no rows"])
def test_rows_are_those_of_arrows_filter(number: int, part: tuple[int, int]) -> None:
    """Nulls are no match, and what passes is not asked for again; batches are slices too."""
    batch, where, columns = BATCH.slice(*part), FILTERS[number], ["l", "s"]
    found: list[Any] = list(matching(batch, where, columns))
    assert all(each.num_rows for each in found)
    wanted = pa.Table.from_batches([batch]).filter(where).select(columns)
    assert pa.Table.from_batches(found, wanted.schema).equals(wanted)
