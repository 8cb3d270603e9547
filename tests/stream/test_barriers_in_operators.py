# SPDX-License-Identifier: Apache-2.0
"""The same operators with a barrier after any batch give the same rows as without, and as in a batch job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.graph import JobVertex, Operator
from penstock.operators.expressions import ColumnRef
from penstock.operators.functions import MapInArrow, MapInPandas
from penstock.operators.verbs import Explode, Project, Where
from penstock.stream.chain import StepContext
from penstock.stream.steps import chain_of

SCHEMA = pa.schema([("n", pa.int64()), ("flag", pa.bool_()), ("items", pa.list_(pa.int64()))])
ROW = st.tuples(
    st.integers(-5, 5),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.lists(st.integers(0, 3), max_size=3)),
)
BATCHES = st.lists(st.lists(ROW, min_size=1, max_size=5), max_size=6)


def row_by_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives each row as a batch of its own."""
    for batch in batches:
        for row in range(batch.num_rows):
            yield batch.slice(row, 1)


def at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Holds all back to the end of its iterator."""
    yield from list(batches)


def in_pairs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Holds every other batch back."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if len(held) == 2:
            yield pa.concat_batches(held)
            held = []
    yield from held


def frames(parts: Iterator[Any]) -> Iterator[Any]:
    """Gives each frame without its last row."""
    for part in parts:
        yield part.iloc[:, :2]


FLAG = ColumnRef("flag", pa.bool_())
UNFOLDED = pa.schema([("n", pa.int64()), ("flag", pa.bool_()), ("items", pa.int64())])
SWAPPED = pa.schema([("flag", pa.bool_()), ("n", pa.int64())])
PLAIN = pa.schema([("n", pa.int64()), ("flag", pa.bool_())])
OPERATORS: dict[str, tuple[tuple[Operator, ...], pa.Schema]] = {
    "filter": ((Where(FLAG, "flag"),), SCHEMA),
    "select": (
        (Project((FLAG, ColumnRef("n", pa.int64())), SWAPPED),),
        SCHEMA,
    ),
    "explode": ((Explode("items", False, UNFOLDED),), SCHEMA),
    "explode_outer": ((Explode("items", True, UNFOLDED),), SCHEMA),
    "row by row": ((MapInArrow(row_by_row, SCHEMA),), SCHEMA),
    "at the end": ((MapInArrow(at_the_end, SCHEMA),), SCHEMA),
    "in pairs": ((MapInArrow(in_pairs, SCHEMA),), SCHEMA),
    "frames": ((MapInPandas(frames, PLAIN),), SCHEMA),
    "several": (
        (MapInArrow(in_pairs, SCHEMA), Where(FLAG, "flag"), MapInArrow(at_the_end, SCHEMA)),
        SCHEMA,
    ),
}


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """All rows."""
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=25)
@given(BATCHES, st.data())
def test_a_barrier_after_any_batch_changes_no_row(
    name: str, rows: list[list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    """Neither which rows there are nor their order, and they are those of a batch job."""
    operators, schema = OPERATORS[name]
    batches = [
        pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in part], schema=schema)
        for part in rows
    ]
    chain = chain_of(JobVertex(1, "stage", 1, schema, operators=operators))
    chain.open(StepContext(0, 1, 128, "stage"), [])
    given_rows: list[pa.RecordBatch] = []
    for batch in batches:
        given_rows += chain.push(batch)
        if data.draw(st.booleans(), label="barrier"):
            given_rows += chain.end_epoch()
            chain.snapshot(1)
    given_rows += chain.end_input(stopped=False)
    chain.close()
    whole: Iterator[pa.RecordBatch] = iter(batches)
    for operator in operators:
        whole = operator.apply(whole)
    assert rows_of(given_rows) == rows_of(list(whole))
