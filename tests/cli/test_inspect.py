# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoints`: list, inspect and verify change nothing, and delete asks who runs there."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from penstock.checkpoint.channel_state import ChannelData, ChannelKey, pack
from penstock.checkpoint.found import UsableCheckpoint
from penstock.checkpoint.log_files import LogName, log_folder
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.running import RunningSign
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.checkpoint.storage import CheckpointStorage, append
from penstock.cli import main
from penstock.record.spark_hash import spark_partition_ids
from penstock.stream.chain import StepContext
from penstock.stream.keyed_state import KeyedTable, frozen_chunks

CHANNEL = ChannelData(ChannelKey("in", "a->b:0", 0, 1), [b"12345678"], 2)
POSITION = msgpack.packb([2, {"0": 1234}, b"\xff" * 200])
FIGURES = {"start_seconds": 0.25, "align_seconds": 1.5, "freeze_seconds": 0.001, "store_seconds": 0.002}


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Two checkpoints of two tasks, one of which holds rows in flight."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    for number in (1, 2):
        stamp = storage.stamp(number)
        parts = {
            "a.0": storage.write(stamp, "a.0", [("source/position", POSITION)]),
            "b.1": storage.write(stamp, "b.1", [(CHANNEL.key.chunk, pack(CHANNEL))]),
        }
        known = {"sources": {"a": ("files of /in", ())}, "stages": {"b": "map by name"}, "sink": "parquet /out"}
        metadata = CheckpointMetadata(number, 9.0, parts, ("b.0",), seconds=1.75, figures={"b.1": FIGURES})
        storage.commit(replace(metadata, **known))
    return tmp_path


