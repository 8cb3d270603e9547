# SPDX-License-Identifier: Apache-2.0
"""Splits of rows of a fixed width, which are put together column by column, against slices written one by one."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.buffer.arrow import read_payload
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.record.partitioners import scatter
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.splits import Split
from stored_parts import Range

ID = PartitionId(DatasetId("d", 1), 0, 7)
KINDS = {
    "number": pa.int64(),
    "small": pa.int16(),
    "real": pa.float32(),
    "flag": pa.bool_(),
    "time": pa.timestamp("us"),
    "decimal": pa.decimal128(38, 3),
    "bytes": pa.binary(5),
}
NUMBER = pa.schema([("number", pa.int64())])


def rows_of(schema: pa.Schema, rows: int, rng: np.random.Generator, nulls: str) -> pa.RecordBatch:
    """Any rows, seen through a slice; nulls in every column, in the first one, or in none."""
    columns = []
    for at, kind in enumerate(schema.types):
        bits = None
        if nulls == "all" or (nulls == "first" and at == 0):
            bits = pa.py_buffer(rng.bytes((rows + 3) // 8 + 1))
        width = 1 if pa.types.is_boolean(kind) else kind.bit_width // 8
        values = pa.py_buffer(bytes(rng.integers(0, 4, (rows + 3) * width, np.uint8)))
        columns.append(pa.Array.from_buffers(kind, rows + 3, [bits, values]))
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(3)


def written(folder: Path, schema: pa.Schema, splits: Iterable[Split | pa.RecordBatch], n: int, buffer: int) -> None:
    """A partition of splits, and of batches for all."""
    with SortMergeWriter(folder, schema, ID, n, FileOptions(sort_buffer=buffer)) as writer:
        for each in splits:
            if isinstance(each, pa.RecordBatch):
                writer.broadcast(each)
            else:
                writer.write_split(each)
        writer.finish()


@settings(max_examples=examples(150), deadline=None)
@given(
    names=st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5),
    n=st.sampled_from([1, 2, 7, 300]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["split", "as it is", "one by one", "for all"]),
            st.sampled_from([1, 2, 63, 64, 700]),
            st.sampled_from(["none", "none", "first", "all"]),
        ),
        max_size=8,
    ),
    buffer=st.sampled_from([1, 500, 5000, 1 << 20]),
    seed=st.integers(0, 1 << 20),
)
def test_each_subpartition_gets_its_rows_in_order(
    names: list[str], n: int, steps: list[tuple[str, int, str]], buffer: int, seed: int
) -> None:
    """With any columns, nulls, sizes, memory and turns of splits with single batches and broadcasts."""
    rng = np.random.default_rng(seed)
    schema = pa.schema([pa.field(f"{at} {name}", KINDS[name]) for at, name in enumerate(names)])
    expected: list[list[pa.RecordBatch]] = [[] for _ in range(n)]
    with tempfile.TemporaryDirectory() as folder:
        with SortMergeWriter(Path(folder), schema, ID, n, FileOptions(sort_buffer=buffer)) as writer:
            for what, rows, nulls in steps:
                batch = rows_of(schema, rows, rng, nulls)
                split = scatter(batch, rng.integers(0, n, rows, np.uint16), n)
                if what == "as it is":
                    split = Split(batch, (n - 1, 0), (rows // 2, rows - rows // 2))
                if what == "for all":
                    writer.broadcast(batch)
                    for each in expected:
                        each.append(batch)
                    continue
                if what == "one by one":
                    for number, part in split:
                        writer.write(part, number)
                else:
                    writer.write_split(split)
                for number, part in split:
                    expected[number].append(part)
            ends = writer.finish()
        for number, parts in enumerate(expected):
            reader = Range(Path(folder), FileOrigin(ID), schema, number)
            found = pa.Table.from_batches(reader.batches(), schema)
            assert found.to_pylist() == pa.Table.from_batches(parts, schema).to_pylist()
            assert reader.end == ends[number]
            found.validate(full=True)
        total = sum(end.rows for end in ends)
        assert sum(each.num_rows for each in Range(Path(folder), FileOrigin(ID), schema, 0, n).batches()) == total


@pytest.mark.parametrize("splits", [1, 5])
def test_the_bytes_are_those_of_arrow(tmp_path: Path, splits: int) -> None:
    """A block is, byte for byte, what Arrow writes of the subpartition's rows."""
    rng = np.random.default_rng(1)
    schema = pa.schema(list(KINDS.items()))
    given_splits = [
        scatter(rows_of(schema, 999, rng, "none"), rng.integers(0, 40, 999, np.uint8), 40) for _ in range(splits)
    ]
    written(tmp_path, schema, given_splits, 40, 1 << 20)
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(40)]
    for split in given_splits:
        for number, part in split:
            parts[number].append(part)
    for number in range(40):
        (message,) = Range(tmp_path, FileOrigin(ID), schema, number).messages()
        length = int.from_bytes(message[:8], "little")
        payload = pa.py_buffer(bytes(message[16 : 16 + length]))
        found = read_payload(schema, payload)
        assert found.equals(pa.concat_batches(parts[number]))
        assert found.serialize().equals(payload)


