# SPDX-License-Identifier: Apache-2.0
"""A partition with a file for each subpartition, on a real file system: round trips, damage, full disks."""

from __future__ import annotations

import gc
import os
import pickle
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from holdings import open_descriptors
from penstock.buffer.arrow import read_payload
from penstock.errors import IncompleteDataError, PartitionLostError, PenstockError
from penstock.partition.extents import EXTENT_BYTES, INDEX_NAME, data_name
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.hash_writer import HashWriter
from penstock.shuffle import DatasetId, EndOfPartition
from penstock.shuffle.ids import PartitionId
from stored_parts import Range

ID = PartitionId(DatasetId("job", 2), 4, 31)
ORIGIN = FileOrigin(ID, "host-b")
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])
PLAIN = FileOptions()


def batch(start: int, rows: int) -> pa.RecordBatch:
    """Rows that can be told from others."""
    numbers = range(start, start + rows)
    return pa.RecordBatch.from_pydict({"k": list(numbers), "s": [f"row {n}" for n in numbers]}, schema=SCHEMA)


def write(
    folder: Path, batches: list[pa.RecordBatch], schema: pa.Schema = SCHEMA, options: FileOptions = PLAIN
) -> EndOfPartition:
    """A finished partition of one subpartition with these batches."""
    folder.mkdir(exist_ok=True)
    writer = HashWriter(folder, schema, ID, 1, options)
    for each in batches:
        writer.write(each, 0)
    (end,) = writer.finish()
    return end


