# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoints inspect`: checkpoints, their tasks' figures, and damage, without changing anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from penstock.checkpoint.channel_state import ChannelData, ChannelKey, pack
from penstock.checkpoint.log_files import LogName, log_folder
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.storage import CheckpointStorage, append
from penstock.cli import main

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
    assert main(["checkpoints", "inspect", str(location)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("chk-0000") == 2
    for word in ("a.0", "b.1", "map by name", "1,500.0", "250.0", "good"):
        assert word in shown
    for line in (f"location: {location}", "sink: parquet /out", "source of a: files of /in"):
        assert line in shown
    assert "position of a.0: [2, {'0': 1234}, '<200 bytes>']" in shown
    assert sorted(path.name for path in (location / "owners").iterdir()) == before


def test_json_has_every_figure(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For each checkpoint and task."""
    assert main(["checkpoints", "inspect", "--json", str(location)]) == 0
    newest = json.loads(capsys.readouterr().out)[-1]
    assert (newest["seconds"], newest["finished"]) == (1.75, ["b.0"])
    assert (newest["sink"], newest["sources"], newest["location"]) == (
        "parquet /out",
        {"a": "files of /in"},
        str(location),
    )
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
    assert main(["checkpoints", "inspect", "--json", "--verify", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)[0]["tasks"]["a.0"]
    assert (shown["bytes"], shown["in_flight_bytes"], shown["referred_bytes"]) == (2, piece.length, piece.length)
    path = tmp_path / file.path
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert main(["checkpoints", "inspect", "--verify", str(tmp_path)]) == 1
    assert f"{path}: chunk {CHANNEL.key.chunk}" in capsys.readouterr().out


def test_damage_is_named_and_told_by_the_exit_code(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A byte that has changed is found where all are compared, a file that is short always."""
    (part,) = location.glob("chk-000000000001-*/b.1")
    data = part.read_bytes()
    part.write_bytes(b"?" + data[1:])
    assert main(["checkpoints", "inspect", str(location)]) == 0
    assert main(["checkpoints", "inspect", "--verify", str(location)]) == 1
    assert f"{part}: chunk {CHANNEL.key.chunk}" in capsys.readouterr().out
    part.write_bytes(data[1:])
    assert main(["checkpoints", "inspect", "--json", str(location)]) == 1
    assert str(part) in json.loads(capsys.readouterr().out)[0]["damage"]


def test_a_place_without_checkpoints_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is mostly a wrong path."""
    assert main(["checkpoints", "inspect", str(tmp_path)]) == 2
    assert "no complete checkpoint" in capsys.readouterr().err