def test_blocks_are_of_a_bounded_size(tmp_path: Path) -> None:
    """A subpartition with nearly all rows gets blocks of 256 KiB, cut where no split ends; the others one each."""
    values = np.arange(100_000)
    ids = np.where(values % 1000 < 990, 3, values % 7).astype(np.uint8)
    batch = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.int64(), 100_000, [None, pa.py_buffer(values)])], schema=NUMBER
    )
    parts = [scatter(batch.slice(at, 10_000), ids[at : at + 10_000], 7) for at in range(0, 100_000, 10_000)]
    written(tmp_path, NUMBER, parts, 7, 32 << 20)
    each_of = [Range(tmp_path, FileOrigin(ID), NUMBER, number) for number in range(7)]
    sizes = [[len(message) for message in reader.messages()] for reader in each_of]
    found = [key for each in each_of[3].batches() for key in each.column(0).to_pylist()]
    assert [len(reader.pieces) for reader in each_of] == [1] * 7
    assert [len(each) for each in sizes] == [1, 1, 1, 4, 1, 1, 1]
    assert max(sizes[3]) <= (256 << 10) + 300
    assert max(sizes[3]) - min(sizes[3]) < 100
    assert found == values[ids == 3].tolist()


def test_what_is_held_is_the_sort_buffer(tmp_path: Path) -> None:
    """Forty times the buffer passes through it: beside it are 24 bytes for each extent of the index."""
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << 40, 1 << 16)
    batch = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.int64(), 1 << 16, [None, pa.py_buffer(values)])], schema=NUMBER
    )
    split = scatter(batch, rng.integers(0, 1000, 1 << 16, np.uint16), 1000)
    allocated, highest = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    try:
        with SortMergeWriter(tmp_path, NUMBER, ID, 1000, FileOptions(sort_buffer=4 << 20)) as writer:
            assert writer.gather_bytes == 1 << 20
            for _ in range(40 * 8):
                writer.write_split(split)
                highest = max(highest, pa.total_allocated_bytes() - allocated)
            writer.finish()
            assert writer.writes < 40 * 8
        assert tracemalloc.get_traced_memory()[1] < (4 << 20) + (3 << 20)
        assert tracemalloc.get_traced_memory()[0] < (1 << 20) + 40 * 1000 * 24  # the lists of extents
    finally:
        tracemalloc.stop()
    assert highest < 3 << 20


def test_a_split_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Another schema, or a subpartition that is not there, before anything is held."""
    number = pa.RecordBatch.from_pydict({"number": [1]}, schema=NUMBER)
    with SortMergeWriter(tmp_path, NUMBER, ID, 2, FileOptions()) as writer:
        for numbers in ((2,), (-1,)):
            with pytest.raises(ValueError, match="no subpartition"):
                writer.write_split(Split(number, numbers, (1,)))
        with pytest.raises(ValueError, match="schema"):
            writer.write_split(Split(number.rename_columns(["other"]), (0,), (1,)))
        assert sum(end.rows for end in writer.finish()) == 0


def test_a_kept_batch_is_not_written_over(tmp_path: Path) -> None:
    """Columns are copied when a split is given: what its owner does with their memory later is of no concern."""
    values = np.arange(1000)
    batch = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.int64(), 1000, [None, pa.py_buffer(values)])], schema=NUMBER
    )
    with SortMergeWriter(tmp_path, NUMBER, ID, 2, FileOptions()) as writer:
        writer.write_split(scatter(batch, (values % 2).astype(np.uint8), 2))
        values[:] = -1
        writer.finish()
    (odd,) = Range(tmp_path, FileOrigin(ID), NUMBER, 1).batches()
    assert pc.sum(odd.column(0)).as_py() == sum(range(1, 1000, 2))
