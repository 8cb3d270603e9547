# SPDX-License-Identifier: Apache-2.0
"""The forms of a sink's files: folders named by columns, CSV, JSON lines."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from dropping_mount import Mount
from penstock.operators.csv_write import PLAIN_CSV, CsvSigns, csv_header, csv_lines
from penstock.operators.json_write import json_fault, json_lines
from penstock.stream import sink_files
from penstock.stream.folder_sink import FolderSink, FolderWriter
from penstock.stream.sink_folder import SinkFolder
from underway import listed

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
ATTEMPTS = itertools.count()


def rows(*pairs: tuple[str | None, int]) -> pa.RecordBatch:
    """Keys and numbers."""
    keys, numbers = zip(*pairs, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), pa.array(numbers, pa.int64())], schema=SCHEMA)


def opened(folder: Path, restored: list[bytes], form: str = "parquet") -> FolderWriter:
    """A writer of the next attempt, into folders by k."""
    made = FolderSink(pafs.LocalFileSystem(), str(folder), SCHEMA, "q", form, partition_by=("k",))
    return made.owned(f"000001-0123456789abcdef-{next(ATTEMPTS):06d}").open(0, 1, restored)


def seen(folder: Path) -> dict[str, list[int]]:
    """The numbers that readers find in each folder."""
    files = listed(folder, "**/part-*")
    found: dict[str, list[int]] = {}
    for file in files:
        found.setdefault(file.parent.name, []).extend(pq.read_table(file, partitioning=None)["n"].to_pylist())
    return {name: sorted(values) for name, values in found.items()}


def test_rows_lie_in_folders_that_are_named_as_sparks(tmp_path: Path) -> None:
    """Null and the empty string, signs that file systems mind; none is seen before its checkpoint is complete."""
    writer = opened(tmp_path, [])
    writer.write(rows(("a", 1), (None, 2), ("", 3), ("x/y=1:%", 4), ("a", 5)))
    state = writer.prepare(1)
    writer.sync(state)
    assert seen(tmp_path) == {}
    writer.commit(1)
    assert seen(tmp_path) == {"k=a": [1, 5], "k=__HIVE_DEFAULT_PARTITION__": [2, 3], "k=x%2Fy%3D1%3A%25": [4]}
    writer.close()
    table = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert sorted(table["n"].to_pylist()) == [1, 2, 3, 4, 5]


def test_next_attempt_publishes_and_removes_within_folders(tmp_path: Path) -> None:
    """The files that a checkpoint names get their names, also ones that were moved on; leftovers go."""
    first = opened(tmp_path, [])
    first.write(rows(("a", 1), ("b", 2)))
    state = first.prepare(1)
    first.sync(state)
    first.write(rows(("a", 9)))
    first.sync(first.prepare(2))  # never complete
    second = opened(tmp_path, [state])
    assert seen(tmp_path) == {"k=a": [1], "k=b": [2]}
    shutil.rmtree(tmp_path / "k=b")  # a consumer's
    second = opened(tmp_path, [state])
    second.write(rows(("b", 3)))
    second.sync(second.prepare(3))
    second.commit(3)
    second.close()
    assert seen(tmp_path) == {"k=a": [1], "k=b": [3]}
    assert not listed(tmp_path, "**/.part-*")


def test_names_that_were_given_are_waited_for_by_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power would hide a file that no later checkpoint names; also where a wait fails first."""
    writer = opened(tmp_path, [])
    writer.write(rows(("a", 1)))
    writer.sync(writer.prepare(1))
    writer.commit(1)
    waited: list[str] = []
    failures = [FileNotFoundError(2, "a mount that is away", "k=a")]

    def sync_folder(_: object, path: str) -> None:
        if failures and path.endswith("k=a"):
            raise failures.pop()
        waited.append(Path(path).name)

    monkeypatch.setattr("penstock.machine.disk.Disk.sync_folder", sync_folder)
    state = writer.prepare(2)
    with pytest.raises(FileNotFoundError):
        writer.sync(state)
    assert "k=a" not in waited
    writer.sync(writer.prepare(3))
    assert "k=a" in waited


def test_names_that_an_earlier_attempt_gave_are_waited_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended ahead of a name, or between the name and the wait: the next attempt gives it, and waits."""
    writer = opened(tmp_path, [])
    writer.write(rows(("a", 1)))
    state = writer.prepare(1)
    writer.sync(state)
    writer.commit(1)
    waited: list[str] = []

    def sync_folder(_: object, path: str) -> None:
        waited.append(Path(path).name)

    monkeypatch.setattr("penstock.machine.disk.Disk.sync_folder", sync_folder)
    after = opened(tmp_path, [state])
    after.commit(1)
    after.sync(after.prepare(2))
    assert "k=a" in waited


def test_no_folder_is_made_below_a_mount_point(tmp_path: Path) -> None:
    """The sink's own folder is gone: nothing makes it again, and so nothing is written in its place."""
    writer = opened(tmp_path / "out", [])
    shutil.rmtree(tmp_path / "out")
    writer.write(rows(("a", 1)))
    with pytest.raises(FileNotFoundError):
        writer.sync(writer.prepare(1))
    assert not (tmp_path / "out").exists()