def test_checkpoints_and_the_tasks_of_the_newest_are_shown(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each, the times of each task, and bytes in flight; the owner's claim is left as it is."""
    before = sorted(path.name for path in (location / "owners").iterdir())
    assert main(["checkpoints", "list", str(location)]) == 0
    assert capsys.readouterr().out.count("chk-0000") == 2
    assert main(["checkpoints", "inspect", str(location)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("chk-000000000002") == 1
    for word in ("a.0", "b.1", "map by name", "1,500.0", "250.0", "good"):
        assert word in shown
    for line in (f"location: {location}", "sink: parquet /out", "source of a: files of /in"):
        assert line in shown
    assert "position of a.0: [2, {'0': 1234}, '<200 bytes>']" in shown
    assert sorted(path.name for path in (location / "owners").iterdir()) == before


def test_json_has_every_figure(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For each checkpoint and task."""
    assert main(["checkpoints", "inspect", "--json", str(location)]) == 0
    newest = json.loads(capsys.readouterr().out)
    assert (newest["seconds"], newest["finished"]) == (1.75, ["b.0"])
    assert (newest["sink"], newest["sources"], newest["location"]) == (
        "parquet /out",
        {"a": "files of /in"},
        str(location),
    )
    assert newest["operators"] == [
        {"stage": "a", "operator": "source", "bytes": len(POSITION), "tasks": 1, "largest": len(POSITION)},
        {
            "stage": "map by name",
            "operator": "(rows in flight)",
            "bytes": len(pack(CHANNEL)),
            "tasks": 1,
            "largest": len(pack(CHANNEL)),
        },
    ]
    assert newest["positions"] == {"a.0": "[2, {'0': 1234}, '<200 bytes>']"}
    assert newest["tasks"]["b.1"] == {
        "stage": "map by name",
        "bytes": len(pack(CHANNEL)),
        "in_flight_bytes": len(pack(CHANNEL)),
        "referred_bytes": 0,
        "start_delay_seconds": 0.25,
        "alignment_seconds": 1.5,
        "sync_seconds": 0.001,
        "async_seconds": 0.002,
    }


def test_rows_in_a_log_are_in_flight_and_referred_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint holds positions in logs: its pieces there are counted, and a damaged one is named."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    with storage.open_log(LogName(log_folder(storage.owner), "a.0", 0, 0, 0)) as file:
        piece = replace(append(file, CHANNEL.key.chunk, pack(CHANNEL)), file=file.path, first=4, rows=2)
    part = storage.write(storage.stamp(1), "a.0", [("source/position", b"77")])
    part = replace(part, chunks=(*part.chunks, piece), positions={CHANNEL.key.chunk: 6})
    storage.commit(CheckpointMetadata(1, 9.0, {"a.0": part}))
    assert main(["checkpoints", "verify", str(tmp_path)]) == 0
    assert "all bytes are as they were written" in capsys.readouterr().out
    assert main(["checkpoints", "inspect", "--json", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)["tasks"]["a.0"]
    assert (shown["bytes"], shown["in_flight_bytes"], shown["referred_bytes"]) == (2, piece.length, piece.length)
    path = tmp_path / file.path
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert main(["checkpoints", "verify", str(tmp_path)]) == 1
    assert f"{path}: chunk {CHANNEL.key.chunk}" in capsys.readouterr().out


def test_damage_is_named_and_told_by_the_exit_code(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A byte that has changed is found where all are compared, a file that is short always."""
    (part,) = location.glob("chk-000000000001-*/b.1")
    data = part.read_bytes()
    part.write_bytes(b"?" + data[1:])
    assert main(["checkpoints", "list", str(location)]) == 0
    assert main(["checkpoints", "verify", str(location)]) == 1
    assert f"{part}: chunk {CHANNEL.key.chunk}" in capsys.readouterr().out
    part.write_bytes(data[1:])
    assert main(["checkpoints", "list", "--json", str(location)]) == 1
    assert str(part) in json.loads(capsys.readouterr().out)[0]["damage"]


def test_a_place_without_checkpoints_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is mostly a wrong path, or a query that has only begun: each word says which."""
    begun = CheckpointStorage(str(tmp_path / "begun"))
    begun.claim(1)
    for word in ("list", "inspect", "verify"):
        for place, said in (
            (tmp_path / "none", "does not exist: check the path"),
            (tmp_path, "is no checkpointLocation and no savepoint"),
            (tmp_path / "begun", "holds no complete checkpoint: its query has not come to one yet"),
        ):
            assert main(["checkpoints", word, str(place)]) == 2
            assert f"{place} {said}" in capsys.readouterr().err


def test_one_checkpoint_is_inspected_by_its_number(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An older one too; one that is not there is said, with what shows those that are."""
    assert main(["checkpoints", "inspect", "--checkpoint", "1", str(location)]) == 0
    assert "chk-000000000001" in capsys.readouterr().out
    assert main(["checkpoints", "inspect", "--checkpoint", "7", str(location)]) == 2
    assert "no good checkpoint 7" in capsys.readouterr().err


def test_rows_of_state_are_counted_by_key_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all tasks of an operator, as the hash deals keys out."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    context = StepContext(0, 1, 128, "counts")
    keys = pa.array(range(1000), pa.int64())
    parts = {}
    for subtask, half in enumerate((keys.slice(0, 400), keys.slice(400))):
        batch = pa.record_batch([half, half], names=["k", "n"])
        table = KeyedTable([batch], batch.schema, 1)
        chunks = [(f"agg/{name}", make()) for name, make in frozen_chunks("n", table, table, context)]
        parts[f"c.{subtask}"] = storage.write(storage.stamp(1), f"c.{subtask}", chunks)
    storage.commit(CheckpointMetadata(1, 9.0, parts, parallelism={"c": 2}, max_parallelism=128))
    assert main(["checkpoints", "inspect", "--groups", "--json", str(tmp_path)]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["key_groups"]
    assert (shown["stage"], shown["operator"]) == ("c", "agg")
    assert shown["rows"] == np.bincount(spark_partition_ids([keys], 128), minlength=128).tolist()
    assert main(["checkpoints", "inspect", "--groups", str(tmp_path)]) == 0
    assert "1,000" in capsys.readouterr().out


def test_a_savepoint_is_shown_verified_and_deleted(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same words as a location; a part that has lost bytes is damage."""
    storage = CheckpointStorage(str(location))
    newest = storage.history()[-1]
    assert isinstance(newest, UsableCheckpoint)
    saved = location.parent / f"{location.name}-saved"
    folder = SavepointFolder(str(saved))
    folder.prepare()
    folder.save(storage, newest.metadata)
    assert main(["checkpoints", "inspect", str(saved)]) == 0
    assert "savepoint of 2" in capsys.readouterr().out
    assert main(["checkpoints", "verify", str(saved)]) == 0
    (saved / "parts" / "000001").write_bytes(b"?")
    capsys.readouterr()
    assert main(["checkpoints", "verify", "--json", str(saved)]) == 1
    assert "000001 has 1 bytes" in json.loads(capsys.readouterr().out)[0]["damage"]
    assert main(["checkpoints", "delete", "--checkpoint", "2", str(saved)]) == 2
    assert main(["checkpoints", "delete", str(saved)]) == 0
    assert saved.exists()
    assert main(["checkpoints", "delete", "--yes", str(saved)]) == 0
    assert not saved.exists()


def test_one_checkpoint_is_deleted_and_not_the_newest(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest goes with its location only, and what is somebody else's there stays."""
    storage = CheckpointStorage(str(location))
    (path,) = location.glob("chk-000000000001-*")
    assert main(["checkpoints", "delete", "--yes", "--checkpoint", "2", str(location)]) == 2
    assert "goes on from" in capsys.readouterr().err
    assert main(["checkpoints", "delete", "--checkpoint", "1", str(location)]) == 0
    assert "would delete chk-000000000001" in capsys.readouterr().out
    assert path.exists()
    assert main(["checkpoints", "delete", "--yes", "--checkpoint", "1", str(location)]) == 0
    assert not path.exists()
    assert [each.stamp.number for each in storage.history()] == [2]
    (location / "of somebody else").write_text("")
    assert main(["checkpoints", "delete", "--yes", str(location)]) == 0
    assert [path.name for path in location.iterdir()] == ["of somebody else"]
    assert main(["checkpoints", "delete", "--yes", str(location)]) == 2


def test_files_that_others_refer_to_stay(tmp_path: Path) -> None:
    """A checkpoint is deleted whose file a newer one needs: that one is as good as before."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    old = storage.write(storage.stamp(1), "a.0", [("x", b"needed")])
    more = storage.write(storage.stamp(1), "b.0", [("x", b"not needed")])
    storage.commit(CheckpointMetadata(1, 9.0, {"a.0": old, "b.0": more}))
    new = storage.write(storage.stamp(2), "a.0", [("x", old.with_file(old.chunks[0]))])
    storage.commit(CheckpointMetadata(2, 9.0, {"a.0": new}))
    assert main(["checkpoints", "delete", "--yes", "--checkpoint", "1", str(tmp_path)]) == 0
    (folder,) = tmp_path.glob("chk-000000000001-*")
    assert [path.name for path in folder.iterdir()] == ["a.0"]
    assert main(["checkpoints", "verify", str(tmp_path)]) == 0


def test_nothing_goes_where_a_query_runs(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its sign names the process; one that a dead driver left says nothing, and without locks --force decides."""
    sign = RunningSign(*CheckpointStorage(str(location)).place)
    sign.put("000001-a")
    for words in (["--yes"], ["--yes", "--force"], ["--yes", "--checkpoint", "1"]):
        assert main(["checkpoints", "delete", *words, str(location)]) == 1
        assert f"process {os.getpid()}" in capsys.readouterr().err
    left = location / "owners" / "000001-a.running"
    text = left.read_text()
    sign.take_away()
    left.write_text(text)
    assert main(["checkpoints", "delete", str(location)]) == 0
    left.write_text(text.replace("true", "false"))
    assert main(["checkpoints", "delete", "--yes", str(location)]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["checkpoints", "delete", "--yes", "--force", str(location)]) == 0
    assert not location.exists()
