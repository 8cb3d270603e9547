# SPDX-License-Identifier: Apache-2.0
"""The two halves of `writeParquet` without Spark: a task's file, and the commit on both kinds of file system."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from penstock.api.file_sink import (
    FilesWritten,
    FolderTarget,
    WrittenFile,
    _check_schema,
    file_schema,
    refuse_one_name,
)
from penstock.errors import SchemaError, SettingError
from penstock.operators.file_forms import FileForm
from penstock.operators.file_write import STATUS_SCHEMA, WriteFiles
from penstock.operators.partitioned_write import WritePartitioned
from penstock.testing import DEADLINE
from penstock_torture.passing_files import PassingFiles

ROWS = pa.table({"a": range(1000), "b": [f"w{n % 7}" for n in range(1000)]})


def writer(folder: Path, rows: int = 300, size: int = 1 << 30) -> WriteFiles:
    """An operator with small row groups, after a trip through pickle."""
    operator = WriteFiles(pafs.LocalFileSystem(), str(folder), FileForm("parquet", ROWS.schema, "lz4"), rows, size)
    return pickle.loads(pickle.dumps(operator))  # type: ignore[no-any-return]  # noqa: S301 - our own bytes


def remote(folder: Path) -> pafs.FileSystem:
    """A file system that is not a local one to whoever looks at its type."""
    return pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())


class Followed(PassingFiles):
    """Has something done after each list of files, before whoever asked for it goes on."""

    def __init__(self, inner: pafs.FileSystem) -> None:
        super().__init__(inner)
        self.then: Callable[[], object] = lambda: None

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """The files in a folder, as it was the moment before."""
        found = super().get_file_info_selector(selector)
        self.then()
        return found


def staged(target: FolderTarget, *names: str) -> list[WrittenFile]:
    """Files in the staging folder, each with its name in it."""
    for name in names:
        with target.filesystem.open_output_stream(f"{target.staging}/part-{name}.parquet") as file:
            file.write(name.encode())
    return [WrittenFile(f"part-{name}.parquet", 1, len(name)) for name in names]


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
    target = FolderTarget.beside(filesystem, f"{top}/out" if local else "out")
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


def test_a_place_without_room_for_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    """A folder below a file: the sentence names the target, not the staging folder's errno alone."""
    (tmp_path / "file").write_text("rows")
    with pytest.raises(
        SettingError, match=r"writeParquet: beside .*file/out no folder can be made: .*: name another"
    ):
        FolderTarget.of(tmp_path / "file" / "out").prepare(overwrite=False)


@pytest.mark.parametrize("local", [True, False])
def test_overwrite_replaces(tmp_path: Path, local: bool) -> None:
    """The old content goes, folders in it too; without `overwrite` it is refused by name."""
    (tmp_path / "out" / "k=1").mkdir(parents=True)
    (tmp_path / "out" / "old.parquet").write_text("old")
    filesystem, folder = (pafs.LocalFileSystem(), str(tmp_path / "out")) if local else (remote(tmp_path), "out")
    target = FolderTarget.beside(filesystem, folder)
    with pytest.raises(SettingError, match="out is not empty"):
        target.prepare(overwrite=False)
    target.prepare(overwrite=True)
    target.commit(staged(target, "aa"))
    target.clean()
    assert seen(tmp_path / "out") == {"part-00000-aa.parquet": "aa", "_SUCCESS": ""}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("before", [None, {}, {"old.parquet": "old", "_SUCCESS": ""}])
def test_failed_moves_are_taken_back(tmp_path: Path, before: dict[str, str] | None) -> None:
    """If files are moved one by one and one cannot be, the target is as it was."""
    out = tmp_path / "out"
    for name, text in (before or {}).items():
        out.mkdir(exist_ok=True)
        (out / name).write_text(text)
    if before == {}:
        out.mkdir()
    target = FolderTarget.beside(remote(tmp_path), "out")
    target.prepare(overwrite=True)
    with pytest.raises(OSError, match="gone"):
        target.commit([*staged(target, "aa"), WrittenFile("part-gone.parquet", 1, 1)])
    target.clean()
    assert (seen(out) if out.exists() else None) == before


