# SPDX-License-Identifier: Apache-2.0
"""Filters of readers leave the rows that Arrow's own filter of a table leaves, in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api.arrow_filters import matching
from penstock.errors import SchemaError
from penstock.testing.local_runner import run_local
from penstock.testing.sources import fromBatches

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


def test_columns_by_their_places_are_refused(tmp_path: Path) -> None:
    """A task that reads other columns has another one there; a text that looks like it is none."""
    pq.write_table(pa.table({"a": [1, 9], "b": [9, 1]}), tmp_path / "x.parquet")
    stream = penstock.readParquet(None, tmp_path)
    for by_place in (pc.field(0) > 5, (pc.field("b") > 5) | (pc.field(1) == 9)):
        with pytest.raises(SchemaError, match=r"^readParquet: \(.* by its place, FieldPath\(\d\): name it"):
            penstock.readParquet(None, tmp_path, ["b"], by_place)
        with pytest.raises(SchemaError, match="means a column by its place"):
            stream.filter(by_place)
    within = fromBatches(pa.table({"s": [{"a": [1], "b": {"c": 7}}, None]}))
    for inner in (pc.struct_field(pc.field("s"), [1, 0]), pc.struct_field(pc.struct_field(pc.field("s"), 1), "c")):
        assert run_local(within.filter(inner == 7)).num_rows == 1
    with pytest.raises(SchemaError, match="by its place"):
        within.filter(pc.struct_field(pc.field(0), [1, 0]) == 7)
    assert run_local(stream.filter(pc.field("b").cast(pa.string()) != 'a "FieldPath(0)')).num_rows == 2
