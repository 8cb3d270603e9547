# SPDX-License-Identifier: Apache-2.0
"""Result files on a real file system: round trips, every kind of damage, full disks."""

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from holdings import open_descriptors
from penstock.buffer.arrow import PayloadFormat, read_payload
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.result_file import ResultFileReader, ResultFileSummary, ResultFileWriter
from penstock.shuffle import DatasetId
from penstock.shuffle.errors import IncompleteDataError, PartitionLostError, PenstockError
from penstock.shuffle.ids import PartitionId

ID = PartitionId(DatasetId("job", 2), 4, 31)
ORIGIN = FileOrigin(ID, "host-b")
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])


def batch(start: int, rows: int) -> pa.RecordBatch:
    """Rows that can be told from others."""
    numbers = range(start, start + rows)
    return pa.RecordBatch.from_pydict({"k": list(numbers), "s": [f"row {n}" for n in numbers]}, schema=SCHEMA)


def write(path: Path, batches: list[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> ResultFileSummary:
    """A finished file of these batches."""
    with ResultFileWriter(path, schema, ID) as writer:
        for each in batches:
            writer.write(each)
        return writer.finish()


def read(path: Path, origin: FileOrigin = ORIGIN) -> list[pa.RecordBatch]:
    """All batches of a file."""
    with ResultFileReader(path, origin) as reader:
        return list(reader)


def test_round_trip_any_number_of_times(tmp_path: Path) -> None:
    """Written rows are read, in order, again and again, by several readers; the summaries agree."""
    batches = [batch(0, 100), batch(100, 0), batch(100, 1)]
    summary = write(tmp_path / "r", batches)
    assert (summary.rows, summary.batches) == (101, 3)
    one, two = ResultFileReader(tmp_path / "r", ORIGIN), ResultFileReader(tmp_path / "r", ORIGIN)
    assert one.schema == SCHEMA
    assert one.summary == two.summary == summary
    interleaved = list(zip(one, two, strict=True))
    assert [pair[0] for pair in interleaved] == [pair[1] for pair in interleaved] == batches
    assert list(one) == batches
    assert list(tmp_path.iterdir()) == [tmp_path / "r"]


def test_empty_result(tmp_path: Path) -> None:
    """A producer without a batch leaves a file with a schema and nothing else; that is not a missing file."""
    assert write(tmp_path / "r", []) == ResultFileSummary(0, 0, 0, 0)
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
    back = read(tmp_path / "r")
    assert back == batches
    assert back[0].schema.metadata == {b"who": b"me"}


def test_rows_without_columns_count(tmp_path: Path) -> None:
    """A batch of no columns keeps its row count."""
    bare = batch(0, 7).select([])
    assert write(tmp_path / "r", [bare], bare.schema).rows == 7
    assert [each.num_rows for each in read(tmp_path / "r")] == [7]


def test_batches_lie_over_the_map_and_outlive_the_reader(tmp_path: Path) -> None:
    """Reading copies nothing, and a batch stays valid after its reader was closed and the file unlinked."""
    write(tmp_path / "r", [batch(0, 10_000)])
    allocated = pa.total_allocated_bytes()
    reader = ResultFileReader(tmp_path / "r", ORIGIN)
    (only,) = reader
    assert pa.total_allocated_bytes() - allocated < 10_000
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        list(reader)
    (tmp_path / "r").unlink()
    assert only == batch(0, 10_000)
    del only, reader
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_messages_are_the_blocks_as_the_record_stream_frames_them(tmp_path: Path) -> None:
    """Length, checksum, payload, zeroes to a multiple of 8: the bytes a reader of a subpartition would get."""
    batches = [batch(0, 3), batch(3, 1)]
    write(tmp_path / "r", batches)
    with ResultFileReader(tmp_path / "r", ORIGIN) as reader:
        messages = list(reader.messages())
    for message, each in zip(messages, batches, strict=True):
        length, checksum = (int.from_bytes(message[at : at + 8], "little") for at in (0, 8))
        payload = message[16 : 16 + length]
        assert checksum == xxhash.xxh3_64_intdigest(payload)
        assert read_payload(SCHEMA, pa.py_buffer(payload)) == each
        assert len(message) % 8 == 0
        assert not any(message[16 + length :])


def test_checksum_is_free_of_order(tmp_path: Path) -> None:
    """The same batches in another order have the same summary."""
    batches = [batch(0, 5), batch(5, 10), batch(15, 1)]
    assert write(tmp_path / "a", batches) == write(tmp_path / "b", batches[::-1])


def test_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    """Before `finish` there is nothing under its name; after `abort`, or an error in between, nothing at all."""
    path = tmp_path / "r"
    writer = ResultFileWriter(path, SCHEMA, ID)
    writer.write(batch(0, 10))
    assert not path.exists()
    writer.abort()
    writer.abort()
    assert not writer.is_open
    assert list(tmp_path.iterdir()) == []
    for act in (writer.finish, lambda: writer.write(batch(0, 1))):
        with pytest.raises(ValueError, match="finished or given up"):
            act()
    with pytest.raises(pa.ArrowInvalid), ResultFileWriter(path, SCHEMA, ID) as writer:
        pa.array(["not a number"]).cast(pa.int64())
    assert list(tmp_path.iterdir()) == []


def test_abort_after_finish_keeps_the_file(tmp_path: Path) -> None:
    """Closing twice does not take back what is finished; a re-run replaces the file in one step."""
    write(tmp_path / "r", [batch(0, 1)])
    writer = ResultFileWriter(tmp_path / "r", SCHEMA, ID)
    assert read(tmp_path / "r") == [batch(0, 1)]
    writer.finish()
    writer.abort()
    assert read(tmp_path / "r") == []


def test_other_schema_is_refused(tmp_path: Path) -> None:
    """A batch that does not fit the file is an error before anything is written."""
    with (
        ResultFileWriter(tmp_path / "r", SCHEMA, ID) as writer,
        pytest.raises(ValueError, match="schema"),
    ):
        writer.write(pa.RecordBatch.from_pydict({"k": [1]}))


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
    """The error names directory, partition and setting, the temporary file is gone, and no descriptor stays open."""
    before = open_descriptors()
    writer = ResultFileWriter(tmp_path / "r", SCHEMA, ID)
    writer.write(batch(0, 10))
    with file_size_limit(4096), pytest.raises(PenstockError) as caught:
        writer.write(batch(0, 10_000))
    for part in ("disk is full", str(tmp_path), str(ID), "spark.penstock.blocking.directories"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert not writer.is_open
    assert open_descriptors() <= before


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    """A missing directory is the same kind of error, at the start."""
    with pytest.raises(PenstockError, match="No such file"):
        ResultFileWriter(tmp_path / "no" / "r", SCHEMA, ID)


def test_rename_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """When the last step fails the temporary file is removed."""
    (tmp_path / "r").mkdir()
    writer = ResultFileWriter(tmp_path / "r", SCHEMA, ID)
    with pytest.raises(PenstockError, match="directory"):
        writer.finish()
    assert list(tmp_path.iterdir()) == [tmp_path / "r"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes a few bytes at a time (signals, quotas) gets all of them in the end."""
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: os.pwrite(fd, parts[0][:7], offset))
    write(tmp_path / "r", [batch(0, 30)])
    assert read(tmp_path / "r") == [batch(0, 30)]


def test_missing_file_is_a_lost_partition(tmp_path: Path) -> None:
    """It says which partition, attempt, host and file."""
    with pytest.raises(PartitionLostError) as caught:
        ResultFileReader(tmp_path / "r", ORIGIN)
    for part in (str(ID), "attempt 31", "host-b", str(tmp_path / "r"), "gone"):
        assert part in str(caught.value)
    assert "host-b" in str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301  (our own bytes)
    with pytest.raises(PartitionLostError, match="cannot be read"):
        ResultFileReader(tmp_path, ORIGIN)


def test_file_of_another_attempt_is_refused(tmp_path: Path) -> None:
    """A reader never mixes attempts, whatever lies under the name."""
    write(tmp_path / "r", [batch(0, 1)])
    with pytest.raises(IncompleteDataError, match=re.escape(f"holds partition {ID}")):
        read(tmp_path / "r", FileOrigin(PartitionId(DatasetId("job", 2), 4, 32), "host-b"))


def damaged(tmp_path: Path, data: bytes) -> str | None:
    """Read these bytes as a file: the message it is refused with, or None if nothing is wrong."""
    path = tmp_path / "damaged"
    path.write_bytes(data)
    try:
        by_batch = read(path)
        with ResultFileReader(path, ORIGIN) as reader:
            assert len(list(reader.messages())) == len(by_batch)
    except IncompleteDataError as error:
        return str(error)
    return None


@pytest.mark.parametrize("dictionary", [False, True])
def test_every_flipped_bit_is_found(tmp_path: Path, dictionary: bool) -> None:
    """In each byte of the file, header, schema, padding and footer included, a flipped bit is refused with a name."""
    small = pa.RecordBatch.from_pydict({"s": pa.array(["a", "b"])})
    if dictionary:
        small = pa.RecordBatch.from_pydict({"s": pa.array(["a", "b"]).dictionary_encode()})
    write(tmp_path / "r", [small, small.slice(1)], small.schema)
    data = (tmp_path / "r").read_bytes()
    assert damaged(tmp_path, data) is None
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        message = damaged(tmp_path, bytes(flipped))
        assert message is not None, f"byte {position} of {len(data)}"
        for part in (str(ID), "attempt 31", "host-b", str(tmp_path / "damaged")):
            assert part in message


def test_padding_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of any length are padded with zeroes, and anything else in their place is refused."""
    monkeypatch.setattr(PayloadFormat, "encode", lambda _, each: pa.py_buffer(each.serialize().to_pybytes() + b"xyz"))
    write(tmp_path / "r", [batch(0, 2)])
    data = bytearray((tmp_path / "r").read_bytes())
    assert len(data) % 8 == 0
    assert damaged(tmp_path, bytes(data)) is None
    for position in range(len(data) - 48 - 5, len(data) - 48):
        data[position] = 1
        message = damaged(tmp_path, bytes(data))
        assert message is not None
        assert "behind the block" in message
        data[position] = 0


def test_row_counts_are_those_of_their_own_batch(tmp_path: Path) -> None:
    """Two batches whose counts are exchanged keep all sums, and are refused all the same."""
    write(tmp_path / "r", [batch(0, 3), batch(3, 5)])
    data = bytearray((tmp_path / "r").read_bytes())
    with ResultFileReader(tmp_path / "r", ORIGIN) as reader:
        first = reader._first
    second = first + 32 + int.from_bytes(data[first + 16 : first + 24], "little")
    assert [data[at] for at in (first, second)] == [3, 5]
    data[first], data[second] = data[second], data[first]
    path = tmp_path / "exchanged"
    path.write_bytes(data)
    with pytest.raises(IncompleteDataError, match="has 3 rows instead of 5"):
        read(path)


def test_exchanged_batches_are_found(tmp_path: Path) -> None:
    """Two sound blocks of one length in each other's place: rows in the wrong order would be wrong rows."""
    write(tmp_path / "r", [batch(0, 3), batch(3, 3)])
    data = (tmp_path / "r").read_bytes()
    with ResultFileReader(tmp_path / "r", ORIGIN) as reader:
        first, last = reader._first, reader._last
    middle = (first + last) // 2
    message = damaged(tmp_path, data[:first] + data[middle:last] + data[first:middle] + data[last:])
    assert message is not None
    assert "stands block 0x1 instead of 0x0" in message


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches(tmp_path: Path, compression: str) -> None:
    """Compressed payloads are smaller, counted as stored, and read back equal: as batches and as messages."""
    batches = [batch(0, 3000), batch(3000, 1)]
    with ResultFileWriter(tmp_path / "r", SCHEMA, ID, FileOptions(compression)) as writer:
        for each in batches:
            writer.write(each)
        summary = writer.finish()
    assert summary.bytes < write(tmp_path / "plain", batches).bytes * 3 / 4
    assert read(tmp_path / "r") == batches
    with ResultFileReader(tmp_path / "r", ORIGIN) as reader:
        messages = list(reader.messages())
    assert [read_payload(SCHEMA, pa.py_buffer(message).slice(16)) for message in messages] == batches


def test_a_reserve_is_kept_free(tmp_path: Path) -> None:
    """Less than the reserve free: refused before anything is written, by name of file and setting; nothing stays."""
    with pytest.raises(PenstockError) as caught:
        ResultFileWriter(tmp_path / "r", SCHEMA, ID, FileOptions(reserve=1 << 62))
    for part in (str(tmp_path), str(ID), "spark.penstock.blocking.reserve", "free"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_every_cut_is_found(tmp_path: Path) -> None:
    """A file cut anywhere, to nothing too, is refused; so is one with something after its end."""
    write(tmp_path / "r", [batch(0, 2), batch(2, 1)])
    data = (tmp_path / "r").read_bytes()
    for length in range(len(data)):
        assert damaged(tmp_path, data[:length]) is not None, f"{length} of {len(data)} bytes"
    assert damaged(tmp_path, data + b"x") is not None


def test_swapped_and_missing_batches_are_found(tmp_path: Path) -> None:
    """A whole batch taken out, blocks being sound each for itself, does not fit the footer's counts."""
    write(tmp_path / "one", [batch(0, 8)])
    write(tmp_path / "two", [batch(0, 8), batch(0, 8)])
    one, two = (tmp_path / "one").read_bytes(), (tmp_path / "two").read_bytes()
    assert damaged(tmp_path, one[:-48] + two[-48:]) is not None
    assert damaged(tmp_path, two[:-48] + one[-48:]) is not None


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), keep=st.integers(0, 400), seed=st.integers(0, 10_000))
def test_garbage_is_refused_with_the_typed_error(tmp_path: Path, data: bytes, keep: int, seed: int) -> None:
    """Random bytes, alone or in the middle of a sound file, give IncompleteDataError and nothing else."""
    write(tmp_path / "r", [batch(0, 5)])
    sound = (tmp_path / "r").read_bytes()
    at = seed % len(sound)
    mixed = sound[:keep] + data + sound[at:]
    message = damaged(tmp_path, mixed)
    assert (message is None) == (mixed == sound)
    assert damaged(tmp_path, data) is not None