def test_open_files_are_few_whatever_the_number_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is closed for another folder's, and its folder gets a second one; each row is there once."""
    monkeypatch.setattr(sink_files, "MOST_FILES", 3)
    monkeypatch.setattr(sink_files, "MOST_BYTES", 1)
    writer = opened(tmp_path, [])
    for number in range(40):
        writer.write(rows((str(number % 8), number)))
        assert len([path for path in listed(tmp_path, "**/.part-*") if path.stat().st_size == 4]) <= 3
    writer.sync(writer.prepare(1))
    writer.commit(1)
    writer.close()
    assert seen(tmp_path) == {f"k={key}": list(range(key, 40, 8)) for key in range(8)}


def test_lines_of_json_are_json(tmp_path: Path) -> None:
    """Nested values, nulls, all signs below a space, and slices of batches."""
    values = {
        "s": pa.array(['a"\\\n\x01é\t', None, "", "\\"]),
        "r": pa.array([0.1, float("nan"), None, -float("inf")]),
        "l": pa.array([[1, None], None, [], [3]], pa.list_(pa.int32())),
        "m": pa.array([[("k", 1.5), ("j", None)], None, [], [("z", 2.0)]], pa.map_(pa.string(), pa.float64())),
        "t": pa.array([{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}, {"a": 2, "b": []}]),
        "d": pa.array([Decimal("1.50"), None, Decimal("-2.00"), None], pa.decimal128(9, 2)),
        "at": pa.array(
            [dt.datetime(2026, 1, 31, 23, 59, 59, 1, dt.UTC), None, None, None], pa.timestamp("us", "UTC")
        ),
    }
    batch = pa.RecordBatch.from_pydict(values)
    lines = [json.loads(line) for line in bytes(json_lines(batch)).splitlines()]
    assert lines == [
        {
            "s": 'a"\\\n\x01é\t',
            "r": 0.1,
            "l": [1, None],
            "m": {"k": 1.5, "j": None},
            "t": {"a": 1, "b": ["x", None]},
            "d": 1.5,
            "at": "2026-01-31T23:59:59.000001Z",
        },
        {"r": "NaN"},
        {"s": "", "l": [], "m": {}, "t": {}, "d": -2.0},
        {"s": "\\", "r": "-Infinity", "l": [3], "m": {"z": 2.0}, "t": {"a": 2, "b": []}},
    ]
    for begin, length in ((1, 3), (2, 1), (3, 0), (0, 0)):
        part = bytes(json_lines(batch.slice(begin, length))).splitlines()
        assert [json.loads(line) for line in part] == lines[begin : begin + length]
    assert "nothing for binary" in json_fault(pa.schema([("x", pa.struct([("y", pa.binary())]))]))


def test_lines_of_csv_have_sparks_quotes() -> None:
    """A field is quoted where it must be, and nulls differ from empty strings, also alone in a line."""
    values = ["a", "", None, "x,y", 'q"q', "b\\s", " sp", "no\nline"]
    batch = pa.RecordBatch.from_arrays([pa.array(values), pa.array(range(8))], ["s", "n"])
    assert bytes(csv_lines(batch, PLAIN_CSV)) == (
        b'a,0\n"",1\n,2\n"x,y",3\n"q\\"q",4\n"b\\\\s",5\n" sp",6\n"no\nline",7\n'
    )
    form = CsvSigns(";", "NA", header=True)
    assert bytes(csv_lines(batch.slice(2, 2), form)) == b"NA;2\nx,y;3\n"
    assert csv_header(pa.schema([("a;b", pa.int64()), ("c", pa.int64())]), form) == b'"a;b";c\n'
    assert bytes(csv_lines(batch.select(["s"]).slice(1, 2), PLAIN_CSV)) == b'""\n""\n'


def test_a_wait_that_finds_no_file_declines_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount was away as the file was waited for, and is back: its bytes may not be on the disk."""
    writer = opened(tmp_path, [])
    writer.write(rows(("a", 1)))
    state = writer.prepare(1)
    failures = [FileNotFoundError(2, "a mount that is away", "k=a")]

    def sync_file(_: object, path: str) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr("penstock.machine.disk.Disk.sync_file", sync_file)
    with pytest.raises(FileNotFoundError, match="a mount that is away"):
        writer.sync(state)
    writer.sync(writer.prepare(2))
    writer.commit(2)
    writer.sync(state)  # published meanwhile: it was waited for before


def test_a_file_counts_as_published_by_one_listing_alone(tmp_path: Path) -> None:
    """The mount drops between two looks: a folder that is empty in a second listing says nothing of its files."""
    mount = Mount()
    mark = ".folder-q-0"
    folder = SinkFolder(pafs.PyFileSystem(mount), str(tmp_path), mark)
    folder.make()
    (tmp_path / "k=a").mkdir()
    (tmp_path / "k=a" / ".part-1").touch()
    listed = [name.rpartition("/")[2] for name in folder.names(recursive=True)]
    assert {mark, ".part-1"} <= set(listed)
    folder.publish("k=a/part-1")
    folder.publish("k=a/part-1")
    (tmp_path / "k=a" / "part-1").unlink()
    before = mount.listings
    folder.publish("k=a/part-1")  # a consumer's
    assert mount.listings == before + 1
    mount.lacks = lambda name: name == mark
    with pytest.raises(FileNotFoundError, match="is the folder's file system away"):
        folder.publish("k=a/part-1")
