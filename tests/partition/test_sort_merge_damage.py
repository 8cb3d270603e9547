# SPDX-License-Identifier: Apache-2.0
"""Damaged sort-merge files: a flipped bit, a cut, something foreign. Never wrong rows, always the typed error."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples, some_of, with_all
from penstock.errors import IncompleteDataError, PartitionLostError
from penstock.partition.extent_reader import MAPPED, TOGETHER
from penstock.partition.extents import DATA, INDEX_NAME, data_name
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId
from stored_parts import Range

ID = PartitionId(DatasetId("job", 2), 4, 31)
ORIGIN = FileOrigin(ID, "host-b")
SUBPARTITIONS = 3
SCHEMAS = {
    "plain": pa.schema([("k", pa.int16()), ("s", pa.string())]),
    "dictionary": pa.schema([("k", pa.int16()), ("s", pa.dictionary(pa.int8(), pa.string()))]),
}
Rows = list[tuple[int, str]]


def batch(kind: str, start: int, rows: int) -> pa.RecordBatch:
    """Rows that can be told from others."""
    numbers = range(start, start + rows)
    texts = pa.array([f"r{n}" for n in numbers], pa.string())
    columns = [pa.array(numbers, pa.int16()), texts.dictionary_encode() if kind == "dictionary" else texts]
    return pa.RecordBatch.from_arrays(
        [columns[0], columns[1].cast(SCHEMAS[kind].field(1).type)], schema=SCHEMAS[kind]
    )


def write(folder: Path, kind: str = "plain", compression: str = "none") -> Path:
    """Two regions of single batches with a broadcast one between them."""
    folder.mkdir()
    with SortMergeWriter(folder, SCHEMAS[kind], ID, SUBPARTITIONS, FileOptions(compression)) as writer:
        writer.write(batch(kind, 0, 2), 2)
        writer.write(batch(kind, 2, 3), 0)
        writer.broadcast(batch(kind, 100, 2))
        writer.write(batch(kind, 5, 1), 2)
        writer.finish()
    return folder


def read(folder: Path, kind: str, first: int, count: int) -> tuple[Rows, BaseException | None]:
    """The rows of a range up to its end, or to the typed error that ended it."""
    rows: Rows = []
    try:
        for each in Range(folder, ORIGIN, SCHEMAS[kind], first, count).batches():
            rows += [(row["k"], row["s"]) for row in each.to_pylist()]
    except (IncompleteDataError, PartitionLostError) as error:
        return rows, error
    return rows, None


RANGES = [(0, 1), (1, 1), (2, 1), (0, SUBPARTITIONS)]


class Damage:
    """Sound files, and what a reader of damaged copies of them may find."""

    def __init__(self, folder: Path, kind: str = "plain", compression: str = "none") -> None:
        self.kind = kind
        self.sound = write(folder / "sound", kind, compression)
        self.folder = folder / "damaged"
        self.folder.mkdir(exist_ok=True)
        self.data, self.index = ((self.sound / name).read_bytes() for name in (data_name(0), INDEX_NAME))
        self.rows = {each: read(self.sound, kind, *each) for each in RANGES}
        assert all(error is None for _, error in self.rows.values())

    def put(self, data: bytes, index: bytes) -> None:
        """Make these the damaged files."""
        (self.folder / data_name(0)).write_bytes(data)
        (self.folder / INDEX_NAME).write_bytes(index)

    def errors(self, data: bytes, index: bytes) -> list[str]:
        """Read every range of these files: rows before an error must be right ones; the errors' texts."""
        self.put(data, index)
        texts = []
        for each in RANGES:
            expected, _ = self.rows[each]
            rows, error = read(self.folder, self.kind, *each)
            if error is None:
                assert rows == expected
            else:
                assert rows == expected[: len(rows)]
                texts.append(str(error))
        for text in texts:
            assert str(ID) in text
            assert "attempt 31" in text
            assert "host-b" in text
            assert str(self.folder) in text
        return texts


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The same bytes with one bit flipped, for each byte."""
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        yield position, bytes(flipped)


@pytest.mark.parametrize(
    ("kind", "compression"), [("plain", "none"), ("dictionary", "none"), with_all("plain", "lz4"), ("plain", "zstd")]
)
def test_every_flipped_bit_is_found(tmp_path: Path, kind: str, compression: str) -> None:
    """In each byte of either file a flipped bit is refused by who reads it, with partition, host and file.

    In each of plain rows without compression, that is; of the other kinds a run of `make test` takes each fifth byte.
    """
    damage = Damage(tmp_path, kind, compression)
    share = 1 if (kind, compression) == ("plain", "none") else 5
    assert damage.errors(damage.data, damage.index) == []
    for position, flipped in some_of(list(flips(damage.data)), share):
        assert damage.errors(flipped, damage.index), f"byte {position} of the data"
    for position, flipped in some_of(list(flips(damage.index)), share):
        assert damage.errors(damage.data, flipped), f"byte {position} of the index"


def test_every_cut_is_found(tmp_path: Path) -> None:
    """A cut index is refused for every range, and cut data for each that reads what is missing.

    Bytes behind the last extent belong to nobody and harm nobody; behind an index they are damage.
    """
    damage = Damage(tmp_path)
    for length in range(len(damage.data)):
        assert damage.errors(damage.data[:length], damage.index), f"data cut to {length}"
    for length in range(len(damage.index)):
        assert len(damage.errors(damage.data, damage.index[:length])) == len(RANGES), f"index cut to {length}"
    for behind in (b"x", bytes(8), damage.data):
        assert damage.errors(damage.data + behind, damage.index) == []
        assert len(damage.errors(damage.data, damage.index + behind)) == len(RANGES)


def test_a_map_without_its_bytes_is_an_error(tmp_path: Path) -> None:
    """A file that is cut under its reader, as a disk that fails: a look at such a page would end the process."""
    schema = pa.schema([("n", pa.int64())])
    rows = pa.RecordBatch.from_arrays([pa.array(np.arange(MAPPED // 4))], schema=schema)
    with SortMergeWriter(tmp_path, schema, ID, 1, FileOptions("none")) as writer:
        for _ in range(3 * TOGETHER // rows.nbytes):
            writer.write(rows, 0)
        writer.finish()
    assert sum(len(view) for view in Range(tmp_path, ORIGIN, schema, 0).views()) > 2 * TOGETHER
    views = Range(tmp_path, ORIGIN, schema, 0).views()
    assert len(next(views)) >= MAPPED
    os.truncate(tmp_path / data_name(DATA), TOGETHER)
    with pytest.raises(PartitionLostError, match="cannot be read"):
        list(views)


def test_what_a_range_does_not_read_does_not_harm_it(tmp_path: Path) -> None:
    """A flipped bit in one subpartition's rows is that one's loss: the others are read to their ends."""
    damage = Damage(tmp_path)
    first = Range(damage.sound, ORIGIN, SCHEMAS["plain"], 0).pieces[0].extent
    flipped = bytearray(damage.data)
    flipped[first.offset + first.length // 2] ^= 16
    damage.put(bytes(flipped), damage.index)
    assert [read(damage.folder, "plain", *each)[1] is None for each in RANGES] == [False, True, True, False]


def test_files_of_another_run_do_not_fit(tmp_path: Path) -> None:
    """Data and index of two writings of one attempt are refused, even where sizes and offsets are the same."""
    damage = Damage(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with SortMergeWriter(other, SCHEMAS["plain"], ID, SUBPARTITIONS, FileOptions()) as writer:
        for start, rows, subpartition in ((10, 2, 2), (12, 3, 0), (0, 0, -1), (15, 1, 2)):
            if subpartition < 0:
                writer.broadcast(batch("plain", 200, 2))
            else:
                writer.write(batch("plain", start, rows), subpartition)
        writer.finish()
    damage.put((other / data_name(0)).read_bytes(), damage.index)
    assert all(isinstance(read(damage.folder, "plain", *each)[1], IncompleteDataError) for each in RANGES)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=200), seed=st.integers(0, 1 << 30), in_index=st.booleans())
def test_garbage_is_refused_with_the_typed_error(tmp_path: Path, garbage: bytes, seed: int, in_index: bool) -> None:
    """Random bytes alone, or in the place of others, give the typed error or, where nobody reads them, right rows."""
    damage = Damage(Path(tempfile.mkdtemp(dir=tmp_path)))
    sound = damage.index if in_index else damage.data
    keep, skip = (random.Random(seed).randrange(len(sound) + 1) for _ in range(2))
    for mixed in (
        garbage,
        sound[:keep] + garbage + sound[keep + len(garbage) :],
        sound[:keep] + garbage + sound[skip:],
    ):
        data, index = (damage.data, mixed) if in_index else (mixed, damage.index)
        is_longer = not in_index and mixed.startswith(sound)
        assert damage.errors(data, index) or mixed == sound or is_longer
