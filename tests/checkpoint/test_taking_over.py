# SPDX-License-Identifier: Apache-2.0
"""A driver takes a location over from another: what is wrong with the start or the disk costs neither a row."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from failing_files import gated, shown_through
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.checkpoint.found import Found, UsableCheckpoint
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.newest import NOTE
from penstock.checkpoint.removal import METADATA
from penstock.checkpoint.storage import CheckpointStorage
from penstock.machine import durable
from penstock_torture.passing_files import PassingFiles
from underway import listed

OTHER_ERRORS = [errno.EIO, errno.EMFILE, errno.EACCES, errno.ETIMEDOUT, errno.ESTALE]


def commit(storage: CheckpointStorage, number: int) -> None:
    """A checkpoint of one task."""
    part = storage.write(storage.stamp(number), "t.0", [("n", b"%d" % number)])
    storage.commit(CheckpointMetadata(number, 0.0, {"t.0": part}))


@pytest.fixture
def running(tmp_path: Path) -> CheckpointStorage:
    """A driver that has taken two checkpoints, and goes on."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    for number in (1, 2):
        commit(storage, number)
    return storage


def files(folder: Path) -> dict[str, bytes]:
    """All that is at a location."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in listed(folder, "**/*") if path.is_file()}


class Fails:
    """Some calls fail: so many of those that `picks`."""

    def __init__(self, code: int, times: int, picks: Callable[[str, str], bool]) -> None:
        self.code = code
        self.left = times
        self.picks = picks

    def __call__(self, name: str, path: str) -> None:
        """The gate."""
        if self.left and self.picks(name, path):
            self.left -= 1
            raise OSError(self.code, os.strerror(self.code), path)


def reads(name: str, path: str) -> bool:
    """Bytes of a checkpoint are read."""
    return name in ("open_input_stream", "open_input_file") and "chk-" in path


@pytest.mark.parametrize("code", OTHER_ERRORS)
def test_an_error_of_the_file_system_is_no_damage(tmp_path: Path, running: CheckpointStorage, code: int) -> None:
    """It is tried again. The newest checkpoint was dropped and removed for it, and its rows came twice."""
    found = gated(tmp_path, Fails(code, 2, reads)).claim(2)
    assert [each.stamp for each in found.kept] == [running.stamp(2), running.stamp(1)]
    assert not found.unusable


@pytest.mark.parametrize("code", OTHER_ERRORS)
def test_one_that_lasts_refuses_the_start_and_changes_nothing(
    tmp_path: Path, running: CheckpointStorage, code: int
) -> None:
    """The query that runs keeps the location, all checkpoints stay; who only looks is told the same."""
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=rf"can't be read, and none was changed: .*{os.strerror(code)}"):
        gated(tmp_path, Fails(code, 99, reads)).claim(2)
    for look in (CheckpointStorage.newest, CheckpointStorage.history):
        with pytest.raises(CheckpointError, match="can't be read"):
            look(gated(tmp_path, Fails(code, 99, reads)))
    assert files(tmp_path) == before
    commit(running, 3)


def test_a_file_that_is_missing_for_a_moment_is_no_damage(tmp_path: Path, running: CheckpointStorage) -> None:
    """Damage is believed when it was seen twice."""
    part = tmp_path / str(running.stamp(2)) / "t.0"
    looks = []

    def gate(name: str, path: str) -> None:
        if name == "get_file_info" and path == str(part):
            looks.append(path)
            if len(looks) == 1:
                part.rename(part.with_name("away"))
            else:
                part.with_name("away").rename(part)

    assert gated(tmp_path, gate).newest().stamp == running.stamp(2)
    assert len(looks) == 2


@pytest.mark.parametrize("kind", ["missing", "other bytes"])
def test_a_task_believes_damage_when_it_has_seen_it_twice(
    tmp_path: Path, running: CheckpointStorage, kind: str
) -> None:
    """It took one look, and the query threw the newest checkpoint away: rows that were published came again."""
    handle = running.newest().kept[0].metadata.parts["t.0"]
    path, looks = tmp_path / handle.path, []
    whole = path.read_bytes()

    def gate(name: str, at: str) -> None:
        if name == "open_input_file" and at == str(path):
            looks.append(name)
            path.write_bytes(b"?" * len(whole) if len(looks) == 1 else whole)
            if kind == "missing" and len(looks) == 1:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), at)

    assert dict(gated(tmp_path, gate).read(handle)) == {"n": b"2"}
    assert len(looks) == 2


@pytest.mark.parametrize(
    "picks",
    [
        lambda name, path: name == "write" and path.endswith(".base.new"),
        lambda name, path: name == "close" and path.endswith(".base.new"),
        lambda name, path: name == "open_output_stream" and ".base" not in path,
        lambda name, path: name == "move",
        lambda name, path: name == "sync_folder",
    ],
    ids=["base", "end of base", "claim", "name", "folder"],
)
def test_a_start_on_a_full_disk_fences_nobody(
    tmp_path: Path, running: CheckpointStorage, picks: Callable[[str, str], bool]
) -> None:
    """If it can't write some file, the query that runs goes on, and the next start goes on from its newest."""
    with pytest.raises(OSError, match="No space left"):
        gated(tmp_path, Fails(errno.ENOSPC, 1, picks)).claim()
    commit(running, 3)
    assert CheckpointStorage(str(tmp_path)).claim().stamp == running.stamp(3)


