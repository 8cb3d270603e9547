# SPDX-License-Identifier: Apache-2.0
"""Sort-merge partitions on a real file system: regions, ranges, broadcast, compression, what they hold and write."""

from __future__ import annotations

import gc
import os
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
from penstock.partition.extents import INDEX_NAME, data_name
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.shuffle import DatasetId, EndOfPartition
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.splits import Split
from penstock.shuffle.sums import sum_of
from stored_parts import Range

ID = PartitionId(DatasetId("job", 2), 4, 31)
ORIGIN = FileOrigin(ID, "host-b")
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])
SMALL = FileOptions(sort_buffer=4 << 10)


def batch(start: int, rows: int) -> pa.RecordBatch:
    """Rows that can be told from others."""
    numbers = range(start, start + rows)
    return pa.RecordBatch.from_pydict({"k": list(numbers), "s": [f"row {n}" for n in numbers]}, schema=SCHEMA)


def made(folder: Path) -> Path:
    """The folder, empty: a partition of one attempt is written once."""
    for path in (folder / INDEX_NAME, folder / data_name(0)):
        if path.is_file():
            path.unlink()
    return folder


def range_of(folder: Path, first: int, count: int = 1) -> Range:
    """A range of the test's partition."""
    return Range(folder, ORIGIN, SCHEMA, first, count)


def writer_in(folder: Path, subpartitions: int, options: FileOptions = SMALL) -> SortMergeWriter:
    """A writer of the test's partition."""
    return SortMergeWriter(made(folder), SCHEMA, ID, subpartitions, options)


def keys(folder: Path, first: int, count: int = 1) -> list[int]:
    """The first column of a range, in the order it is read."""
    return [key for each in range_of(folder, first, count).batches() for key in each.column("k").to_pylist()]


def split(*parts: tuple[int, int, int]) -> Split:
    """A split of new rows: of each part its subpartition, its first row's key and how many there are."""
    numbers, starts, counts = zip(*parts, strict=True)
    rows = pa.concat_batches([batch(start, count) for start, count in zip(starts, counts, strict=True)])
    return Split(rows, numbers, counts)