def read(folder: Path, schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    """All batches of it."""
    return list(Range(folder, ORIGIN, schema, 0).batches())


def test_round_trip_any_number_of_times(tmp_path: Path) -> None:
    """Written rows are read, in order, again and again, by several readers; the figures agree."""
    batches = [batch(0, 100), batch(100, 0), batch(100, 1)]
    end = write(tmp_path / "r", batches)
    assert end.rows == 101
    one, two = Range(tmp_path / "r", ORIGIN, SCHEMA, 0), Range(tmp_path / "r", ORIGIN, SCHEMA, 0)
    interleaved = list(zip(one.batches(), two.batches(), strict=True))
    assert [pair[0] for pair in interleaved] == [pair[1] for pair in interleaved] == batches
    assert list(one.batches()) == batches
    assert one.end == end
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [data_name(0), INDEX_NAME]


def test_each_subpartition_has_a_file(tmp_path: Path) -> None:
    """Rows for all are in each of them; a range reads one after the other, and has few open at a time."""
    writer = HashWriter(tmp_path, SCHEMA, ID, 40, PLAIN)
    for number in range(40):
        writer.write(batch(number, 1), number)
    writer.broadcast(batch(100, 2))
    ends = writer.finish()
    assert len(list(tmp_path.iterdir())) == 41
    assert [end.rows for end in ends] == [3] * 40
    before, most = open_descriptors(), 0
    keys = []
    for each in Range(tmp_path, ORIGIN, SCHEMA, 3, 37).batches():
        keys += each.column("k").to_pylist()
        most = max(most, len(open_descriptors() - before))
    assert keys == [key for number in range(3, 40) for key in (number, 100, 101)]
    assert most < 20


def test_long_rows_are_cut_into_extents(tmp_path: Path) -> None:
    """An extent is no longer than what is worth reading at once, or one batch where that is longer."""
    batches = [batch(start, 20_000) for start in range(0, 200_000, 20_000)] + [batch(0, 150_000)]
    write(tmp_path / "r", batches)
    found = Range(tmp_path / "r", ORIGIN, SCHEMA, 0)
    lengths = [piece.extent.length for piece in found.pieces]
    assert len(lengths) > 2
    assert all(length <= EXTENT_BYTES for length in lengths[:-1])
    assert lengths[-1] > EXTENT_BYTES
    assert list(found.batches()) == batches


def test_empty_result(tmp_path: Path) -> None:
    """A producer without a batch leaves an index of nothing; that is not a missing partition."""
    assert write(tmp_path / "r", []) == EndOfPartition(0, 0, 0)
    assert read(tmp_path / "r") == []


@pytest.mark.parametrize(
    "data",
    [
        {"d": pa.array(["x", "y", None, "x"]).dictionary_encode()},
        {"l": pa.array([[{"a": 1}], [], None], pa.list_(pa.struct([("a", pa.int8())])))},
        {"v": pa.array(["short", "a string that is too long for a view's inline part"], pa.string_view())},
        {"n": pa.nulls(3)},
        {"d": pa.array([["x"], ["y", "x"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))},
    ],
)
def test_types(tmp_path: Path, data: dict[str, pa.Array]) -> None:
    """Nested, view, null and dictionary columns (these as streams of their own) come back equal; metadata too."""
    whole = pa.RecordBatch.from_pydict(data).replace_schema_metadata({"who": "me"})
    batches = [whole, whole.slice(1, 1)]
    write(tmp_path / "r", batches, whole.schema)
    back = read(tmp_path / "r", whole.schema)
    assert back == batches
    assert back[0].schema.metadata == {b"who": b"me"}


def test_rows_without_columns_count(tmp_path: Path) -> None:
    """A batch of no columns keeps its row count."""
    bare = batch(0, 7).select([])
    assert write(tmp_path / "r", [bare], bare.schema).rows == 7
    assert [each.num_rows for each in read(tmp_path / "r", bare.schema)] == [7]


def test_batches_lie_over_the_map_and_outlive_the_reader(tmp_path: Path) -> None:
    """Reading copies nothing, and a batch stays valid after its reader was closed and the file unlinked."""
    write(tmp_path / "r", [batch(0, 50_000)])
    allocated = pa.total_allocated_bytes()
    batches = Range(tmp_path / "r", ORIGIN, SCHEMA, 0).batches()
    only = next(batches)
    assert pa.total_allocated_bytes() - allocated < 10_000
    batches.close()
    (tmp_path / "r" / data_name(0)).unlink()
    assert only == batch(0, 50_000)
    del only, batches
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_messages_are_those_of_the_record_stream(tmp_path: Path) -> None:
    """Length, checksum, payload, zeroes to a multiple of 8: the bytes that a reader elsewhere gets."""
    batches = [batch(0, 3), batch(3, 1)]
    write(tmp_path / "r", batches)
    messages = Range(tmp_path / "r", ORIGIN, SCHEMA, 0).messages()
    for message, each in zip(messages, batches, strict=True):
        length, checksum = (int.from_bytes(message[at : at + 8], "little") for at in (0, 8))
        payload = message[16 : 16 + length]
        assert checksum == xxhash.xxh3_64_intdigest(payload)
        assert read_payload(SCHEMA, pa.py_buffer(payload)) == each
        assert len(message) % 8 == 0
        assert not any(message[16 + length :])


def test_checksum_is_free_of_order(tmp_path: Path) -> None:
    """The same batches in another order have the same figures."""
    batches = [batch(0, 5), batch(5, 10), batch(15, 1)]
    assert write(tmp_path / "a", batches) == write(tmp_path / "b", batches[::-1])


def test_a_partition_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    """Before `finish` there is no index; after `abort` there is nothing, and after `finish` it changes nothing."""
    writer = HashWriter(tmp_path, SCHEMA, ID, 1, PLAIN)
    writer.write(batch(0, 10), 0)
    assert not (tmp_path / INDEX_NAME).exists()
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    for act in (writer.finish, lambda: writer.write(batch(0, 1), 0)):
        with pytest.raises(ValueError, match="finished or given up"):
            act()
    writer = HashWriter(tmp_path, SCHEMA, ID, 1, PLAIN)
    writer.write(batch(0, 1), 0)
    writer.finish()
    writer.abort()
    assert read(tmp_path) == [batch(0, 1)]


def test_other_schema_is_refused(tmp_path: Path) -> None:
    """A batch that does not fit is an error before anything is written."""
    writer = HashWriter(tmp_path, SCHEMA, ID, 1, PLAIN)
    size = writer.bytes_on_disk
    with pytest.raises(ValueError, match="schema"):
        writer.write(pa.RecordBatch.from_pydict({"k": [1]}), 0)
    assert writer.bytes_on_disk == size
    writer.abort()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel refuses to let a file grow beyond this size, as a full disk or a quota would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    """The error names directory, partition and setting, the file is gone, and no descriptor stays open."""
    before = open_descriptors()
    writer = HashWriter(tmp_path, SCHEMA, ID, 1, PLAIN)
    writer.write(batch(0, 10), 0)
    with file_size_limit(4096), pytest.raises(PenstockError) as caught:
        writer.write(batch(0, 10_000), 0)
    for part in ("disk is full", str(tmp_path), str(ID), "spark.penstock.blocking.directories"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert open_descriptors() <= before


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    """A missing directory is the same kind of error, at the start."""
    with pytest.raises(PenstockError, match="No such file"):
        HashWriter(tmp_path / "no", SCHEMA, ID, 1, PLAIN)


def test_an_index_that_cannot_get_its_name_leaves_no_data(tmp_path: Path) -> None:
    """When the last step fails the data files go too."""
    (tmp_path / INDEX_NAME).mkdir()
    writer = HashWriter(tmp_path, SCHEMA, ID, 2, PLAIN)
    with pytest.raises(PenstockError, match="directory"):
        writer.finish()
    assert list(tmp_path.iterdir()) == [tmp_path / INDEX_NAME]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes a few bytes at a time (signals, quotas) gets all of them in the end."""
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: os.pwrite(fd, parts[0][:7], offset))
    write(tmp_path / "r", [batch(0, 30)])
    assert read(tmp_path / "r") == [batch(0, 30)]


def test_missing_file_is_a_lost_partition(tmp_path: Path) -> None:
    """It says which partition, attempt, host and file."""
    with pytest.raises(PartitionLostError) as caught:
        read(tmp_path)
    for part in (str(ID), "attempt 31", "host-b", str(tmp_path / INDEX_NAME), "gone"):
        assert part in str(caught.value)
    assert "host-b" in str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301  (our own bytes)
    (tmp_path / INDEX_NAME).mkdir()
    with pytest.raises(PartitionLostError, match="cannot be read"):
        read(tmp_path)


def test_files_of_another_attempt_are_refused(tmp_path: Path) -> None:
    """A reader never mixes attempts, whatever lies under the name."""
    write(tmp_path / "r", [batch(0, 1)])
    other = FileOrigin(PartitionId(DatasetId("job", 2), 4, 32), "host-b")
    with pytest.raises(IncompleteDataError, match=re.escape(f"holds partition {ID}")):
        Range(tmp_path / "r", other, SCHEMA, 0)
    longer = FileOrigin(PartitionId(DatasetId("another job", 2), 4, 31), "host-b")
    with pytest.raises(IncompleteDataError, match="holds"):
        Range(tmp_path / "r", longer, SCHEMA, 0)


def test_exchanged_extents_are_found(tmp_path: Path) -> None:
    """Two sound extents of one length in each other's place: rows in the wrong order would be wrong rows."""
    folder = tmp_path / "r"
    folder.mkdir()
    writer = HashWriter(folder, SCHEMA, ID, 2, PLAIN)
    writer.write(batch(10, 3), 0)
    writer.write(batch(20, 3), 1)
    writer.finish()
    one, two = folder / data_name(0), folder / data_name(1)
    three = folder / "three"
    one.rename(three)
    two.rename(one)
    three.rename(two)
    with pytest.raises(IncompleteDataError, match="checksum of the extent") as caught:
        read(folder)
    assert caught.value.partition == ID.to_wire()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches(tmp_path: Path, compression: str) -> None:
    """Compressed payloads are smaller, counted as stored, and read back equal."""
    batches = [batch(0, 3000), batch(3000, 1)]
    end = write(tmp_path / "r", batches, options=FileOptions(compression))
    assert end.bytes < write(tmp_path / "plain", batches).bytes * 3 / 4
    assert read(tmp_path / "r") == batches


def test_a_reserve_is_kept_free(tmp_path: Path) -> None:
    """Less than the reserve free: refused before anything is written, by name of file and setting; nothing stays."""
    with pytest.raises(PenstockError) as caught:
        HashWriter(tmp_path, SCHEMA, ID, 1, FileOptions(reserve=1 << 62))
    for part in (str(tmp_path), str(ID), "spark.penstock.blocking.reserve", "free"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
