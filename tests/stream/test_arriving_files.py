# SPDX-License-Identifier: Apache-2.0
"""The source of arriving files: each row once, in order, whatever the batches and however often it starts anew."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.api.bad_lines import BadLines
from penstock.api.csv_lines import CsvForm, CsvLines
from penstock.api.json_lines import JsonLines
from penstock.api.line_formats import TextLines
from penstock.errors import SchemaError, SettingError
from penstock.machine.file_choice import FileChoice
from penstock.stream import file_rows
from penstock.stream.arriving_files import FilesReader, FilesSource, World
from penstock.stream.file_progress import FileProgress
from penstock.stream.file_rows import FileFormat, LineFileFormat, ParquetFileFormat
from penstock.stream.folder_looks import LooksAtOnce, listed

SCHEMA = pa.schema([("n", pa.int64())])
FORMATS: dict[str, FileFormat] = {
    "txt": LineFileFormat(TextLines()),
    "csv": LineFileFormat(CsvLines(SCHEMA, CsvForm(header=True))),
    "csv.cr": LineFileFormat(CsvLines(SCHEMA, CsvForm(header=True))),
    "json": LineFileFormat(JsonLines(SCHEMA)),
    "json.gz": LineFileFormat(JsonLines(SCHEMA)),
    "parquet": ParquetFileFormat(SCHEMA),
}


def write(path: Path, numbers: list[int]) -> None:
    """A file of these numbers, in the format of its name; its second row group begins in its middle."""
    lines = {"csv": ["n", *map(str, numbers)], "json": [json.dumps({"n": number}) for number in numbers]}
    kind = path.name.partition(".")[2]
    ends = ["\r", "\r\n"] if kind.endswith("cr") else ["\n"]
    held = lines.get(kind.partition(".")[0], map(str, numbers))
    text = "".join(f"{line}{ends[place % len(ends)]}" for place, line in enumerate(held)).encode()
    if kind == "parquet":
        pq.write_table(pa.table({"n": numbers}, SCHEMA), path, row_group_size=max(1, len(numbers) // 2))
    else:
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)


def opened(source: FilesSource, subtask: int = 0, parallelism: int = 1, states: Sequence[bytes] = ()) -> FilesReader:
    """A reader that waits for its looks."""
    progress = FileProgress.restored(states, subtask, parallelism)
    return FilesReader(source, (subtask, parallelism), progress, World(LooksAtOnce()))


def source(folder: Path, kind: str = "txt", *, is_bounded: bool = True) -> FilesSource:
    """The source as a task gets it; it looks whenever it is asked."""
    made = FilesSource(pafs.LocalFileSystem(), str(folder), FORMATS[kind], is_bounded, listing_seconds=0.0)
    copy: FilesSource = pickle.loads(pickle.dumps(made))  # noqa: S301 - made here
    return copy


def rows(reader: FilesReader, most: int, polls: int = 1 << 30) -> list[int]:
    """The numbers that so many polls give, or all of a bounded source."""
    found: list[int] = []
    while polls and not reader.is_ended:
        batch = reader.poll(most)
        found += [] if batch is None else [int(value) for value in batch.column(0).to_pylist()]
        polls -= 1
    return found


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_each_row_is_read_once_whatever_is_restored(
    kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """With small portions, and readers that go on from a snapshot taken after any poll."""
    folder = tmp_path_factory.mktemp("files")
    monkeypatch.setattr(file_rows, "READ_BYTES", data.draw(st.integers(1, 40)))
    monkeypatch.setattr(file_rows, "BATCH_ROWS", 3)
    monkeypatch.setattr(file_rows, "most_lines", lambda _: data.draw(st.integers(1, 4)))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    expected = []
    for number, size in enumerate(sizes):
        numbers = [number * 100 + at for at in range(size)]
        write(folder / f"f{number}.{kind}", numbers)
        expected += numbers
    found: list[int] = []
    states: list[bytes] = []
    for _ in range(data.draw(st.integers(0, 4))):
        reader = opened(source(folder, kind), 0, 1, states)
        found += rows(reader, data.draw(st.integers(1, 5)), data.draw(st.integers(0, 4)))
        states = [reader.snapshot()]
        reader.close()
        monkeypatch.setattr(file_rows, "READ_BYTES", data.draw(st.integers(1, 40)))
    found += rows(opened(source(folder, kind), 0, 1, states), 4)
    assert found == expected


def test_files_are_read_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """By their time of change, then by name; a file that comes later is seen when the folder is looked into again."""
    reader = opened(source(tmp_path, is_bounded=False))
    assert reader.poll(10) is None
    write(tmp_path / "b.txt", [1])
    assert rows(reader, 10, 1) == [1]
    write(tmp_path / "a.txt", [2])
    write(tmp_path / ".hidden.txt", [3])
    write(tmp_path / "_started.txt", [4])
    (tmp_path / "sub").mkdir()
    assert rows(reader, 10, 3) == [2]
    assert not reader.is_ended


def test_a_folder_that_is_slow_to_list_is_listed_more_seldom(tmp_path: Path) -> None:
    """A listing of two seconds comes each forty, so it takes a twentieth of the task's time."""
    now = [0.0]

    class SlowFolder(FilesSource):
        def listed(self) -> list[tuple[int, str]]:
            now[0] += 2.0
            return []

    slow = SlowFolder(pafs.LocalFileSystem(), str(tmp_path), FORMATS["txt"])
    reader = FilesReader(slow, (0, 1), FileProgress(), World(LooksAtOnce(), lambda: now[0]))
    for number in range(3):
        assert reader.poll(10) is None
        wake = reader.wake_at
        assert wake == pytest.approx(2.0 + 42.0 * number + 40.0)
        now[0] = wake or 0.0


