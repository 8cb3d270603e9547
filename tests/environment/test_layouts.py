# SPDX-License-Identifier: Apache-2.0
"""Which layout a partition gets, and that what it had begun goes whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import PartitionLostError, PenstockError
from penstock.partition.extents import data_name
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.hash_writer import HashWriter
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.partition.stored import StoredRows
from penstock.record.copies import Copies
from penstock.services.local.result import sorts
from penstock.shuffle import DatasetId, EndOfPartition, PartitionDescriptor, PartitionId, PartitionKind
from penstock.shuffle.splits import Split
from stored_parts import Range
from underway import listed

SCHEMA = pa.schema([("n", pa.int64())])
PARTITION = PartitionId(DatasetId("job", 0), 0, 1)
ROW = pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)


@pytest.mark.parametrize(
    ("kind", "subpartitions", "broadcast", "is_sorted"),
    [
        (PartitionKind.BLOCKING_SORT_MERGE, 17, False, True),
        (PartitionKind.BLOCKING_SORT_MERGE, 16, False, False),
        (PartitionKind.BLOCKING_SORT_MERGE, 2, True, True),
        (PartitionKind.BLOCKING_SORT_MERGE, 1, True, False),
        (PartitionKind.BLOCKING_HASH, 1000, False, False),
        (PartitionKind.BLOCKING_PERSISTENT, 1, False, False),
    ],
)
def test_the_layout_follows_kind_and_number(
    kind: PartitionKind, subpartitions: int, broadcast: bool, is_sorted: bool
) -> None:
    """Sort-merge where it is asked for and there are more subpartitions than the threshold, or rows for all."""
    assert sorts(PartitionDescriptor(DatasetId("d", 0), 0, kind, subpartitions, broadcast), 16) is is_sorted


def test_files_that_cannot_all_be_made_are_all_removed(tmp_path: Path) -> None:
    """When the third file of three can't be made, the first two go again."""
    (tmp_path / data_name(2)).mkdir()
    with pytest.raises(PenstockError, match=data_name(2)):
        HashWriter(tmp_path, SCHEMA, PARTITION, 3, FileOptions())
    assert [path.name for path in listed(tmp_path)] == [data_name(2)]


def test_aborting_removes_what_is_begun(tmp_path: Path) -> None:
    """The files go; aborting twice is aborting once."""
    files = HashWriter(tmp_path, SCHEMA, PARTITION, 2, FileOptions())
    files.broadcast(ROW)
    assert len(listed(tmp_path)) == 2
    files.abort()
    files.abort()
    assert listed(tmp_path) == []


def test_a_range_survives_a_control_message(tmp_path: Path) -> None:
    """It is read as one, and a file that is gone is a lost partition."""
    files = HashWriter(tmp_path, SCHEMA, PARTITION, 4, FileOptions())
    for subpartition in (0, 1, 1, 3):
        files.write(ROW, subpartition)
    ends = files.finish()
    part = StoredRows(str(tmp_path), FileOrigin(PARTITION, "here"), (), 1, 2)
    again = StoredRows.from_message(part.to_message())
    assert again == part
    pieces = again.find()
    assert [piece.extent.file for piece in pieces] == [1]
    named = StoredRows(again.folder, again.origin, tuple(pieces))
    assert StoredRows.from_message(named.to_message()) == named
    assert list(named.find()) == pieces
    found = Range(tmp_path, again.origin, SCHEMA, 1, 2)
    assert [batch.num_rows for batch in found.batches()] == [1, 1]
    assert found.end == EndOfPartition(2, 2 * ends[0].bytes, 2 * ends[0].checksum % (1 << 64))
    (tmp_path / data_name(1)).unlink()
    with pytest.raises(PartitionLostError, match="attempt 1"):
        list(found.batches())


TEXT = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.mark.parametrize(
    ("made", "schema", "holds"),
    [
        (HashWriter, SCHEMA, False),
        (HashWriter, TEXT, False),
        (SortMergeWriter, SCHEMA, False),
        (SortMergeWriter, TEXT, True),
    ],
)
def test_files_say_whether_they_hold_batches(
    made: type[HashWriter | SortMergeWriter], schema: pa.Schema, holds: bool, tmp_path: Path
) -> None:
    """If they say no, the memory of a split may be written into as soon as it was taken, ordered or not."""
    files = made(tmp_path, schema, PARTITION, 2, FileOptions())
    assert files.holds_batches is holds
    values = np.zeros(4, np.int64)
    for step in range(6):
        values[:] = range(4 * step, 4 * step + 4)
        columns = [pa.array(values), pa.array(["x"] * 4)][: len(schema)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        order = pa.array([1, 3, 0, 2]) if step % 2 else None
        files.write_split(Split(Copies().of(batch) if holds else batch, (0, 1), (2, 2), order))
    values[:] = -1
    files.finish()
    found = [
        value
        for number in range(2)
        for batch in Range(tmp_path, FileOrigin(PARTITION, "here"), schema, number).batches()
        for value in batch["n"].to_pylist()
    ]
    assert sorted(found) == list(range(24))
