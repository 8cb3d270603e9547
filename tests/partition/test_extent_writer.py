# SPDX-License-Identifier: Apache-2.0
"""One file for few subpartitions: messages are as long as they have to be, and long ones are not held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.partition.extent_writer import ExtentWriter, one_file_writer
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId
from stored_parts import Range

ID = PartitionId(DatasetId("d", 1), 0, 7)
TEXTS = pa.schema([("s", pa.string())])


def writer_in(folder: Path, schema: pa.Schema, subpartitions: int) -> ExtentWriter:
    """A writer with the usual options."""
    folder.mkdir(exist_ok=True)
    return ExtentWriter(folder, schema, ID, subpartitions, FileOptions())


def test_few_subpartitions_are_not_sorted(tmp_path: Path) -> None:
    """As many as may have two MiB open within half a sort buffer; a partition of none has no writer and no file."""
    for count, form in ((1, ExtentWriter), (8, ExtentWriter), (9, SortMergeWriter)):
        folder = tmp_path / str(count)
        folder.mkdir()
        writer = one_file_writer(folder, TEXTS, ID, count, FileOptions())
        assert type(writer) is form
        writer.abort()
    for count in (0, -3):
        with pytest.raises(ValueError, match="must be at least one"):
            one_file_writer(tmp_path, TEXTS, ID, count, FileOptions())
    assert not list(tmp_path.glob("**/data*"))


def test_a_dictionary_is_stored_once_for_each_message_of_its_indices(tmp_path: Path) -> None:
    """A few indices of a large dictionary are one message: to cut by its bytes would store it once for each MiB."""
    words = pa.array([f"{number:08d}" + "v" * 1016 for number in range(8 << 10)])
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(2000, dtype=np.int32)), words)
    rows = pa.record_batch([column], names=["s"])
    writer = writer_in(tmp_path, rows.schema, 4)
    writer.write(rows, 1)
    writer.finish()
    assert words.nbytes < (tmp_path / "data.0").stat().st_size < 1.5 * words.nbytes
    found = Range(tmp_path, FileOrigin(ID), rows.schema, 1)
    assert pa.Table.from_batches(found.batches()).column(0).to_pylist() == column.to_pylist()


def test_bytes_that_views_share_are_stored_once(tmp_path: Path) -> None:
    """A slice of views has all their bytes: to cut it would store these once for each row."""
    texts = [f"{number:08d}" + "v" * 1016 for number in range(4 << 10)]
    schema = pa.schema([("s", pa.string_view())])
    writer = writer_in(tmp_path, schema, 1)
    writer.write(pa.record_batch([pa.array(texts, pa.string_view())], schema=schema), 0)
    writer.finish()
    assert (tmp_path / "data.0").stat().st_size < 6 << 20
    found = Range(tmp_path, FileOrigin(ID), schema, 0)
    assert pa.Table.from_batches(found.batches()).column(0).to_pylist() == texts


def test_short_rows_beside_a_long_one_stay_together(tmp_path: Path) -> None:
    """Rows are cut where they get long, and not by their average."""
    texts = ["short"] * 25 + ["x" * (4 << 20)] + ["short"] * 25
    writer = writer_in(tmp_path, TEXTS, 1)
    writer.write(pa.record_batch([pa.array(texts)], schema=TEXTS), 0)
    writer.finish()
    found = Range(tmp_path, FileOrigin(ID), TEXTS, 0)
    assert pa.Table.from_batches(found.batches()).column(0).to_pylist() == texts
    assert len(found.messages()) < 12, "halves of halves, and not a message for each row"


def test_long_rows_are_with_the_file_at_once(tmp_path: Path) -> None:
    """A message that fills an extent waits for no other: none is held, however many subpartitions have one."""
    writer = writer_in(tmp_path, TEXTS, 8)
    for subpartition in range(8):
        writer.write(pa.record_batch([pa.array(["x" * (3 << 20)])], schema=TEXTS), subpartition)
        assert writer.bytes_on_disk >= (subpartition + 1) * (3 << 20)
    writer.abort()
    assert not list(tmp_path.iterdir())
