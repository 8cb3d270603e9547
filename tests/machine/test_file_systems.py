# SPDX-License-Identifier: Apache-2.0
"""One seam: all that storage, sources and sinks do to files goes through the file system that is named."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from penstock import readParquet
from penstock.api.streaming.places import filesystem_of, one_spelling
from penstock.checkpoint.storage import CheckpointStorage
from penstock.machine.locations import FILESYSTEMS, here, is_here
from penstock.stream.arriving_files import FilesSource
from penstock.stream.file_rows import ParquetFileFormat
from penstock.stream.folder_sink import FolderSink
from penstock.testing.local_runner import run_local
from penstock_torture.passing_files import PassingFiles

SCHEMA = pa.schema([("n", pa.int64())])


class Noted(PassingFiles):
    """Notes the name of each call."""

    calls: set[str] = set()  # noqa: RUF012 - of all copies

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if callable(found) and not name.startswith("_"):
            self.calls.add(name)
        return found


def noted(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """The file system that the environment names."""
    return pafs.PyFileSystem(Noted(filesystem))


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILESYSTEMS, f"{__name__}:noted")
    monkeypatch.setattr(Noted, "calls", set())


def test_a_location_of_checkpoints_is_seen_through_it(tmp_path: Path) -> None:
    """Its owners, parts, metadata, names on the disk and removals."""
    storage = CheckpointStorage(str(tmp_path / "checkpoints"))
    storage.claim()
    storage.write(storage.stamp(1), "task", [("chunk", b"x")])
    storage.discard(storage.stamp(1))
    expected = {
        "create_dir",
        "open_output_stream",
        "sync_file",
        "sync_folder",
        "get_file_info_selector",
        "delete_dir",
    }
    assert expected <= Noted.calls
    assert one_spelling(f"file:{tmp_path}") == str(tmp_path)


def test_a_sink_and_a_source_of_files_are_seen_through_it(tmp_path: Path) -> None:
    """Their copies in tasks too: what is written, prepared, published, listed and read."""
    filesystem, folder = filesystem_of(str(tmp_path / "out"), "writeStream")
    assert is_here(filesystem)
    sink: FolderSink = pickle.loads(pickle.dumps(FolderSink(filesystem, folder, SCHEMA, "query1")))  # noqa: S301
    writer = sink.open(0, 1, [])
    writer.write(pa.record_batch({"n": [1, 2]}, SCHEMA))
    writer.sync(writer.prepare(1))
    writer.commit(1)
    writer.close()
    assert {"create_dir", "open_output_stream", "sync_file", "sync_folder", "move"} <= Noted.calls
    Noted.calls.clear()
    source = FilesSource(filesystem, folder, ParquetFileFormat(SCHEMA))
    assert [batch.to_pydict() for batch in source.read(0, 1)] == [{"n": [1, 2]}]
    assert {"get_file_info_selector", "open_input_file"} <= Noted.calls


def test_what_batch_jobs_read_is_seen_through_it(tmp_path: Path) -> None:
    """A folder of Parquet."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "f.parquet")
    assert run_local(readParquet(None, str(tmp_path))).to_pylist() == [{"n": 1}]
    assert "open_input_file" in Noted.calls


def test_without_it_files_are_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing lies between."""
    monkeypatch.delenv(FILESYSTEMS)
    assert here() == pafs.LocalFileSystem()
