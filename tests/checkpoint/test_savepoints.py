# SPDX-License-Identifier: Apache-2.0
"""Savepoints: whole or refused by name, with nothing elsewhere, also where the disk fails or the writer dies."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from failing_files import gated_savepoint
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.checkpoint.storage import CheckpointStorage, append
from underway import listed


class KilledError(BaseException):
    """The writer dies here."""


def taken(location: Path) -> tuple[CheckpointStorage, CheckpointMetadata]:
    """A checkpoint of two tasks: one refers to a file of an older checkpoint, and to a piece of a log."""
    storage = CheckpointStorage(str(location))
    storage.claim()
    older = storage.write(storage.stamp(1), "a.0", [("n", b"left out"), ("state", b"of the first")])
    storage.commit(CheckpointMetadata(1, 0.0, {"a.0": older}))
    own = storage.write(storage.stamp(2), "a.0", [("state", older.with_file(older.chunks[1])), ("more", b"bytes")])
    with storage.open(storage.stamp(2), "log") as file:
        piece = replace(append(file, "channel/out/e/0/0", b"rows"), file=file.path, first=3, rows=2)
    logged = storage.write(storage.stamp(2), "b.0", [("x", b"")])
    logged = replace(logged, chunks=(*logged.chunks, piece), positions={"channel/out/e/0/0": 5})
    metadata = CheckpointMetadata(2, 9.0, {"a.0": own, "b.0": logged}, ("c.0",), {"a": 1}, 128, "h")
    storage.commit(metadata)
    return storage, metadata


def contents(folder: SavepointFolder) -> dict[str, list[tuple[str, bytes]]]:
    """The chunks of each part."""
    return {name: list(folder.read(part)) for name, part in folder.find().metadata.parts.items()}


def test_a_savepoint_outlives_the_location(tmp_path: Path) -> None:
    """It holds the bytes that the checkpoint referred to, and nothing that it did not; all else is as it was."""
    storage, metadata = taken(tmp_path / "location")
    folder = SavepointFolder(str(tmp_path / "saved"))
    folder.prepare()
    folder.save(storage, metadata)
    shutil.rmtree(tmp_path / "location")
    moved = tmp_path / "elsewhere"
    (tmp_path / "saved").rename(moved)
    folder = SavepointFolder(str(moved))
    found = folder.find().metadata
    assert contents(folder) == {
        "a.0": [("state", b"of the first"), ("more", b"bytes")],
        "b.0": [("x", b""), ("channel/out/e/0/0", b"rows")],
    }
    assert replace(found, parts={}) == replace(metadata, parts={})
    assert [(chunk.first, chunk.rows) for chunk in found.parts["b.0"].logged] == [(3, 2)]
    assert found.parts["b.0"].positions == metadata.parts["b.0"].positions
    assert not [path for part in found.parts.values() for path in part.referred]


def test_folders_that_can_not_be_one_are_refused(tmp_path: Path) -> None:
    """A file, a folder with anything in it; and to begin with: a location, and a folder with nothing."""
    (tmp_path / "file").write_text("x")
    for name, why in (("file", "is a file"), (".", "'file' in it")):
        with pytest.raises(CheckpointError, match=why):
            SavepointFolder(str(tmp_path / name)).prepare()
    taken(tmp_path / "location")
    for name, why in (("location", "is a checkpointLocation"), ("nothing", "no savepoint at")):
        with pytest.raises(CheckpointError, match=why):
            SavepointFolder(str(tmp_path / name)).find()


def test_damage_is_found_as_it_is_copied(tmp_path: Path) -> None:
    """A checkpoint with a changed byte becomes no savepoint; what was written of it goes."""
    storage, metadata = taken(tmp_path / "location")
    (path,) = listed(tmp_path / "location", "chk-000000000001-*/a.0")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    folder = SavepointFolder(str(tmp_path / "saved"), (0,))
    folder.prepare()
    with pytest.raises(CheckpointError, match=r"no savepoint was written at .* chunk state .* damaged"):
        folder.save(storage, metadata)
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("kind", ["full", "killed"])
def test_each_call_fails_once(tmp_path: Path, kind: str) -> None:
    """A full disk leaves nothing, a killed writer what is refused by name, and only a whole one is begun with."""
    storage, metadata = taken(tmp_path / "location")
    calls = at = 0

    def gate(name: str, path: str) -> None:
        nonlocal calls
        calls += 1
        is_write = name in ("create_dir", "open_output_stream", "write", "close", "sync_file")
        if kind == "killed" and calls >= at:
            raise KilledError
        if kind == "full" and calls >= at and is_write:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    at, failed = 1, 0
    while True:
        calls, where = 0, tmp_path / f"saved-{at}"
        folder = gated_savepoint(where, gate)
        try:
            folder.prepare()
            folder.save(storage, metadata)
        except (CheckpointError, KilledError):
            failed += 1
        seen = SavepointFolder(str(where), (0,))
        if calls < at:
            assert contents(seen)
            break
        if not seen.is_savepoint:
            with pytest.raises(CheckpointError, match=r"no savepoint at|was not written to its end") as refused:
                seen.find()
            if kind == "full":
                assert not where.exists()
            else:
                assert isinstance(refused.value, CorruptCheckpointError) or not (where / "parts").exists()
        else:
            assert contents(seen)
        at += 1
    assert failed > 5