def test_subtasks_share_a_folder(tmp_path: Path) -> None:
    """Each file has one of them, also where their number changes in the middle."""
    for number in range(12):
        write(tmp_path / f"f{number}.txt", [number * 10, number * 10 + 1])
    readers = [opened(source(tmp_path), subtask, 3) for subtask in range(3)]
    found = [number for reader in readers for number in rows(reader, 1, 3)]
    states = [reader.snapshot() for reader in readers]
    for subtask in range(2):
        found += rows(opened(source(tmp_path), subtask, 2, states), 100)
    assert sorted(found) == sorted(number * 10 + at for number in range(12) for at in (0, 1))


def test_what_does_not_fit_names_its_file(tmp_path: Path) -> None:
    """A line that is no number, a column of another type, a folder that is not there."""
    (tmp_path / "f.csv").write_text("n\nx\n")
    strict = LineFileFormat(CsvLines(SCHEMA, CsvForm(header=True), BadLines("FAILFAST")))
    with pytest.raises(SchemaError, match=r"csv .*f\.csv: column 'n': 'x' is no int64 in the line 'x'"):
        opened(replace(source(tmp_path), format=strict)).poll(1)
    pq.write_table(pa.table({"n": ["x"]}), tmp_path / "f.csv")
    with pytest.raises(SchemaError, match=r"parquet .*f\.csv: column 'n' is string there, and the stream's is int64"):
        opened(source(tmp_path, "parquet")).poll(1)
    with pytest.raises(FileNotFoundError, match="away"):
        opened(source(tmp_path / "away")).poll(1)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_shorter_than_what_was_read_is_no_end(tmp_path: Path, kind: str) -> None:
    """A mount that shows a file without its bytes, or a part, must not end it silently: its rest would be lost."""
    path = tmp_path / f"f.{kind}"
    write(path, [1, 2, 3, 4, 5, 6])
    reader = opened(source(tmp_path, kind))
    assert rows(reader, 5, 1) in ([1, 2, 3, 4, 5], [1, 2, 3])
    if kind == "parquet":
        assert rows(reader, 2, 1) == [4, 5]
    state = reader.snapshot()
    whole = path.read_bytes()
    for numbers in ([], [1, 2]):
        write(path, numbers)
        with pytest.raises(OSError, match="shorter than what was read"):
            opened(source(tmp_path, kind), states=[state]).poll(9)
    path.write_bytes(whole)
    assert rows(opened(source(tmp_path, kind), states=[state]), 9) == [6]