def test_local_commit_is_one_step(tmp_path: Path) -> None:
    """A folder that was filled at the last moment is not mixed with: the rename fails and it stays as it is."""
    world = Followed(pafs.LocalFileSystem())
    target = FolderTarget.beside(pafs.PyFileSystem(world), str(tmp_path / "out"))
    target.prepare(overwrite=False)
    files = staged(target, "aa")

    def fill() -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "other").write_text("other")

    world.then = fill
    with pytest.raises(OSError, match="not empty"):
        target.commit(files)
    target.clean()
    assert seen(tmp_path / "out") == {"other": "other"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_late_task_is_not_published(tmp_path: Path) -> None:
    """Files that a task writes into the staging folder while the commit is under way, or later, are not taken."""
    world = Followed(pafs.LocalFileSystem())
    target = FolderTarget.beside(pafs.PyFileSystem(world), str(tmp_path / "out"))
    target.prepare(overwrite=False)
    files = staged(target, "aa")
    with target.filesystem.open_output_stream(f"{target.staging}/part-slow.parquet") as slow:
        world.then = lambda: staged(target, "late")  # the last thing before the folder takes its name
        target.commit(files)
        slow.write(b"slow")
    assert seen(tmp_path / "out") == {"part-00000-aa.parquet": "aa", "_SUCCESS": ""}
    target.clean()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_are_on_the_disk_before_they_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """The task's file, the mark of success and the folder are synced while nobody sees them, the name afterwards."""
    target = FolderTarget.of(tmp_path / "out")
    if overwrite:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "old").touch()
    target.prepare(overwrite)
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        published = (tmp_path / "out" / "_SUCCESS").exists()
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, published))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    (row,) = writer(Path(target.staging)).apply(iter(ROWS.to_batches()))
    name = row.to_pylist()[0]["file"]
    target.commit([WrittenFile(name, 1000, 1)])
    target.clean()
    ready = Path(target._ready).name
    assert synced == [(name, False), ("_SUCCESS", False), (ready, False), (tmp_path.name, True)]


KILLED = """
import json, os, signal, sys
from pathlib import Path
from penstock.api.file_sink import FolderTarget, WrittenFile

top = Path(sys.argv[1])

def overwrite(kill_at):
    steps = 0
    def step(event, args):
        nonlocal steps
        if event.startswith(("os.", "open", "ctypes.")):
            steps += 1
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    target = FolderTarget.of(top / "out")
    target.prepare(overwrite=True)
    for name in ("part-a", "part-b"):
        Path(target.staging, name).write_text("new")
    sys.addaudithook(step)
    target.commit([WrittenFile("part-a", 1, 3), WrittenFile("part-b", 1, 3)])
    target.clean()

kill_at, killed = 0, True
while killed:
    kill_at += 1
    old = top / "out"
    old.mkdir(exist_ok=True)
    for path in old.iterdir():
        path.unlink()
    for name in ("old-1", "old-2"):
        (old / name).write_text("old")
    child = os.fork()
    if child == 0:
        overwrite(kill_at)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    found = sorted(path.name for path in old.iterdir()) if old.exists() else None
    print(json.dumps(found), flush=True)
"""


