# SPDX-License-Identifier: Apache-2.0
"""The file system that fails: its calls fail as the plan says, and a loss of power takes what nobody waited for."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow.fs as pafs
import pytest

from penstock.machine.disk import Disk
from penstock.machine.locations import FILESYSTEMS, here
from penstock_torture.failing_files import ERRORS, WORLD, Episode, write_plan
from penstock_torture.lost_power import lose_power

SEEDS = range(40)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in a world that is well, with two files."""
    folder = tmp_path / "place"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(name)
    write_plan(tmp_path, {}, [])
    named = {FILESYSTEMS: "penstock_torture.failing_files:seen", WORLD: str(tmp_path)}
    with mock.patch.dict(os.environ, named):
        yield folder


def plan(place: Path, *episodes: Episode) -> None:
    """The world is so from now on."""
    write_plan(place.parent, {"place": str(place)}, list(episodes))


def write(path: Path, data: bytes = b"data", *, waits: bool = False) -> None:
    """A file, through the file systems of queries."""
    with here().open_output_stream(str(path)) as stream:
        stream.write(data)
    if waits:
        Disk(here()).sync_file(str(path))
        Disk(here()).sync_folder(str(path.parent))


def listed(place: Path) -> list[str]:
    """The names in a folder, as queries see them."""
    return sorted(info.base_name for info in here().get_file_info(pafs.FileSelector(str(place))))


@pytest.mark.parametrize("kind", ERRORS)
def test_calls_of_an_episode_fail_with_its_error(place: Path, kind: str) -> None:
    """Those after it are well again, and other folders all the time; a full disk lets one read."""
    plan(place, Episode("place", kind, 1, 1))
    with pytest.raises(OSError, match=os.strerror(getattr(errno, kind))):
        write(place / "c")
    write(place / "c")
    write(place.parent / "elsewhere")
    plan(place, Episode("place", kind, 1, 100))
    if kind == "ENOSPC":
        assert listed(place) == ["a", "b", "c"]
    else:
        with pytest.raises(OSError, match=os.strerror(getattr(errno, kind))):
            listed(place)


def test_lists_lack_names(place: Path) -> None:
    """All of them, or some: not always the same."""
    plan(place, Episode("place", "empty", 1, 1))
    assert listed(place) == []
    assert listed(place) == ["a", "b"]
    plan(place, Episode("place", "partial", 1, 1000))
    assert {len(listed(place)) for _ in range(100)} == {0, 1, 2}


def test_dropped_mount_shows_an_empty_folder_and_takes_what_is_written(place: Path) -> None:
    """Files that were written meanwhile lie below the mount point, where nobody sees them."""
    plan(place, Episode("place", "dropped", 1, 1000))
    assert listed(place) == []
    with pytest.raises(FileNotFoundError):
        here().open_input_stream(str(place / "a"))
    write(place / "c")
    assert listed(place) == ["c"]
    plan(place)
    assert listed(place) == ["a", "b"]


def test_disk_that_fills_in_the_middle_of_a_file(place: Path) -> None:
    """The file is open already."""
    with here().open_output_stream(str(place / "c")) as stream:
        plan(place, Episode("place", "ENOSPC", 1, 1))
        with pytest.raises(OSError, match="No space left"):
            stream.write(b"data")


def test_all_processes_see_the_plan(place: Path) -> None:
    """They read it where the environment says."""
    plan(place, Episode("place", "EIO", 1, 1000))
    code = f"from penstock.machine.locations import here; here().get_file_info({str(place / 'a')!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Input/output error" in ran.stderr


def survived(place: Path, seed: int) -> dict[str, str]:
    """The files after a loss of power."""
    lose_power(place.parent, random.Random(seed))
    return {path.name: path.read_text() for path in place.iterdir()}


def test_what_was_waited_for_survives(place: Path) -> None:
    """Bytes and names; of what was not waited for each may be gone, and is so for some seed."""
    write(place / "kept", waits=True)
    here().move(str(place / "a"), str(place / "moved"))
    Disk(here()).sync_folder(str(place))
    assert survived(place, 0) == {"kept": "data", "moved": "a", "b": "b"}


def test_what_was_not_waited_for_may_be_gone(place: Path) -> None:
    """A file is whole, torn, empty or not there; a name is the old one or the new one, never none or both."""
    seen: set[str | None] = set()
    names = set()
    for seed in SEEDS:
        write(place / "torn")
        here().move(str(place / "a"), str(place / "moved"))
        here().delete_file(str(place / "b"))
        found = survived(place, seed)
        seen.add(found.get("torn"))
        names.add("".join(sorted(found.keys() - {"torn"})))
        for path in place.iterdir():
            path.unlink()
        for name in ("a", "b"):
            (place / name).write_text(name)
    assert {None, "", "data"} < seen
    assert names == {"ab", "bmoved", "moved"}, "changes of one folder are lost from the last one on"


def test_without_power_nothing_is_done(place: Path) -> None:
    """A process that still runs changes nothing."""
    write_plan(place.parent, {}, [], power=False)
    with pytest.raises(OSError, match="there is no power"):
        write(place / "c")
    assert sorted(path.name for path in place.iterdir()) == ["a", "b"]
