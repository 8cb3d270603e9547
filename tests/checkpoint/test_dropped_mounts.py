# SPDX-License-Identifier: Apache-2.0
"""A mount that drops and comes back: what was written meanwhile lies below it, and nothing has failed."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from failing_files import gated
from penstock.checkpoint.errors import AwayError, CheckpointError, CorruptCheckpointError, FencedError
from penstock.checkpoint.found import Unusable
from penstock.checkpoint.log_files import LogName, log_folder
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.needed_files import look_at_files
from penstock.checkpoint.removal import METADATA
from penstock.checkpoint.storage import CheckpointStorage, append
from penstock_torture.passing_files import PassingFiles
from underway import listed

CALLS_OF_A_PART = 5
"""Its folder, its file, its bytes, its end, and the wait for the disk."""


class Mount:
    """A folder that is not there from one call on, and there again from another one on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = folder.with_name("aside")
        self._calls = 0
        self._drops = self._returns = 0

    def drop(self, first: int, calls: int) -> None:
        """Be away for so many calls, from this one of those that come on."""
        self._drops, self._returns = self._calls + first, self._calls + first + calls

    def gate(self, name: str, path: str) -> None:
        """One call; to wait for the disk takes the file at its place, as it does in the world."""
        self._calls += 1
        if self._calls == self._drops:
            self._folder.rename(self._aside)
            self._folder.mkdir()
        if self._calls == self._returns:
            self.come_back()
        if name.startswith("sync"):
            Path(path).stat()

    def come_back(self) -> None:
        """Files that were written meanwhile are below the mount point, where nobody sees them."""
        if self._aside.exists():
            self._folder.rename(self._folder.with_name(f"below{self._calls}"))
            self._aside.rename(self._folder)


def _windows() -> Iterator[tuple[int, int]]:
    for first in range(1, CALLS_OF_A_PART + 1):
        for calls in range(1, CALLS_OF_A_PART + 2 - first):
            yield first, calls


@pytest.mark.parametrize(("first", "calls"), list(_windows()))
def test_a_part_below_the_mount_point_completes_nothing(tmp_path: Path, first: int, calls: int) -> None:
    """Away for any run of a task's calls: the checkpoint is whole, or it does not exist and the next one is."""
    mount = Mount(tmp_path / "mount")
    storage = gated(tmp_path / "mount", mount.gate)
    storage.claim()
    _commit(storage, 1)
    mount.drop(first, calls)
    try:
        _commit(storage, 2)
    except (OSError, CheckpointError):
        mount.come_back()
    history = CheckpointStorage(str(tmp_path / "mount")).history(read_through=True)
    assert not [each for each in history if isinstance(each, Unusable)]
    assert _commit(storage, 3) == 3


def _commit(storage: CheckpointStorage, number: int) -> int:
    part = storage.write(storage.stamp(number), "t.0", [("n", b"%d" % number)])
    return storage.commit(CheckpointMetadata(number, 0.0, {"t.0": part})).number


