# SPDX-License-Identifier: Apache-2.0
"""Folders of a service: what an operator's slips make of them, and what belongs to other users."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import SettingError
from penstock.machine.owned_folders import (
    ID_NAME,
    FolderKind,
    FoundFolder,
    check_owned,
    home_of,
    open_folders,
    read_id,
    sort_folders,
    write_id,
)

KIND = FolderKind("service", "index", lambda folder: any(folder.glob("*.rows")), "")
A, B, C = (Path(f"/{name}") for name in "abc")
X, Y = "x", "y"
ROOT = os.geteuid() == 0


def found(path: Path, id: str = "", *, index: bool = False, rows: bool = False) -> FoundFolder:  # noqa: A002 - its name
    """A folder."""
    return FoundFolder(path, id, index, rows)


@pytest.mark.parametrize(
    ("folders", "index", "fresh", "ours", "new", "refused"),
    [
        pytest.param([found(A), found(B)], X, True, "ab", "ab", "", id="the first start"),
        pytest.param([found(A, index=True), found(B, X)], X, True, "ab", "a", "", id="killed in the first start"),
        pytest.param([found(A, X, index=True), found(B, X)], X, False, "ab", "", "", id="any later start"),
        pytest.param([found(B, X), found(A, X, index=True)], X, False, "ba", "", "", id="in another order"),
        pytest.param([found(A, X, index=True), found(B)], X, False, "a", "", "b", id="the second is not mounted"),
        pytest.param([found(A), found(B, X)], Y, True, "a", "a", "b", id="the first is not mounted"),
        pytest.param([found(A, X, index=True), found(B, Y)], X, False, "a", "", "b", id="another one's folder"),
        pytest.param([found(A), found(B, rows=True)], X, True, "a", "a", "b", id="rows without an id"),
    ],
)
def test_folders_are_sorted_by_whose_they_are(
    folders: list[FoundFolder], index: str, fresh: bool, ours: str, new: str, refused: str
) -> None:
    """The index is found wherever it lies; a folder that is not its own is left out by name, with the reason."""
    home = home_of(KIND, folders)
    result = sort_folders(KIND, folders, home.path, index, is_fresh=fresh)
    assert "".join(each.name for each in result.ours) == ours
    assert "".join(each.name for each in result.new) == new
    assert "".join(each.name for each in result.refused) == refused
    assert result.hides_another == any(each.id not in ("", index) for each in folders)


@pytest.mark.parametrize(
    ("folders", "told"),
    [
        pytest.param([found(A, X), found(B, X)], "/a is a folder of a service whose index", id="the index is lost"),
        pytest.param([found(A, rows=True)], "/a is a folder of a service whose index", id="an old one's is lost"),
        pytest.param([found(A, X, index=True), found(B, Y, index=True)], "/a and /b have an index each", id="two"),
        pytest.param([found(A, Y, index=True)], "/a is refused: it carries the id y", id="another one's index"),
        pytest.param([found(A, index=True, rows=True)], "/a is refused: it carries no id", id="of an old version"),
    ],
)
def test_where_the_index_may_be_another_ones_nothing_starts(folders: list[FoundFolder], told: str) -> None:
    """The message names the folder, and says that nothing was removed or what to do."""
    with pytest.raises(SettingError, match=told):
        sort_folders(KIND, folders, home_of(KIND, folders).path, X, is_fresh=False)


@dataclass
class Index:
    """An index of one id."""

    id: str
    is_fresh: bool = False

    def close(self) -> None:
        """Nothing is open."""


def test_a_command_gives_ids_and_nothing_else_does(tmp_path: Path) -> None:
    """Folders of a version without ids are refused, then adopted once; an id is never written over."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for each in folders:
        each.mkdir()
        (each / "1.rows").touch()
    (folders[0] / "index").touch(0o600)
    with pytest.raises(SettingError, match="--adopt"):
        open_folders(KIND, folders, 0o700, lambda _: Index(X))
    assert not any((each / ID_NAME).exists() for each in folders)
    for adopts in (True, False):
        opened = open_folders(KIND, folders, 0o700, lambda _: Index(X), adopts=adopts)
        assert opened.sorted.ours == tuple(folders)
        opened.let_go()
    assert [read_id(each) for each in folders] == [X, X]
    with pytest.raises(SettingError, match="it carries the id x"):
        write_id(folders[0], Y)


def test_what_others_own_or_may_write_to_is_refused(tmp_path: Path) -> None:
    """Also a link, wherever it leads: somebody else may lead it elsewhere."""
    mine, open_to_all, link = tmp_path / "mine", tmp_path / "open", tmp_path / "link"
    mine.mkdir()
    check_owned(mine)
    check_owned(tmp_path / "nothing")
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(mine)
    for path, told in ((open_to_all, "chmod go-w"), (link, "it is a link")):
        with pytest.raises(SettingError, match=told):
            check_owned(path)
    if ROOT:
        os.chown(mine, 65534, 65534)
        with pytest.raises(SettingError, match="belongs to user 65534"):
            check_owned(mine)
