# SPDX-License-Identifier: Apache-2.0
"""A partition of one file against a list in memory: any schema, any writes and broadcasts, any buffer, any range."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.partition.extent_writer import ExtentWriter
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.splits import Split
from stored_parts import Range

ID = PartitionId(DatasetId("d", 1), 0, 7)
TYPES: dict[str, pa.DataType] = {
    "number": pa.int64(),
    "flag": pa.bool_(),
    "nothing": pa.null(),
    "text": pa.string(),
    "large": pa.large_binary(),
    "view": pa.string_view(),
    "decimal": pa.decimal128(20, 3),
    "list": pa.list_(pa.struct([("a", pa.int8()), ("b", pa.string())])),
    "map": pa.map_(pa.string(), pa.float64()),
    "words": pa.dictionary(pa.int32(), pa.string()),
    "nested words": pa.list_(pa.dictionary(pa.int32(), pa.string())),
}


def _value(kind: pa.DataType, rng: random.Random) -> Any:
    """A value of a type; sometimes none."""
    if rng.random() < 0.2 or pa.types.is_null(kind):
        return None
    if pa.types.is_list(kind):
        return [_value(kind.value_type, rng) for _ in range(rng.randrange(3))]
    if pa.types.is_map(kind):
        return [(f"k{n}", rng.random()) for n in range(rng.randrange(3))]
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, rng) for field in kind}
    if pa.types.is_dictionary(kind):
        return rng.choice(["x", "yy", "zzz"])
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        return rng.randrange(-100, 100)
    if pa.types.is_decimal(kind):
        return rng.randrange(1000)
    if pa.types.is_large_binary(kind):
        return rng.randbytes(rng.randrange(30))
    return "ä" * rng.randrange(40)


def make_batch(schema: pa.Schema, rows: int, rng: random.Random) -> pa.RecordBatch:
    """Rows of a schema; half of the batches are slices of longer ones."""
    if not len(schema):
        return pa.RecordBatch.from_pydict({"x": range(rows)}).select([])
    before = rng.choice((0, 3))
    arrays = [pa.array([_value(field.type, rng) for _ in range(rows + before + 1)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema).slice(before, rows)


@dataclass(frozen=True)
class Case:
    """The batches to be written: for each step the subpartition (or -1 for all) and the number of rows."""

    types: tuple[str, ...]
    subpartitions: int
    steps: tuple[tuple[int, int], ...]
    options: FileOptions
    writer: type[SortMergeWriter | ExtentWriter]
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case."""
    subpartitions = draw(st.sampled_from([1, 2, 5, 70]))
    steps = st.tuples(st.integers(-1, subpartitions - 1), st.sampled_from([0, 1, 2, 40]))
    return Case(
        tuple(draw(st.lists(st.sampled_from(list(TYPES)), max_size=4, unique=True))),
        subpartitions,
        tuple(draw(st.lists(steps, max_size=30))),
        FileOptions(draw(st.sampled_from(["none", "lz4", "zstd"])), draw(st.sampled_from([1, 3000, 1 << 20]))),
        draw(st.sampled_from([SortMergeWriter, ExtentWriter])),
        draw(st.integers(0, 1 << 20)),
    )


@settings(max_examples=examples(120), deadline=None)
@given(case=cases(), ranges=st.lists(st.tuples(st.integers(0, 69), st.integers(1, 70)), max_size=3))
def test_any_range_gives_its_rows_in_the_order_of_writing(case: Case, ranges: list[tuple[int, int]]) -> None:
    """Each subpartition alone gives exactly its rows in order, each range those of its subpartitions, sums agree."""
    rng = random.Random(case.seed)
    schema = pa.schema([pa.field(name, TYPES[name]) for name in case.types])
    expected: list[list[dict[str, Any]]] = [[] for _ in range(case.subpartitions)]
    with tempfile.TemporaryDirectory() as folder:
        writer = case.writer(Path(folder), schema, ID, case.subpartitions, case.options)
        try:
            for subpartition, rows in case.steps:
                batch = make_batch(schema, rows, rng)
                if subpartition < 0:
                    writer.broadcast(batch)
                elif rng.random() < 0.3:
                    first = min(rows, 1)
                    writer.write_split(Split(batch, (subpartition, subpartition), (first, rows - first)))
                else:
                    writer.write(batch, subpartition)
                for each in range(case.subpartitions) if subpartition < 0 else [subpartition]:
                    expected[each] += batch.to_pylist()
            ends = writer.finish()
        finally:
            writer.abort()
        for number, rows_of_it in enumerate(expected):
            found = Range(Path(folder), FileOrigin(ID), schema, number)
            assert _rows(found) == rows_of_it
            assert found.end == ends[number]
            assert ends[number].rows == len(rows_of_it)
        for wanted, wanted_count in [*ranges, (0, case.subpartitions)]:
            first = min(wanted, case.subpartitions - 1)
            count = min(wanted_count, case.subpartitions - first)
            _check_range(Range(Path(folder), FileOrigin(ID), schema, first, count), expected[first : first + count])


def _rows(found: Range) -> list[dict[str, Any]]:
    return [row for batch in found.batches() for row in batch.to_pylist()]


def _check_range(found: Range, expected: list[list[dict[str, Any]]]) -> None:
    wanted = [repr(row) for rows in expected for row in rows]
    assert sorted(repr(row) for row in _rows(found)) == sorted(wanted)
    assert found.end.rows == len(wanted)
    assert sum(int.from_bytes(message[:8], "little") for message in found.messages()) == found.end.bytes


def test_rows_without_columns_count(tmp_path: Path) -> None:
    """Batches of no columns keep their row counts, joined ones too."""
    bare = pa.RecordBatch.from_pydict({"x": range(7)}).select([])
    with SortMergeWriter(tmp_path, bare.schema, ID, 2, FileOptions()) as writer:
        writer.write(bare, 1)
        writer.write(bare, 1)
        assert [end.rows for end in writer.finish()] == [0, 14]
    found = Range(tmp_path, FileOrigin(ID), bare.schema, 0, 2)
    assert sum(batch.num_rows for batch in found.batches()) == 14


def test_schema_metadata_is_the_readers(tmp_path: Path) -> None:
    """A reader who knows the schema gets batches with its metadata, whatever the compression."""
    for compression in ("none", "zstd"):
        schema = pa.schema([pa.field("x", pa.int8(), metadata={"unit": "m"})], metadata={"who": "me"})
        folder = tmp_path / compression
        folder.mkdir()
        with SortMergeWriter(folder, schema, ID, 1, FileOptions(compression)) as writer:
            writer.write(pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int8())], schema=schema), 0)
            writer.finish()
        (batch,) = Range(folder, FileOrigin(ID), schema, 0).batches()
        assert batch.schema.equals(schema, check_metadata=True)