def test_a_start_that_its_plan_refuses_fences_nobody(tmp_path: Path, running: CheckpointStorage) -> None:
    """It is asked before the claim, so nothing is written, and after it, about what was completed meanwhile."""
    asked: list[Found] = []

    def refuse(found: Found) -> None:
        asked.append(found)
        if found.stamp != running.stamp(2):
            raise CheckpointError("another plan")
        if len(asked) == 1 and completes:
            commit(running, 3)

    completes = True
    with pytest.raises(CheckpointError, match="another plan"):
        CheckpointStorage(str(tmp_path)).claim(agree=refuse)
    assert [found.stamp for found in asked] == [running.stamp(2), running.stamp(3)]
    commit(running, 4)
    before, asked, completes = files(tmp_path), [], False
    with pytest.raises(CheckpointError, match="another plan"):
        CheckpointStorage(str(tmp_path)).claim(agree=refuse)
    assert len(asked) == 1
    assert files(tmp_path) == before


def test_what_is_completed_during_the_claim_is_gone_on_from(tmp_path: Path, running: CheckpointStorage) -> None:
    """Another checkpoint than the one that was found first: the base names it."""

    def agree(found: Found) -> None:
        if found.stamp == running.stamp(2):
            commit(running, 3)

    second = CheckpointStorage(str(tmp_path))
    assert second.claim(agree=agree).stamp == running.stamp(3)
    commit(second, 4)
    assert [each.stamp for each in second.history()] == [*map(running.stamp, (1, 2, 3)), second.stamp(4)]


def test_a_base_that_was_cut_loses_nothing(tmp_path: Path, running: CheckpointStorage) -> None:
    """As a version before left one on a full disk: the next start removed every checkpoint, and began anew."""
    (tmp_path / "owners" / "000002-aaaa").touch()
    (tmp_path / "owners" / "000002-aaaa.base").touch()
    third = CheckpointStorage(str(tmp_path))
    assert third.claim().stamp == running.stamp(2)
    assert third.sweep([]) == []
    assert len([each for each in third.history() if isinstance(each, UsableCheckpoint)]) == 2


def test_owners_that_nobody_needs_go_with_the_first_commit(tmp_path: Path, running: CheckpointStorage) -> None:
    """A hundred starts without a checkpoint leave two files each, until there is one."""
    for _ in range(100):
        last = CheckpointStorage(str(tmp_path))
        last.claim()
    owners = tmp_path / "owners"
    assert len(listed(owners)) == 2 * 101
    commit(last, 3)
    last.sweep([running.stamp(2), last.stamp(3)])
    assert {path.name.removesuffix(".base") for path in listed(owners)} == {running.owner, last.owner}
    commit(last, 4)
    last.sweep([last.stamp(4)])
    assert {path.name for path in listed(owners)} == {last.owner, f"{last.owner}.base"}
    assert CheckpointStorage(str(tmp_path)).claim().stamp == last.stamp(4)


