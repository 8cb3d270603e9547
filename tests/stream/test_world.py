# SPDX-License-Identifier: Apache-2.0
"""Queries in a world that fails, a short form: `python -m penstock_torture --world 500` is the long one.

Its findings: what they show has a test of its own where it was mended, and their seeds are among these.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from effort import some_of
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.storage import CheckpointStorage
from penstock_torture import world
from penstock_torture.world import WorldResult, run_world, torture_world
from penstock_torture.world_days import gone, newest_at
from penstock_torture.world_shapes import QueryPlace

SEEDS = [*some_of(range(20), 8), 1001, 1019, 1047, 1078]
BATCHED = [world.BATCHES + seed for seed in (*some_of(range(6, 60), 54), 2)]
CONNECTED = [world.CONNECTORS + seed for seed in (*some_of(range(6, 60), 54), 2, 21, 41)]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_once_in_a_world_that_fails(seed: int) -> None:
    """Faults, losses of power, other widths, consumers: each row once in the end, and no good checkpoint is lost."""
    result = run_world(seed)
    assert result.outcome in world.WELL, result.reason


@pytest.mark.usefixtures("delta", "iceberg")
@pytest.mark.parametrize("seed", [*CONNECTED, *BATCHED])
def test_each_row_once_by_connectors_in_a_world_that_fails(seed: int) -> None:
    """Tables, topics, data sources and keyed results, read back by their libraries; calls of functions, by a book."""
    result = run_world(seed)
    assert result.outcome in world.WELL, result.reason


def test_a_checkpoint_that_is_gone_says_why(tmp_path: Path) -> None:
    """Its file is named, so that a seed can be read."""
    place = QueryPlace(tmp_path, tmp_path / "checkpoints", tmp_path / "out")
    storage = CheckpointStorage(str(place.checkpoints))
    storage.claim()
    part = storage.write(storage.stamp(1), "t.0", [("n", b"data")])
    storage.commit(CheckpointMetadata(1, 0.0, {"t.0": part}))
    (place.checkpoints / part.path).unlink()
    found, _, causes = newest_at(place)
    text = gone(1, found, causes)
    assert text.startswith("checkpoint 1 was complete, the newest good one is 0: ")
    assert f"{part.path} is missing: 4 bytes were written" in text


def test_second_call_goes_on_and_counts_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that have a line are not run again; a line that was cut off is no result."""
    results, said, ran = tmp_path / "results", [], []

    def run(seed: int) -> WorldResult:
        ran.append(seed)
        return WorldResult(seed, "rate>key", "lost" if seed == 7 else "right", 0.1, "1 of 2 rows")

    monkeypatch.setattr(world, "run_world", run)
    assert torture_world((5, 2, 0, 0, 0), results, said.append) == 0
    with results.open("a") as file:
        file.write(json.dumps({"seed": 7})[:-1] + "\n")
    assert torture_world((5, 3, 1, 1, 1), results, said.append) == 1
    assert ran == [5, 6, 7, world.SPARK + 5, world.CONNECTORS + 5, world.BATCHES + 5]
    assert said[-1] == "world, 6 runs from seed 5 on: 1 lost, 5 right"
    assert sorted(world.read_results(results)) == ran
