# SPDX-License-Identifier: Apache-2.0
"""Folders of a host service that are made while others beside them are removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.external.folders import ServiceFolders


@pytest.mark.parametrize("step", ["before it is looked for", "after it was found"])
def test_the_folder_above_may_go_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A partition's removal takes the empty folder above it away while another partition's folder is made there."""
    folders = ServiceFolders([tmp_path], 0)
    above = tmp_path / "data" / "ab"
    above.mkdir()
    is_dir = Path.is_dir

    def removed_meanwhile(make: Callable[[Path], bool]) -> Callable[[Path], bool]:
        def looked(path: Path) -> bool:
            if path != above:
                return make(path)
            monkeypatch.undo()
            found = make(path) if step == "after it was found" else False
            above.rmdir()
            return found

        return looked

    monkeypatch.setattr(Path, "is_dir", removed_meanwhile(is_dir))
    folder = above / ("0" * 24)
    folders.make(str(folder))
    assert is_dir(folder)


def test_what_is_there_is_not_taken(tmp_path: Path) -> None:
    """A folder that is there, or a file where its parent should be, is an error that says where."""
    folders = ServiceFolders([tmp_path], 0)
    (tmp_path / "data" / "ab" / ("0" * 24)).mkdir(parents=True)
    (tmp_path / "data" / "cd").write_bytes(b"")
    for taken in ("ab", "cd"):
        with pytest.raises(StorageError, match=r"can't make files in .*/data: "):
            folders.make(str(tmp_path / "data" / taken / ("0" * 24)))