@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_a_checkpoint_without_its_parts_is_declined(tmp_path: Path, harm: str) -> None:
    """The error names the file and says what may have been; another driver's location is said to be that."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    parts = {f"t.{task}": storage.write(storage.stamp(1), f"t.{task}", [("n", b"data")]) for task in range(3)}
    file = tmp_path / parts["t.1"].path
    file.unlink() if harm == "missing" else file.write_bytes(b"d")
    words = "is missing: 4 bytes were written" if harm == "missing" else "has 1 bytes: 4 were written"
    with pytest.raises(CorruptCheckpointError, match=rf"t\.1 {words}\. Was the location away .* on that host"):
        storage.commit(CheckpointMetadata(1, 0.0, parts))
    assert not (tmp_path / str(storage.stamp(1)) / "_metadata").exists()
    CheckpointStorage(str(tmp_path)).claim()
    with pytest.raises(FencedError, match="another driver has taken over"):
        storage.commit(CheckpointMetadata(1, 0.0, parts))


class FarFiles(PassingFiles):
    """Counts what is asked; `hidden` files are not in lists yet."""

    def __init__(self, inner: pafs.FileSystem) -> None:
        super().__init__(inner)
        self.is_here = False
        self.asked: Counter[str] = Counter()
        self.hidden = ""

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """Each path is a question."""
        self.asked["names"] += len(paths)
        return super().get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """A list is one."""
        self.asked["lists"] += 1
        return [info for info in super().get_file_info_selector(selector) if info.base_name != self.hidden]


def test_many_parts_far_away_are_looked_at_with_one_list(tmp_path: Path) -> None:
    """However many there are; only a file that the list does not show is asked for by its name."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    parts = {f"t.{task}": storage.write(storage.stamp(1), f"t.{task}", [("n", b"data")]) for task in range(200)}
    metadata = CheckpointMetadata(1, 0.0, parts)
    files = FarFiles(pafs.LocalFileSystem())
    look_at_files(pafs.PyFileSystem(files), str(tmp_path), metadata, "there")
    assert files.asked == {"lists": 1}
    files.hidden = "t.7"
    look_at_files(pafs.PyFileSystem(files), str(tmp_path), metadata, "there")
    assert files.asked == {"lists": 2, "names": 1}
    (tmp_path / parts["t.7"].path).unlink()
    with pytest.raises(CorruptCheckpointError, match=r"there/chk-.*/t\.7 is missing"):
        look_at_files(pafs.PyFileSystem(files), str(tmp_path), metadata, "there")


def test_parts_stay_until_the_metadata_is_gone(tmp_path: Path) -> None:
    """Away as the metadata is removed, back for the parts, and away again: what is left does not look complete."""
    due: list[str] = []

    def gate(name: str, path: str) -> None:
        if name in due and name == "delete_file" and path.endswith(METADATA):
            due.remove(name)
            raise FileNotFoundError(path)
        if name in due and name == "delete_dir":
            listed(Path(path), "t.*")[0].unlink()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    storage = gated(tmp_path, gate)
    storage.claim()
    _commit(storage, 1)
    _commit(storage, 2)
    due += ["delete_file", "delete_dir"]
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        storage.discard(storage.stamp(1))
    (kept,) = storage.history(read_through=True)
    assert kept.stamp == storage.stamp(2)


def test_metadata_that_cannot_be_removed_keeps_its_parts(tmp_path: Path) -> None:
    """A location that finds its metadata only as it is listed: the checkpoint stays as a whole, and goes later."""
    due = ["delete_file"]

    def gate(name: str, path: str) -> None:
        if name in due and path.endswith(METADATA):
            raise FileNotFoundError(path)

    storage = gated(tmp_path, gate)
    storage.claim()
    _commit(storage, 1)
    _commit(storage, 2)
    with pytest.raises(AwayError, match="is there, and can't be removed"):
        storage.discard(storage.stamp(1))
    assert [each.stamp for each in storage.history(read_through=True)] == [storage.stamp(1), storage.stamp(2)]
    due.clear()
    assert storage.sweep([storage.stamp(2)]) == [storage.stamp(1)]
    assert not (tmp_path / str(storage.stamp(1))).exists()


def test_logs_that_are_not_shown_stay(tmp_path: Path) -> None:
    """The location is away as a folder of logs is listed, and back at once: files that are needed are not removed."""
    due: list[str] = []
    place = tmp_path / "place"

    def gate(name: str, path: str) -> None:
        folder = Path(path)
        if name in due and folder.name.startswith("logs-"):
            due.remove(name)
            folder.rename(tmp_path / "aside")
        elif (tmp_path / "aside").exists():
            (tmp_path / "aside").rename(place / log_folder(storage.owner))

    storage = gated(place, gate)
    storage.claim()
    with storage.open_log(LogName(log_folder(storage.owner), "t", 0, 0, 0)) as file:
        logged = append(file, "in", b"rows")
    own = storage.write(storage.stamp(1), "t.0", [("n", b"data"), ("in", replace(logged, file=file.path, rows=1))])
    part = replace(own, positions={"in": 0})
    storage.commit(CheckpointMetadata(1, 0.0, {"t.0": part}))
    due.append("get_file_info_selector")
    storage.end()
    assert dict(storage.read(part)) == {"n": b"data", "in": b"rows"}