def test_a_batch_job_reads_what_is_there(tmp_path: Path) -> None:
    """All of it, and ends."""
    write(tmp_path / "f.parquet", [1, 2, 3])
    batches = list(source(tmp_path, "parquet", is_bounded=False).read(0, 1))
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == [1, 2, 3]


def test_old_time_stamps_of_spark_are_instants(tmp_path: Path) -> None:
    """A file with INT96, which Spark writes unless told otherwise, fits a schema with `timestamp`."""
    instant = pa.timestamp("us", "UTC")
    stored = pa.table({"t": pa.array([1, None, -(10**16)], pa.timestamp("us")), "n": [1, 2, 3]})
    pq.write_table(stored, tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    format_ = ParquetFileFormat(pa.schema([("n", pa.int64()), ("t", instant)]))
    found = [batch for _, batch in format_.rows(pafs.LocalFileSystem(), str(tmp_path / "old.parquet"), (0, 1))]
    expected = pa.table({"n": [2, 3], "t": pa.array([None, -(10**16)], instant)})
    assert pa.Table.from_batches(found).equals(expected)


def test_files_of_several_schemas_are_one_stream(tmp_path: Path) -> None:
    """A column that a file lacks is null, a narrower number widens, others are left out, names have any case."""
    format_ = ParquetFileFormat(pa.schema([("n", pa.int64()), ("word", pa.string())]))
    found = []
    for rows_ in ({"n": pa.array([1], pa.int32())}, {"WORD": ["a"], "more": [0], "N": pa.array([2], pa.int16())}):
        pq.write_table(pa.table(rows_), tmp_path / "f")
        found += [batch for _, batch in format_.rows(pafs.LocalFileSystem(), str(tmp_path / "f"), (0, 0))]
    assert pa.Table.from_batches(found, format_.schema).to_pylist() == [{"n": 1, "word": None}, {"n": 2, "word": "a"}]


def test_a_partitioned_folder_is_refused(tmp_path: Path) -> None:
    """Its rows would be missed without a word; other folders, and hidden ones, are no rows of it."""
    for name in ("old", "_delta", ".day=2", "f.txt"):
        (tmp_path / name).mkdir()
    assert list(listed(pafs.LocalFileSystem(), str(tmp_path))) == []
    (tmp_path / "day=3").mkdir()
    with pytest.raises(SettingError, match="is partitioned: it has the folder day=3, and readStream reads"):
        listed(pafs.LocalFileSystem(), str(tmp_path))


def test_subfolders_are_read_where_that_is_chosen(tmp_path: Path) -> None:
    """Also folders with values; a file is known by its place in the folder, and one name may stand in several."""
    for place in ("a.txt", "day=3/a.txt", "deep/er/b.txt", "_gone/c.txt", "deep/.d/e.txt", "deep/f.csv"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / place, [len(place)])
    chosen = replace(source(tmp_path, is_bounded=False), choice=FileChoice(glob="*.txt", recursive=True))
    wanted = ["a.txt", "day=3/a.txt", "deep/er/b.txt"]
    assert sorted(name for _, name, _ in chosen.listed()) == wanted
    reader = opened(chosen)
    assert sorted(rows(reader, 10, 3)) == sorted(map(len, wanted))
    write(tmp_path / "deep" / "a.txt", [77])
    assert rows(reader, 10, 1) == [77]


def test_a_folder_is_the_same_source_by_whatever_path(tmp_path: Path) -> None:
    """Checkpoints name the folder itself; a path of an object store stays as it is, links are none of its."""
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    paths = [folder, tmp_path / "link", tmp_path / "gone" / ".." / "in", f"{folder}/", f"{tmp_path}//in/."]
    assert {source(Path(path)).reads for path in paths} == {f"text files of {folder.resolve()}"}
    assert FilesSource(pafs.LocalFileSystem(), f"{folder}/.", FORMATS["txt"]).reads == source(folder).reads
    far = FilesSource(pafs._MockFileSystem(), "bucket/../in/", FORMATS["txt"])
    assert far.reads == "text files of mock:bucket/../in"
