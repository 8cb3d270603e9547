# SPDX-License-Identifier: Apache-2.0
"""The two halves of `writeParquet` without Spark: a task's file, and the commit on both kinds of file system."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from penstock.api.parquet_sink import ParquetTarget, ParquetWritten, PartFile, _check_schema
from penstock.shuffle.errors import SchemaError, SettingError
from penstock.task.parquet_write import STATUS_SCHEMA, WriteParquet

ROWS = pa.table({"a": range(1000), "b": [f"w{n % 7}" for n in range(1000)]})


def writer(folder: Path, rows: int = 300, size: int = 1 << 30) -> WriteParquet:
    """An operator with small row groups, after a trip through pickle."""
    operator = WriteParquet(pafs.LocalFileSystem(), str(folder), ROWS.schema, "lz4", rows, size)
    return pickle.loads(pickle.dumps(operator))  # type: ignore[no-any-return]  # noqa: S301 - our own bytes


def remote(folder: Path) -> pafs.FileSystem:
    """A file system that is not a local one to whoever looks at its type."""
    return pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())


def staged(target: ParquetTarget, *names: str) -> list[PartFile]:
    """Files in the staging folder, each with its name in it."""
    for name in names:
        with target.filesystem.open_output_stream(f"{target.staging}/part-{name}.parquet") as file:
            file.write(name.encode())
    return [PartFile(f"part-{name}.parquet", 1, len(name)) for name in names]


def seen(folder: Path) -> dict[str, str]:
    """The files of a folder and what is in them."""
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_one_file_in_row_groups(tmp_path: Path) -> None:
    """Batches of any size become row groups of the size asked for, in one file that the status row describes."""
    (row,) = writer(tmp_path).apply(iter(ROWS.to_batches(max_chunksize=170)))
    assert row.schema.equals(STATUS_SCHEMA)
    (path,) = tmp_path.iterdir()
    assert row.to_pylist() == [{"file": path.name, "rows": 1000, "bytes": path.stat().st_size}]
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [300, 300, 300, 100]
    assert pq.read_table(path) == ROWS


def test_row_groups_by_bytes(tmp_path: Path) -> None:
    """A row group is written as soon as it has the bytes."""
    list(writer(tmp_path, 1 << 20, 4096).apply(iter(ROWS.to_batches(max_chunksize=10))))
    (path,) = tmp_path.iterdir()
    assert pq.ParquetFile(path).metadata.num_row_groups > 2


def test_no_rows_no_file(tmp_path: Path) -> None:
    """Also where batches without rows come."""
    assert list(writer(tmp_path).apply(iter([*ROWS.slice(0, 0).to_batches()]))) == []
    assert not list(tmp_path.iterdir())


def test_broken_input_removes_the_file(tmp_path: Path) -> None:
    """An error of the input goes through, and what was begun is gone."""

    def breaking() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        list(writer(tmp_path).apply(breaking()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("local", [True, False])
def test_commit_takes_what_is_named(tmp_path: Path, local: bool) -> None:
    """Named files come in their order, another attempt's file does not, staging is gone, success is marked."""
    filesystem, top = (pafs.LocalFileSystem(), str(tmp_path)) if local else (remote(tmp_path), "")
    target = ParquetTarget.beside(filesystem, f"{top}/out" if local else "out")
    target.prepare(overwrite=False)
    files = staged(target, "bb", "aa")
    staged(target, "stale")
    target.commit(files)
    target.clean()
    assert seen(tmp_path / "out") == {
        "part-00000-bb.parquet": "bb",
        "part-00001-aa.parquet": "aa",
        "_SUCCESS": "",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("local", [True, False])
def test_overwrite_replaces(tmp_path: Path, local: bool) -> None:
    """What was there goes, folders in it too; without `overwrite` it is refused by name."""
    (tmp_path / "out" / "k=1").mkdir(parents=True)
    (tmp_path / "out" / "old.parquet").write_text("old")
    filesystem, folder = (pafs.LocalFileSystem(), str(tmp_path / "out")) if local else (remote(tmp_path), "out")
    target = ParquetTarget.beside(filesystem, folder)
    with pytest.raises(SettingError, match="out is not empty"):
        target.prepare(overwrite=False)
    target.prepare(overwrite=True)
    target.commit(staged(target, "aa"))
    target.clean()
    assert seen(tmp_path / "out") == {"part-00000-aa.parquet": "aa", "_SUCCESS": ""}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("before", [None, {}, {"old.parquet": "old", "_SUCCESS": ""}])
def test_failed_moves_are_taken_back(tmp_path: Path, before: dict[str, str] | None) -> None:
    """Where files are moved one by one and one cannot be, the target is as it was."""
    out = tmp_path / "out"
    for name, text in (before or {}).items():
        out.mkdir(exist_ok=True)
        (out / name).write_text(text)
    if before == {}:
        out.mkdir()
    target = ParquetTarget.beside(remote(tmp_path), "out")
    target.prepare(overwrite=True)
    with pytest.raises(OSError, match="gone"):
        target.commit([*staged(target, "aa"), PartFile("part-gone.parquet", 1, 1)])
    target.clean()
    assert (seen(out) if out.exists() else None) == before


def test_local_commit_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was filled at the last moment is not mixed with: the rename fails and it stays as it is."""
    target = ParquetTarget.of(tmp_path / "out")
    target.prepare(overwrite=False)
    files = staged(target, "aa")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other").write_text("other")
    monkeypatch.setattr(ParquetTarget, "_old_names", lambda _: [])  # as it looked the moment before
    with pytest.raises(OSError, match="not empty"):
        target.commit(files)
    target.clean()
    assert seen(tmp_path / "out") == {"other": "other"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    """A folder without anything in it is as good as none."""
    (tmp_path / "out").mkdir()
    target = ParquetTarget.of(tmp_path / "out")
    target.prepare(overwrite=False)
    target.commit(staged(target, "aa"))
    assert seen(tmp_path / "out") == {"part-00000-aa.parquet": "aa", "_SUCCESS": ""}


def test_empty_file_has_the_schema(tmp_path: Path) -> None:
    """What is written where no task wrote anything."""
    target = ParquetTarget.of(tmp_path / "out")
    target.prepare(overwrite=False)
    target.commit([target.write_empty(ROWS.schema, "zstd")])
    assert pq.read_table(tmp_path / "out").schema.equals(ROWS.schema)


def test_refused_targets_and_schemas(tmp_path: Path) -> None:
    """The top of a file system, no path at all, types that Parquet does not have."""
    for path in ("", 3, "/"):
        with pytest.raises(SettingError, match="writeParquet"):
            ParquetTarget.of(path)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="no type"):
        _check_schema(pa.schema([("x", pa.month_day_nano_interval())]))
    with pytest.raises(SchemaError, match="without columns"):
        _check_schema(pa.schema([]))


def test_figures_read_well() -> None:
    """One line."""
    assert repr(ParquetWritten("out", 2, 1_000, 2_500_000, 1.5)) == (
        "1,000 rows in 2 files (2.5 MB) written to out in 1.50 s"
    )