def test_a_killed_overwrite_leaves_old_or_new(tmp_path: Path) -> None:
    """A driver that is killed ahead of any of its calls to the system leaves one whole folder, never a mixture."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=True, timeout=DEADLINE
    )
    states = [json.loads(line) for line in done.stdout.splitlines()]
    old, new = ["old-1", "old-2"], ["_SUCCESS", "part-00000-a", "part-00001-b"]
    assert [state for state in states if state not in (old, new)] == []
    assert states[0] == old
    assert states[-1] == new
    assert states.index(new) > 5


def test_folders_that_cannot_swap_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file system cannot do it in one step, the old folder is moved aside, and back if that fails."""
    monkeypatch.setattr("penstock.api.file_sink.swapped", lambda *_: False)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    target = FolderTarget.of(tmp_path / "out")
    target.prepare(overwrite=True)
    files = staged(target, "aa")
    target.commit(files)
    target.clean()
    assert seen(tmp_path / "out") == {"part-00000-aa.parquet": "aa", "_SUCCESS": ""}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    """A folder without anything in it is as good as none."""
    (tmp_path / "out").mkdir()
    target = FolderTarget.of(tmp_path / "out")
    target.prepare(overwrite=False)
    target.commit(staged(target, "aa"))
    assert seen(tmp_path / "out") == {"part-00000-aa.parquet": "aa", "_SUCCESS": ""}


def test_empty_file_has_the_schema(tmp_path: Path) -> None:
    """The target has a file with the schema if no task wrote anything."""
    target = FolderTarget.of(tmp_path / "out")
    target.prepare(overwrite=False)
    target.commit([target.write_empty(FileForm("parquet", ROWS.schema, "zstd"))])
    assert pq.read_table(tmp_path / "out").schema.equals(ROWS.schema)


def test_refused_targets_and_schemas(tmp_path: Path) -> None:
    """The top of a file system, no path at all, types that Parquet does not have, names that are there twice."""
    for path in ("", 3, "/"):
        with pytest.raises(SettingError, match="writeParquet"):
            FolderTarget.of(path)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="no type"):
        _check_schema(pa.schema([("x", pa.month_day_nano_interval())]))
    with pytest.raises(SchemaError, match="without columns"):
        _check_schema(pa.schema([]))
    cases = pa.schema([("a", pa.int32()), ("A", pa.int32()), ("b", pa.int32())])
    with pytest.raises(SchemaError, match="columns 'a', 'A' have one name"):
        refuse_one_name(cases, "writeJson", case_sensitive=False)
    refuse_one_name(cases, "writeJson", case_sensitive=True)
    with pytest.raises(SchemaError, match="columns 'x', 'x' have one name"):
        refuse_one_name(pa.schema([("x", pa.int32()), ("x", pa.int64())]), "writeJson", case_sensitive=True)


def test_figures_read_well() -> None:
    """One line."""
    assert repr(FilesWritten("out", 2, 1_000, 2_500_000, 1.5)) == (
        "1,000 rows in 2 files (2.5 MB) written to out in 1.50 s"
    )


def test_folders_by_value(tmp_path: Path) -> None:
    """Each value has a folder, whose files lack the column; null, empty text and signs of paths are escaped."""
    rows = pa.table({"k": ["a", None, "x/y=1", "", "a"], "d": pa.array([0, 0, 0, 1, 0], pa.date32()), "v": range(5)})
    write = WriteFiles(pafs.LocalFileSystem(), str(tmp_path), FileForm("parquet", rows.select(["v"]).schema, "zstd"))
    operator = WritePartitioned(write, ("k", "d"))
    status = [row.to_pylist()[0] for row in operator.apply(iter(rows.to_batches(max_chunksize=2)))]
    nothing = "k=__HIVE_DEFAULT_PARTITION__"
    found = {str(Path(row["file"]).parent): row["rows"] for row in status}
    assert found == {
        "k=a/d=1970-01-01": 2,
        f"{nothing}/d=1970-01-01": 1,
        "k=x%2Fy%3D1/d=1970-01-01": 1,
        f"{nothing}/d=1970-01-02": 1,
    }
    (file,) = (tmp_path / "k=a" / "d=1970-01-01").iterdir()
    assert pq.ParquetFile(file).read().to_pydict() == {"v": [0, 4]}