def test_each_subpartition_gets_its_rows_in_order(tmp_path: Path) -> None:
    """Over many regions rows come back by subpartition, in the order of writing, as often as one likes."""
    with writer_in(tmp_path, 7) as writer:
        for start in range(0, 2000, 10):
            writer.write(batch(start, 10), (start // 10) % 7)
        ends = writer.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == [data_name(0), INDEX_NAME]
    expected = [[k for k in range(2000) if (k // 10) % 7 == number] for number in range(7)]
    for _ in range(2):
        assert [keys(tmp_path, number) for number in range(7)] == expected
    assert [end.rows for end in ends] == [len(each) for each in expected]
    assert len(range_of(tmp_path, 0, 7).pieces) > 5 * 7
    found = range_of(tmp_path, 3)
    assert list(found.batches()) == list(found.batches())
    assert found.end == ends[3]


def test_short_extents_that_lie_together_are_read_together(tmp_path: Path) -> None:
    """They are mapped together, lists and all, and come checked in views below 256 KiB; empty ones do no harm."""
    full = [number for number in range(60) if number % 7]
    with writer_in(tmp_path, 60, FileOptions()) as writer:
        for number in full:
            writer.write(batch(number * 1000, 1000), number)
        writer.finish()
    views = list(range_of(tmp_path, 0, 60).views())
    pieces = range_of(tmp_path, 0, 60).pieces
    assert [piece.extent.file for piece in pieces] == [0] * len(full)
    assert max(map(len, views)) < 256 << 10
    assert len(views) <= -(-sum(map(len, views)) // (200 << 10)), "a view is nearly as long as it may be"
    assert sum(map(len, views)) == sum(piece.extent.length for piece in pieces)
    assert keys(tmp_path, 0, 60) == [key for number in full for key in range(number * 1000, number * 1000 + 1000)]
    assert keys(tmp_path, 7) == []
    last = pieces[-1].extent
    with (tmp_path / data_name(0)).open("r+b") as file:
        file.seek(last.offset + last.length - 1)
        file.write(b"\xff")
    damaged = range_of(tmp_path, 0, 60).views()
    assert bytes(next(damaged)) == bytes(views[0]), "the views before it are sound"
    with pytest.raises(IncompleteDataError, match=f"the extent at {last.offset} does not match"):
        list(damaged)


def test_a_range_is_read_region_by_region(tmp_path: Path) -> None:
    """A range gives the rows of its subpartitions, the file front to back, and the sums of their ends."""
    with writer_in(tmp_path, 5) as writer:
        for start in range(0, 1000, 20):
            writer.write(batch(start, 20), (start // 20) % 5)
        ends = writer.finish()
    assert sorted(keys(tmp_path, 1, 3)) == [k for k in range(1000) if 1 <= (k // 20) % 5 <= 3]
    found = range_of(tmp_path, 1, 3)
    offsets = [piece.extent.offset for piece in found.pieces]
    assert offsets == sorted(offsets)
    assert len(list(found.views())) < len(offsets) / 2
    assert sum(each.num_rows for each in found.batches()) == sum(end.rows for end in ends[1:4])
    assert found.end == sum_of(ends[1:4])


def test_subpartitions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    """None at all, or one after the last: the caller's mistake."""
    with pytest.raises(ValueError, match="at least one"):
        writer_in(tmp_path, 0)
    with writer_in(tmp_path, 3) as writer, pytest.raises(ValueError, match="no subpartition 3"):
        writer.write(batch(0, 1), 3)


def test_empty_partitions_and_subpartitions(tmp_path: Path) -> None:
    """No batch at all is an empty partition, not a missing one; so is a subpartition without one, or with no row."""
    with writer_in(tmp_path, 3) as writer:
        assert writer.finish() == (EndOfPartition(0, 0, 0),) * 3
    assert keys(tmp_path, 0, 3) == []
    with writer_in(tmp_path, 3) as writer:
        writer.write(batch(0, 0), 1)
        ends = writer.finish()
    assert [end.rows for end in ends] == [0, 0, 0]
    assert [end.bytes > 0 for end in ends] == [False, True, False]
    assert [each.num_rows for each in range_of(tmp_path, 0, 3).batches()] == [0]


def test_broadcast_is_stored_once_and_read_by_all(tmp_path: Path) -> None:
    """However many subpartitions there are the file holds a broadcast batch once, in its place among the others."""
    sizes = []
    for subpartitions in (1, 1000):
        with writer_in(tmp_path, subpartitions) as writer:
            writer.write(batch(0, 1), 0)
            writer.broadcast(batch(100, 2000))
            writer.write(batch(7000, 2), 0)
            ends = writer.finish()
            sizes.append(writer.bytes_on_disk)
        assert keys(tmp_path, 0) == [0, *range(100, 2100), 7000, 7001]
        assert ends[0].rows == 2003
    assert sizes[1] < sizes[0] + 1000 * 24 + 1000
    assert keys(tmp_path, 999) == list(range(100, 2100))
    assert [end.rows for end in ends[1:]] == [2000] * 999


def test_a_range_holds_a_broadcast_batch_once_for_each_subpartition(tmp_path: Path) -> None:
    """Each of the range's subpartitions holds the batch, so it comes as often, and the sums say so."""
    with writer_in(tmp_path, 4) as writer:
        writer.broadcast(batch(0, 2))
        writer.write(batch(50, 1), 2)
        writer.finish()
    assert keys(tmp_path, 1, 3) == [0, 1, 0, 1, 0, 1, 50]
    assert len(range_of(tmp_path, 1, 3).messages()) == 4


def test_turns_of_broadcast_and_single_batches_keep_their_order(tmp_path: Path) -> None:
    """Each turn is a region of its own; subpartitions that hold the same share one list in the index."""
    with writer_in(tmp_path, 500) as writer:
        for turn in range(50):
            writer.write(batch(turn * 2, 1), 3)
            writer.broadcast(batch(turn * 2 + 1, 1))
        writer.finish()
    assert keys(tmp_path, 3) == list(range(100))
    assert keys(tmp_path, 4) == list(range(1, 100, 2))
    assert (tmp_path / INDEX_NAME).stat().st_size < 500 * 24 + 3 * 50 * 24 + 300


def test_messages_are_the_blocks_as_the_record_stream_frames_them(tmp_path: Path) -> None:
    """Length, checksum, payload, zeroes to a multiple of 8."""
    with writer_in(tmp_path, 2, FileOptions()) as writer:
        writer.write(batch(0, 3), 0)
        writer.write(batch(3, 1), 1)
        writer.finish()
    messages = range_of(tmp_path, 0, 2).messages()
    for message, each in zip(messages, (batch(0, 3), batch(3, 1)), strict=True):
        length, checksum = (int.from_bytes(message[at : at + 8], "little") for at in (0, 8))
        payload = bytes(message[16 : 16 + length])
        assert checksum == xxhash.xxh3_64_intdigest(payload)
        assert read_payload(SCHEMA, pa.py_buffer(payload)) == each
        assert len(message) % 8 == 0


def test_small_batches_of_a_region_become_one_block(tmp_path: Path) -> None:
    """Four writes to a subpartition are read as one batch; large ones stay as they are, and cost no copy."""
    with writer_in(tmp_path, 2, FileOptions()) as writer:
        for start in range(4):
            writer.write(batch(start, 1), 1)
        writer.finish()
    assert [each.num_rows for each in range_of(tmp_path, 0, 2).batches()] == [4]
    with writer_in(tmp_path, 2, FileOptions()) as writer:
        for start in range(3):
            writer.write(batch(start, 20_000), 1)
        writer.finish()
    assert [each.num_rows for each in range_of(tmp_path, 1).batches()] == [20_000] * 3


def test_a_large_split_is_a_region_at_once(tmp_path: Path) -> None:
    """A split of half the buffer is not held; what was held before it stands before it; a small split is held."""
    allocated = pa.total_allocated_bytes()
    with writer_in(tmp_path, 5, FileOptions(sort_buffer=64 << 10)) as writer:
        size = writer.bytes_on_disk
        writer.write(batch(0, 1), 2)
        writer.write_split(split((4, 1, 2), (2, 3, 2)))
        assert writer.bytes_on_disk == size
        writer.write_split(split(*((number, 1000 * number, 900) for number in (3, 2, 1))))
        assert writer.bytes_on_disk > size + (32 << 10)
        assert pa.total_allocated_bytes() - allocated < 10_000  # nothing is held any more
        writer.write_split(Split(batch(0, 0), (), ()))
        writer.write_split(split((2, 10, 1)))
        with pytest.raises(ValueError, match="no subpartition 5"):
            writer.write_split(split((5, 0, 1)))
        writer.finish()
    assert keys(tmp_path, 2) == [0, 3, 4, *range(2000, 2900), 10]
    assert keys(tmp_path, 4) == [1, 2]
    assert [len(range_of(tmp_path, number).pieces) for number in range(5)] == [0, 1, 3, 1, 1]


def test_batches_lie_over_the_map_and_outlive_the_reader(tmp_path: Path) -> None:
    """Reading copies nothing, and a batch stays valid after its reader was closed and the files unlinked."""
    with writer_in(tmp_path, 1, FileOptions()) as writer:
        writer.write(batch(0, 200_000), 0)
        writer.finish()
    allocated = pa.total_allocated_bytes()
    batches = range_of(tmp_path, 0).batches()
    only = next(batches)
    assert pa.total_allocated_bytes() - allocated < 10_000
    batches.close()
    for name in (data_name(0), INDEX_NAME):
        (tmp_path / name).unlink()
    assert only == batch(0, 200_000)
    del only, batches
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression(tmp_path: Path, compression: str) -> None:
    """Compressed regions are smaller, counted as stored, and give the same rows; so do their messages."""
    sizes = []
    for each in ("none", compression):
        with writer_in(tmp_path, 3, FileOptions(each)) as writer:
            for start in range(0, 30_000, 1000):
                writer.write(batch(start, 1000), start // 1000 % 3)
            sizes.append(sum(end.bytes for end in writer.finish()))
    assert sizes[1] < sizes[0] * 3 / 4
    assert sorted(keys(tmp_path, 0, 3)) == list(range(30_000))
    payloads = [pa.py_buffer(message).slice(16) for message in range_of(tmp_path, 2).messages()]
    assert sum(read_payload(SCHEMA, payload).num_rows for payload in payloads) == 10_000


def test_what_is_open_held_and_written_does_not_grow_with_the_subpartitions(tmp_path: Path) -> None:
    """One file and runs of a MiB for 1,000 subpartitions; held are the sort buffer and little more."""
    rows = pa.RecordBatch.from_pydict({"k": range(1_000), "s": ["x" * 56] * 1_000}, schema=SCHEMA)
    before, allocated = open_descriptors(), pa.total_allocated_bytes()
    highest = 0
    with writer_in(tmp_path, 1000, FileOptions(sort_buffer=2 << 20)) as writer:
        assert len(open_descriptors() - before) == 1
        assert writer.gather_bytes == 2 << 20
        for _ in range(200):
            fresh = pa.concat_batches([rows, rows.slice(0, 0)])
            for number in range(1000):
                writer.write(fresh.slice(number, 1), number)
            highest = max(highest, pa.total_allocated_bytes() - allocated)
        writer.finish()
        assert writer.writes < 200 * 1000 * (68 + 400) / (1 << 20) * 3 + 10
    assert highest < 3 << 20
    assert open_descriptors() <= before
    assert keys(tmp_path, 999) == [999] * 200


def test_nothing_is_there_before_finish_and_nothing_stays_after_abort(tmp_path: Path) -> None:
    """The index appears at the end; given up, or left by an exception, no file stays."""
    with writer_in(tmp_path, 2) as writer:
        for start in range(0, 1000, 100):
            writer.write(batch(start, 100), 1)
        assert [path.name for path in tmp_path.iterdir()] == [data_name(0)]
    writer.abort()
    assert not writer.is_open
    assert list(tmp_path.iterdir()) == []
    for act in (writer.finish, lambda: writer.write(batch(0, 1), 0), lambda: writer.broadcast(batch(0, 1))):
        with pytest.raises(ValueError, match="finished or given up"):
            act()
    with writer_in(tmp_path, 2) as writer:
        writer.finish()
    writer.abort()
    assert len(list(tmp_path.iterdir())) == 2


def test_other_schema_is_refused(tmp_path: Path) -> None:
    """A batch that does not fit is an error before anything is written."""
    with writer_in(tmp_path, 2) as writer, pytest.raises(ValueError, match="schema"):
        writer.write(pa.RecordBatch.from_pydict({"k": [1]}), 0)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel refuses to let a file grow beyond this size, as a full disk or a quota would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(writer: SortMergeWriter) -> None:
    """A few hundred KiB, and the end."""
    for number in range(100):
        writer.write(batch(number, 100), number % 5)
    writer.finish()


@pytest.mark.parametrize("sort_buffer", [16 << 10, 16 << 20])
def test_full_disk_is_a_clear_error_and_gives_the_space_back(tmp_path: Path, sort_buffer: int) -> None:
    """In mid-write or at the end: directory, partition and setting are named, no file or descriptor stays."""
    before = open_descriptors()
    writer = writer_in(tmp_path, 5, FileOptions(sort_buffer=sort_buffer))
    with file_size_limit(4096), pytest.raises(PenstockError) as caught:
        fill(writer)
    for part in ("disk is full", str(tmp_path), str(ID), "spark.penstock.blocking.directories"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert not writer.is_open
    assert open_descriptors() <= before


def test_a_reserve_is_kept_free(tmp_path: Path) -> None:
    """A region that would leave less than the reserve is refused before it is written, and both files go."""
    system = os.statvfs(tmp_path)
    free = system.f_bavail * system.f_frsize
    with pytest.raises(PenstockError, match=re.escape("spark.penstock.blocking.reserve")):
        writer_in(tmp_path, 5, FileOptions(reserve=free * 2))
    assert list(tmp_path.iterdir()) == []
    with writer_in(tmp_path, 5, FileOptions(reserve=1)) as writer:
        writer.write(batch(0, 10), 1)
        writer.finish()
    assert keys(tmp_path, 1) == list(range(10))


class _Shrinking:
    """A file system with so many bytes free at the first look, and half as many at each following one."""

    f_frsize = 1

    def __init__(self, free: int) -> None:
        self._free = free

    @property
    def f_bavail(self) -> int:
        """The blocks that are free now."""
        self._free //= 2
        return self._free


def test_a_reserve_is_kept_free_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up while a partition is written: it is refused before the reserve is touched, and goes."""
    system = _Shrinking(8 << 20)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: system)
    writer = writer_in(tmp_path, 5, FileOptions(sort_buffer=16 << 10, reserve=1 << 20))
    with pytest.raises(PenstockError, match=re.escape("1048576 stay free (spark.penstock.blocking.reserve)")):
        fill(writer)
    assert list(tmp_path.iterdir()) == []
    assert not writer.is_open


def test_an_index_that_cannot_get_its_name_leaves_no_data(tmp_path: Path) -> None:
    """When the very last step fails nothing stays that could be taken for a partition."""
    (tmp_path / INDEX_NAME).mkdir()
    writer = writer_in(tmp_path, 2)
    writer.write(batch(0, 1), 0)
    with pytest.raises(PenstockError, match="directory"):
        writer.finish()
    assert list(tmp_path.iterdir()) == [tmp_path / INDEX_NAME]
    with pytest.raises(PenstockError, match="No such file"):
        writer_in(tmp_path / "no", 1)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes a few bytes at a time (signals, quotas) gets all of them in the end."""
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: os.pwrite(fd, parts[0][:700], offset))
    with writer_in(tmp_path, 9) as writer:
        for start in range(0, 900, 10):
            writer.write(batch(start, 10), start // 10 % 9)
        writer.finish()
    assert sorted(keys(tmp_path, 0, 9)) == list(range(900))


def test_missing_files_are_a_lost_partition(tmp_path: Path) -> None:
    """Whichever is gone, the error says which, of which partition and attempt, on which host."""
    for gone in (data_name(0), INDEX_NAME):
        with writer_in(tmp_path, 2) as writer:
            writer.write(batch(0, 3), 0)
            writer.finish()
        (tmp_path / gone).unlink()
        with pytest.raises(PartitionLostError) as caught:
            keys(tmp_path, 0)
        for part in (str(ID), "attempt 31", "host-b", str(tmp_path / gone), "gone"):
            assert part in str(caught.value)


def test_files_of_another_attempt_are_refused(tmp_path: Path) -> None:
    """A reader never mixes attempts: neither two foreign files nor a foreign data file beside the right index."""
    with writer_in(tmp_path, 2) as writer:
        writer.write(batch(0, 3), 0)
        writer.finish()
    with pytest.raises(IncompleteDataError, match=re.escape(f"holds partition {ID}")):
        Range(tmp_path, FileOrigin(PartitionId(DatasetId("job", 2), 4, 32), "host-b"), SCHEMA, 0)
    other = tmp_path / "other"
    other.mkdir()
    with SortMergeWriter(other, SCHEMA, PartitionId(DatasetId("job", 2), 4, 32), 2, SMALL) as writer:
        writer.write(batch(0, 3), 0)
        writer.finish()
    (other / data_name(0)).replace(tmp_path / data_name(0))
    with pytest.raises(IncompleteDataError, match=r"holds partition job-e2\.4#32") as caught:
        keys(tmp_path, 0)
    assert caught.value.partition == ID.to_wire()
