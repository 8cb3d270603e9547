# SPDX-License-Identifier: Apache-2.0
"""URIs as Spark takes and shows them lead to the same folder as its path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from penstock import readParquet, readText
from penstock.api.file_sink import FolderTarget
from penstock.api.paths import data_files, located, stored_at
from penstock.api.streaming.places import filesystem_of
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.storage import PartStorage
from penstock.errors import PlanError, SettingError
from penstock.machine.locations import at_uri, is_uri, path_here
from penstock.stream.folder_looks import listed
from penstock.testing.local_runner import run_local

FORMS: tuple[Callable[[str], str], ...] = (
    lambda path: f"file://{path}",
    lambda path: f"file:{path}",
    lambda path: f"file://localhost{path}",
    lambda path: "file://" + path.replace(" ", "%20"),
)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_uri_leads_to_its_path(tmp_path: Path, form: Callable[[str], str]) -> None:
    """With one slash or three, and with a space as it is: for readers, writers, queries and checkpoints."""
    folder = tmp_path / "a b"
    folder.mkdir()
    pq.write_table(pa.table({"n": [1]}), folder / "f.parquet")
    uri = form(str(folder))
    assert is_uri(uri)
    assert at_uri(uri) == (pafs.LocalFileSystem(), str(folder))
    assert run_local(readParquet(None, uri)).to_pylist() == [{"n": 1}]
    assert data_files(uri, "readText")[1][0].path == str(folder / "f.parquet")
    assert stored_at(uri)[1] == filesystem_of(uri, "readStream")[1] == FolderTarget.of(uri).folder == str(folder)
    with PartStorage(uri).open("stamp", "task") as file:  # type: ignore[arg-type]
        file.write(b"x")
    assert (folder / "stamp" / "task").is_file()


REFUSED: tuple[tuple[Callable[[str], Any], type[Exception]], ...] = (
    (lambda uri: data_files(uri, "readText"), SettingError),
    (FolderTarget.of, SettingError),
    (lambda uri: filesystem_of(uri, "readStream"), PlanError),
    (PartStorage, CheckpointError),
)


@pytest.mark.parametrize(("use", "error"), REFUSED)
@pytest.mark.parametrize("uri", ["file://otherhost/folder", "nofs://folder"])
def test_a_uri_that_leads_nowhere_is_refused_by_name(
    uri: str, use: Callable[[str], Any], error: type[Exception]
) -> None:
    """Another host's file, and a file system that nobody knows."""
    with pytest.raises(error, match=uri):
        use(uri)


def test_a_file_system_that_cannot_be_loaded_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow lists each place where it looked for libhdfs; its first line is enough."""

    def unable(_: str) -> Any:
        raise OSError("Unable to load libjvm\ndlopen(libjvm.so) failed\ndlopen(/lib/libjvm.so) failed")

    monkeypatch.setattr("penstock.api.paths.at_uri", unable)
    with pytest.raises(SettingError, match=r"^hdfs:///x cannot be opened: Unable to load libjvm: write a local path"):
        located("hdfs:///x")


def test_a_name_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Spark leaves such a file out without a word; here no reader and no source goes on without it."""
    (tmp_path / "ok.parquet").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.parquet")).write_bytes(b"x")
    for read in (
        lambda: readText(None, tmp_path),
        lambda: readParquet(None, tmp_path),
        lambda: listed(pafs.LocalFileSystem(), str(tmp_path)),
    ):
        with pytest.raises(ValueError, match=r"a file whose name is not UTF-8: .*caf\\xe9.*: rename it"):
            read()


@pytest.mark.parametrize(
    "spelling", ["{0}/x", "{0}/x/", "{0}//x/.", "{0}/d/../x", "file:///{0}/d/../x/", "file:{0}/x/"]
)
def test_a_folder_of_this_machine_has_one_spelling(tmp_path: Path, spelling: str) -> None:
    """The one in which it is; `..` behind a link leads where the system goes, and the names of links stay else."""
    (tmp_path / "x").mkdir()
    (tmp_path / "d").mkdir()
    named = spelling.format(tmp_path).replace("file:////", "file:///")
    assert (at_uri(named)[1] if is_uri(named) else path_here(named)) == str(tmp_path / "x")
    (tmp_path / "link").symlink_to(tmp_path / "d" / "e")
    assert path_here(f"{tmp_path}/link/../x") == str(tmp_path / "d" / "x")
    assert path_here(f"{tmp_path}/link/x/") == str(tmp_path / "link" / "x")