def test_folders_are_closed_at_the_bound(tmp_path: Path) -> None:
    """All rows held stay below the bound: each time it is reached, every folder gets a file of its own."""
    rows = pa.table({"k": [n % 3 for n in range(3000)], "v": list(range(3000))})
    write = WriteFiles(
        pafs.LocalFileSystem(),
        str(tmp_path),
        FileForm("parquet", rows.select(["v"]).schema, "zstd"),
        group_bytes=8000,
    )
    status = list(WritePartitioned(write, ("k",)).apply(iter(rows.to_batches(max_chunksize=1000))))
    assert len(status) == 9
    assert sum(row.column("rows")[0].as_py() for row in status) == 3000


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_partitions_are_committed_in_their_folders(tmp_path: Path, kind: str) -> None:
    """Files keep their folders, old ones of the same folder go, attempts that did not count leave no empty folder."""
    filesystem = pafs.LocalFileSystem() if kind == "local" else remote(tmp_path)
    top = str(tmp_path) if kind == "local" else ""
    for round_ in ("old", "new"):
        target = FolderTarget.beside(filesystem, f"{top}/out".lstrip("/") if kind == "remote" else f"{top}/out")
        target.prepare(overwrite=True)
        for name in (f"k=a/part-{round_}.parquet", f"k={round_}/part-{round_}.parquet", "k=lost/part-x.parquet"):
            filesystem.create_dir(f"{target.staging}/{name.rpartition('/')[0]}", recursive=True)
            with filesystem.open_output_stream(f"{target.staging}/{name}") as file:
                file.write(round_.encode())
        kept = [f"k=a/part-{round_}.parquet", f"k={round_}/part-{round_}.parquet"]
        target.commit([WrittenFile(name, 1, 1) for name in kept])
        target.clean()
    out = tmp_path / "out"
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()) == [
        "_SUCCESS",
        "k=a/part-00000-new.parquet",
        "k=new/part-00001-new.parquet",
    ]
    assert not (out / "k=lost").exists()


def test_columns_that_name_folders_are_checked() -> None:
    """Doubles name no folder, all columns leave nothing for the files, and the argument is a list."""
    schema = pa.schema([("k", pa.string()), ("x", pa.float64())])
    assert file_schema(schema, ["k"], "writeParquet").names == ["x"]
    with pytest.raises(SchemaError, match="'x' is double, and folders are named by"):
        file_schema(schema, ["x"], "writeParquet")
    with pytest.raises(SchemaError, match="'nope' does not exist"):
        file_schema(schema, ["nope"], "writeParquet")
    with pytest.raises(SchemaError, match="nothing is left for the files"):
        file_schema(schema.remove(1), ["k"], "writeParquet")
    with pytest.raises(TypeError, match=r"a list of columns: \['k'\]"):
        file_schema(schema, "k", "writeParquet")


@pytest.mark.parametrize("keys", [(), ("k",)])
def test_a_null_struct_with_a_field_that_may_not_be_null_is_written(tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Also in a list; Spark gives the field a null there. The file's columns may all be null, as in Spark's files."""
    struct = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    element = pa.field("element", struct)
    schema = pa.schema(
        [pa.field("k", pa.int64(), nullable=False), pa.field("s", struct), pa.field("l", pa.list_(element))]
    )
    nulls = pa.array([False, True])
    structs = pa.StructArray.from_arrays([pa.array([1, None])], fields=list(struct), mask=nulls)  # as Spark's are
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), structs, pa.list_(element), mask=nulls)
    rows = pa.record_batch([pa.array([1, 1]), structs, lists], schema=schema)
    write = WriteFiles(
        pafs.LocalFileSystem(), str(tmp_path), FileForm("parquet", file_schema(schema, keys, "writeParquet"), "zstd")
    )
    (status,) = (WritePartitioned(write, keys) if keys else write).apply(iter([rows]))
    (name,) = status.column("file").to_pylist()
    found = pq.ParquetFile(tmp_path / name).read()
    assert found.to_pylist() == [{key: row[key] for key in found.column_names} for row in rows.to_pylist()]
    assert all(field.nullable for field in found.schema)
