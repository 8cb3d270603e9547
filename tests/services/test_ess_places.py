# SPDX-License-Identifier: Apache-2.0
"""Names, folders and files as Spark's shuffle service looks for them, and what a task leaves that was killed."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import ProtocolError, SettingError, StorageError
from penstock.partition.file_output import FileOptions
from penstock.services.spark_ess.files import FilesOfPartition, PartitionFiles, files_by_partition, sweep
from penstock.services.spark_ess.places import Place, folders_for, make_folders, names_of, path_of
from penstock.shuffle import DatasetId, PartitionId
from penstock.testing import DEADLINE
from underway import listed

PARTITION = PartitionId(DatasetId("job", 0), 3, 101)
SCHEMA = pa.schema([("n", pa.int64())])
BATCH = pa.record_batch([pa.array(range(4096), pa.int64())], schema=SCHEMA)


@pytest.fixture
def wanted(tmp_path: Path) -> FilesOfPartition:
    """A partition to be written, its folders made."""
    folders = folders_for("app-1", f"{tmp_path / 'one'},{tmp_path / 'two'}")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    make_folders(folders)
    return FilesOfPartition(PARTITION, Place.new("host-1-a"), folders, SCHEMA, 2)


def test_names_have_the_folders_of_sparks_own_code(tmp_path: Path) -> None:
    """Java's hash of a name decides; the figures are those of `ExecutorDiskUtils`."""
    name, _ = names_of(42)
    assert name == "shuffle_1347638347_42_0.data"
    folders = [str(tmp_path / each) for each in "ab"]
    digest = 0
    for char in name:
        digest = (digest * 31 + ord(char)) % (1 << 32)
    digest = abs(digest - (1 << 32) if digest >= 1 << 31 else digest)
    assert path_of(folders, name) == Path(folders[digest % 2], f"{digest // 2 % 64:02x}", name)


def test_folders_lie_beside_those_of_the_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All executors of an application on a host have the same ones, and links are followed."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    found = []
    for executor in ("blockmgr-1", "blockmgr-2"):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'link' / executor}, {tmp_path / 'b' / executor}")
        found.append(folders_for("app-1", ""))
    assert found[0] == found[1] == (str(real / "app-1" / "penstock"), str(tmp_path / "b" / "app-1" / "penstock"))
    assert folders_for("app-1", str(tmp_path)) == (str(tmp_path / "app-1" / "penstock"),)
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    with pytest.raises(SettingError, match=r"ess\.directories"):
        folders_for("app-1", "")


def test_a_place_is_no_path() -> None:
    """A descriptor names an executor of ours and a number, or is refused."""
    place = Place.new("host.example-12-ab")
    assert Place.from_text(str(place)) == place
    for text in ("../../etc/1", "penstock-../x/1", "0/1", "penstock-a/-1", "penstock-a/1/2", "penstock-a/1\n", ""):
        with pytest.raises(ProtocolError):
            Place.from_text(text)


def test_files_are_there_when_they_are_complete(wanted: FilesOfPartition) -> None:
    """Nothing has its name before the end; then data, index and mark do, for the group to read."""
    files = PartitionFiles(wanted, FileOptions())
    files.writer.write(BATCH, 1)
    data, index = (path_of(wanted.folders, name) for name in names_of(wanted.place.number))
    assert not data.exists()
    assert not list(files_by_partition(wanted.folders))
    files.finish()
    assert list(files_by_partition(wanted.folders)) == [(PARTITION, wanted.place.number)]
    mark = path_of(wanted.folders, names_of(wanted.place.finished.map)[0])
    for path in (data, index, mark):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o770
    assert not [path for folder in wanted.folders for path in listed(Path(folder), "*writing*")]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may be larger: the system says so as it does of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("limit", [20_000, 32_900])
def test_a_full_disk_is_said_and_leaves_nothing(wanted: FilesOfPartition, limit: int) -> None:
    """While rows are written, and while the manifest is; the error names Spark's folders, not ours."""

    def write() -> None:
        files = PartitionFiles(wanted, FileOptions(sort_buffer=1 << 14))
        try:
            files.writer.write(BATCH, 1)
            files.finish()
        except StorageError as error:
            files.abort(str(error))
            raise

    with largest_file(limit), pytest.raises(StorageError, match=r"disk is full.*spark\.local\.dir") as caught:
        write()
    assert "blocking.directories" not in str(caught.value)
    assert not list(files_by_partition(wanted.folders))
    assert not [path for folder in wanted.folders for path in listed(Path(folder), "*writing*")]
    (cause,) = [path for folder in wanted.folders for path in listed(Path(folder), "*/shuffle_*.data")]
    assert "disk is full" in cause.read_text()


def test_folders_of_somebody_else_are_not_used(wanted: FilesOfPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that another user has put there gets no rows, nor does a link."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(StorageError, match="somebody else"):
        make_folders(wanted.folders)


KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
from test_ess_places import *
folders = {folders!r}
files = PartitionFiles(FilesOfPartition(PARTITION, Place.new("host-1-a"), folders, SCHEMA, 2), FileOptions())
files.writer.write(BATCH, 1)
print("writing", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_task_leaves_is_swept_by_the_next(wanted: FilesOfPartition) -> None:
    """Its folder goes, and that of a task that still writes stays."""
    alive = PartitionFiles(wanted, FileOptions())
    code = KILLED.format(path=[*sys.path, str(Path(__file__).parent)], folders=wanted.folders)
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=DEADLINE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    def folders() -> list[Path]:
        return [path for folder in wanted.folders for path in listed(Path(folder), "writing-*")]

    assert len(folders()) == 2
    for folder in wanted.folders:
        sweep(Path(folder))
    assert len(folders()) == 1
    alive.writer.write(BATCH, 0)
    assert [end.rows for end in alive.finish()] == [BATCH.num_rows, 0]
    assert not folders()
