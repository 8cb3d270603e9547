# SPDX-License-Identifier: Apache-2.0
"""Which layout a partition gets, and that what it had begun goes whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergePaths, SortMergeWriter
from penstock.partition.stored import Layout, StoredFiles, StoredRange, layout_of
from penstock.record.copies import Copies
from penstock.record.partitioners import Split
from penstock.services.local.hash_files import HashFiles
from penstock.shuffle import DatasetId, EndOfPartition, PartitionDescriptor, PartitionId, PartitionKind
from penstock.shuffle.errors import PartitionLostError, PenstockError

SCHEMA = pa.schema([("n", pa.int64())])
PARTITION = PartitionId(DatasetId("job", 0), 0, 1)
ROW = pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)


@pytest.mark.parametrize(
    ("kind", "subpartitions", "broadcast", "layout"),
    [
        (PartitionKind.BLOCKING_SORT_MERGE, 17, False, Layout.SORT_MERGE),
        (PartitionKind.BLOCKING_SORT_MERGE, 16, False, Layout.HASH),
        (PartitionKind.BLOCKING_SORT_MERGE, 2, True, Layout.SORT_MERGE),
        (PartitionKind.BLOCKING_SORT_MERGE, 1, True, Layout.HASH),
        (PartitionKind.BLOCKING_HASH, 1000, False, Layout.HASH),
        (PartitionKind.BLOCKING_PERSISTENT, 1, False, Layout.HASH),
    ],
)
def test_the_layout_follows_kind_and_number(
    kind: PartitionKind, subpartitions: int, broadcast: bool, layout: Layout
) -> None:
    """Sort-merge where it is asked for and there are more subpartitions than the threshold, or rows for all."""
    assert layout_of(PartitionDescriptor(DatasetId("d", 0), 0, kind, subpartitions, broadcast), 16) is layout


def test_files_that_cannot_all_be_opened_are_all_removed(tmp_path: Path) -> None:
    """When the third file of three can't be made, the first two go again."""
    paths = [tmp_path / "0", tmp_path / "1", tmp_path / "missing" / "2"]
    with pytest.raises(PenstockError, match="missing"):
        HashFiles(paths, SCHEMA, PARTITION, FileOptions())
    assert list(tmp_path.iterdir()) == []


def test_aborting_removes_what_is_begun(tmp_path: Path) -> None:
    """Temporary files go; aborting twice is aborting once."""
    files = HashFiles([tmp_path / "0", tmp_path / "1"], SCHEMA, PARTITION, FileOptions())
    files.broadcast(ROW)
    assert len(list(tmp_path.iterdir())) == 2
    files.abort()
    files.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_range_of_hash_files_names_its_files_only(tmp_path: Path) -> None:
    """A range survives a control message, is read as one, and a file that is gone is a lost partition."""
    stored = StoredFiles(Layout.HASH, tmp_path, 4)
    files = HashFiles(stored.paths, SCHEMA, PARTITION, FileOptions())
    for subpartition in (0, 1, 1, 3):
        files.write(ROW, subpartition)
    ends = files.finish()
    origin = FileOrigin(PARTITION, "here")
    part = StoredRange.of(stored, 1, 2, origin)
    assert part.paths == (tmp_path / "1", tmp_path / "2")
    again = StoredRange.from_message(part.to_message())
    assert again == part
    found = again.open()
    assert [batch.num_rows for batch in found.batches()] == [1, 1]
    assert found.end == EndOfPartition(2, 2 * ends[0].bytes, 2 * ends[0].checksum % (1 << 64))
    (tmp_path / "2").unlink()
    with pytest.raises(PartitionLostError, match="attempt 1"):
        list(again.open().batches())


TEXT = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.mark.parametrize(
    ("layout", "schema", "holds"),
    [
        (Layout.HASH, SCHEMA, False),
        (Layout.HASH, TEXT, False),
        (Layout.SORT_MERGE, SCHEMA, False),
        (Layout.SORT_MERGE, TEXT, True),
    ],
)
def test_files_say_whether_they_hold_batches(layout: Layout, schema: pa.Schema, holds: bool, tmp_path: Path) -> None:
    """If they say no, the memory of a split may be written into as soon as it was taken, ordered or not."""
    stored = StoredFiles(layout, tmp_path, 2)
    files: HashFiles | SortMergeWriter = (
        HashFiles(stored.paths, schema, PARTITION, FileOptions())
        if layout is Layout.HASH
        else SortMergeWriter(SortMergePaths(*stored.paths), schema, PARTITION, 2, FileOptions())
    )
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
        for batch in StoredRange.of(stored, number, 1, FileOrigin(PARTITION, "here")).open().batches()
        for value in batch["n"].to_pylist()
    ]
    assert sorted(found) == list(range(24))