def test_a_location_that_shows_nothing_is_not_begun_anew(tmp_path: Path, running: CheckpointStorage) -> None:
    """Its folders are away while the owners can be read, first for good, and then as it is claimed."""
    second = CheckpointStorage(str(tmp_path))
    second.claim()
    commit(second, 3)
    hidden = tmp_path.with_name("hidden")
    hidden.mkdir()

    def hide(_: object = None) -> None:
        for folder in listed(tmp_path, "chk-*"):
            folder.rename(hidden / folder.name)

    with pytest.raises(CheckpointError, match="is the location away"):
        CheckpointStorage(str(tmp_path)).claim(agree=hide)
    with pytest.raises(CheckpointError, match="is the location away"):
        CheckpointStorage(str(tmp_path)).claim()
    for folder in listed(hidden):
        folder.rename(tmp_path / folder.name)
    commit(second, 4)


def test_owners_that_are_not_listed_for_a_moment_end_no_query(tmp_path: Path, running: CheckpointStorage) -> None:
    """The look after the commit of a checkpoint finds none of them; the next one does."""
    looks = iter(list[bool]())

    class Away(PassingFiles):
        """Shows no owners in some looks."""

        def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
            """None, or those that are there."""
            is_away = selector.base_dir.endswith("/owners") and next(looks, False)
            return [] if is_away else super().get_file_info_selector(selector)

    storage = shown_through(Away, lambda: CheckpointStorage(str(tmp_path), (0, 0), (0, 0)))
    storage.claim()
    looks = iter([False, True, True])
    commit(storage, 3)
    assert next(looks, None) is None
    assert CheckpointStorage(str(tmp_path)).look().stamp == storage.stamp(3)


def test_parts_of_a_checkpoint_that_was_given_up_go(tmp_path: Path, running: CheckpointStorage) -> None:
    """Those that could not be written at once; those of a task that was late with the next commit."""
    full = Fails(errno.ENOSPC, 1, lambda name, path: name == "write")
    with pytest.raises(OSError, match="No space left"):
        gated(tmp_path, full).write(running.stamp(3), "t.1", [("n", b"x" * 100)])
    folder = tmp_path / str(running.stamp(3))
    assert not listed(folder)
    running.discard(running.stamp(3))
    running.write(running.stamp(3), "t.0", [("n", b"late")])
    commit(running, 4)
    running.sweep([running.stamp(4)])
    assert sorted(path.name for path in listed(tmp_path)) == [str(running.stamp(4)), NOTE, "owners"]


def test_who_has_lost_the_location_sweeps_nothing(tmp_path: Path, running: CheckpointStorage) -> None:
    """It asks first."""
    CheckpointStorage(str(tmp_path)).claim()
    with pytest.raises(CheckpointError, match="another driver has taken over"):
        running.sweep([])
    assert (tmp_path / str(running.stamp(2)) / METADATA).is_file()


def test_damage_alone_makes_an_older_checkpoint_count(tmp_path: Path, running: CheckpointStorage) -> None:
    """A wrong checksum, size or a missing file."""
    part = next(iter(running.newest().metadata.parts.values()))  # type: ignore[union-attr]  # there is one
    (tmp_path / part.path).write_bytes(b"?" * part.size)
    with pytest.raises(CorruptCheckpointError):
        list(running.read(part))
    found = CheckpointStorage(str(tmp_path)).claim()
    assert found.stamp == running.stamp(1)
    assert [each.stamp for each in found.unusable] == [running.stamp(2)]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF])
def test_names_that_may_not_be_on_the_disk_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Only a file system that knows no such thing is believed."""

    def fsync(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    if code in (errno.EIO, errno.ENOSPC):
        with pytest.raises(OSError, match=os.strerror(code)):
            durable.sync_folder(tmp_path)
    else:
        durable.sync_folder(tmp_path)


def test_a_location_of_sparks_own_is_refused(tmp_path: Path) -> None:
    """Nobody would find a row of it here, and its query would find what is none of its own."""
    for name in ("offsets", "commits", "state"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata").write_text('{"id":"x"}')
    with pytest.raises(CheckpointError, match=r"a query of Spark's own .*another folder"):
        CheckpointStorage(str(tmp_path)).claim()
    assert not (tmp_path / "owners").exists()
