# SPDX-License-Identifier: Apache-2.0
"""The folders of partitions' files: a dead application's are swept in all directories, and only they."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.environment.partitions.folders import Folders, remove_folder
from penstock.errors import PenstockError, ProtocolError
from penstock.link.rendezvous import Rendezvous, rendezvous, sweep
from penstock.settings import BlockingSettings
from penstock.shuffle import DatasetId, PartitionId
from underway import listed


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Rendezvous:
    """The rendezvous of an application, made."""
    place = rendezvous(request.node.name, "", str(tmp_path / "meet"))
    place.make()
    return place


def folders(place: Rendezvous, *directories: Path) -> Folders:
    """The folders with these directories set."""
    return Folders(place, BlockingSettings(directories=", ".join(map(str, directories)), reserve=0))


def partition(index: int) -> PartitionId:
    """A partition."""
    return PartitionId(DatasetId("job", 0), index, 1)


def test_partitions_are_spread_and_private(place: Rendezvous, tmp_path: Path) -> None:
    """Directories take turns; the application's folder in each is the user's alone."""
    directories = [tmp_path / name for name in ("one", "two", "three")]
    made = [folders_.make(partition(index)) for folders_ in [folders(place, *directories)] for index in range(6)]
    parents = [folder.parent.parent for folder in made]
    assert parents == directories * 2
    assert {oct(folder.parent.stat().st_mode)[-3:] for folder in made} == {"700"}


def test_without_directories_sparks_are_taken_else_the_rendezvous(
    place: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SPARK_LOCAL_DIRS` counts where nothing is set; without it files lie in the rendezvous folder."""
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    assert folders(place).make(partition(0)).parent == place.results
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'spark'},")
    assert folders(place).make(partition(1)).parent.parent == tmp_path / "spark"


def test_a_broken_directory_is_passed_over_and_none_is_an_error(place: Rendezvous, tmp_path: Path) -> None:
    """A file in the place of a directory is skipped; when all are broken the error names them and the setting."""
    (tmp_path / "file").write_text("")
    found = folders(place, tmp_path / "file", tmp_path / "good").make(partition(0))
    assert found.parent.parent == tmp_path / "good"
    with pytest.raises(PenstockError, match=r"file.*spark\.penstock\.blocking\.directories"):
        folders(place, tmp_path / "file").make(partition(1))


def test_a_second_writer_of_one_partition_is_refused(place: Rendezvous, tmp_path: Path) -> None:
    """The first one's folder is left alone; after its removal the name is free."""
    there = folders(place, tmp_path / "d")
    folder = there.make(partition(0))
    (folder / "data").write_text("x")
    with pytest.raises(ProtocolError, match="written already"):
        there.make(partition(0))
    assert (folder / "data").exists()
    remove_folder(folder)
    remove_folder(folder)
    assert there.make(partition(0)) == folder


def test_the_dead_are_swept_everywhere_and_the_living_nowhere(tmp_path: Path) -> None:
    """Of two applications in the same directories, the one whose lock is free loses all its folders."""
    directories = [tmp_path / "one", tmp_path / "two"]
    meet = str(tmp_path / "meet")
    made, locks = {}, {}
    for name in ("dead", "alive"):
        place = rendezvous(name, "", meet)
        place.make()
        locks[name] = place.take_lock()
        there = folders(place, *directories)
        made[name] = [there.make(partition(index)) for index in range(4)]
        for folder in made[name]:
            (folder / "data").write_bytes(b"x" * 100)
    (tmp_path / "one" / "somebody's").mkdir()
    assert sweep(meet) == []
    os.close(locks["dead"])  # type: ignore[arg-type]
    assert sweep(meet) == [rendezvous("dead", "", meet).folder]
    assert not any(folder.parent.exists() for folder in made["dead"])
    assert all((folder / "data").exists() for folder in made["alive"])
    rendezvous("alive", "", meet).remove()
    os.close(locks["alive"])  # type: ignore[arg-type]
    assert sorted(path.name for directory in directories for path in listed(directory)) == ["somebody's"]


def test_a_folder_whose_maker_was_killed_before_its_lock_is_swept(tmp_path: Path) -> None:
    """It is empty; what holds anything without a lock is left alone, and a living starter makes its own anew."""
    meet = str(tmp_path / "meet")
    killed, living, foreign = (rendezvous(name, "", meet) for name in ("killed", "living", "foreign"))
    for each in (killed, living, foreign):
        each.make()
    (foreign.folder / "data").write_text("x")
    assert sweep(meet, keep=living.folder) == [killed.folder]
    assert living.folder.exists()
    assert sweep(meet) == [living.folder]
    lock = living.take_lock()
    assert lock is not None
    assert sweep(meet) == []
    living.remove()
    os.close(lock)
    assert (foreign.folder / "data").exists()


def test_a_note_removes_nothing_but_the_applications_own_folders(place: Rendezvous, tmp_path: Path) -> None:
    """Other names, links and what is not there are left alone, whatever the note says."""
    other = tmp_path / "other"
    (other / "precious").mkdir(parents=True)
    own = folders(place, tmp_path / "d").make(partition(0)).parent
    link = tmp_path / "linked" / own.name
    link.parent.mkdir()
    link.symlink_to(other)
    with place.notes.open("a") as notes:
        notes.write(f"{other}\n{other / 'precious'}\n{link}\n/\n\n{tmp_path / 'gone' / own.name}\n")
    lock = place.take_lock()
    place.clear()
    assert not own.exists()
    assert (other / "precious").exists()
    assert link.is_symlink()
    os.close(lock)  # type: ignore[arg-type]


def test_folders_that_somebody_removed_are_made_again(place: Rendezvous, tmp_path: Path) -> None:
    """As a cleaner of temporary files does; the next environment still sweeps them."""
    there = folders(place, tmp_path / "d")
    first = there.make(partition(0))
    shutil.rmtree(tmp_path / "d")
    again = there.make(partition(1))
    assert again.parent == first.parent
    lock = place.take_lock()
    place.clear()
    assert not again.parent.exists()
    os.close(lock)  # type: ignore[arg-type]


def test_a_host_has_room_until_a_write_failed_in_each_directory(place: Rendezvous, tmp_path: Path) -> None:
    """Which decides whether a task that could not store its rows is worth another try."""
    there = folders(place, tmp_path / "one", tmp_path / "two")
    assert there.have_room()
    for index in range(2):
        assert there.have_room()
        there.note_failure(there.make(partition(index)))
    assert not there.have_room()
