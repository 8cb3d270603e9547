# SPDX-License-Identifier: Apache-2.0
"""A loss of power takes what nobody waited for: never a claim, nor the words that tell of a checkpoint."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.storage import CheckpointStorage
from penstock.machine.locations import FILESYSTEMS
from penstock_torture.failing_files import WORLD, write_plan
from penstock_torture.lost_power import lose_power

SEEDS = range(12)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """A world that is well until it loses power."""
    write_plan(tmp_path, {}, [])
    named = {FILESYSTEMS: "penstock_torture.failing_files:seen", WORLD: str(tmp_path)}
    with mock.patch.dict(os.environ, named):
        yield tmp_path


def lose(world: Path, seed: int) -> None:
    """There is no power for a moment."""
    lose_power(world, random.Random(seed))


def committed(world: Path, number: int) -> CheckpointStorage:
    """A driver that has claimed the location and completed a checkpoint."""
    storage = CheckpointStorage(str(world / "at" / "location"))
    storage.claim()
    part = storage.write(storage.stamp(number), "task.0", [("state", b"data")])
    storage.commit(CheckpointMetadata(number, 0.0, {"task.0": part}))
    return storage


@pytest.mark.parametrize("seed", SEEDS)
def test_claim_survives(world: Path, seed: int) -> None:
    """With the folders that it made: the next owner's epoch is a later one."""
    (world / "at").mkdir()
    storage = CheckpointStorage(str(world / "at" / "location"))
    storage.claim()
    lose(world, seed)
    second = CheckpointStorage(str(world / "at" / "location"))
    second.claim()
    assert second.owner > storage.owner


@pytest.mark.parametrize("seed", SEEDS)
def test_words_of_an_owner_go_behind_its_checkpoints(world: Path, seed: int) -> None:
    """A second owner has swept what the first one left: the folder of that may come back, with what tells of it."""
    (world / "at").mkdir()
    committed(world, 1)
    second = committed(world, 2)
    second.sweep([second.stamp(2)])
    lose(world, seed)
    found = CheckpointStorage(str(world / "at" / "location")).claim()
    assert found.metadata is not None
    assert found.metadata.number == 2
    shutil.rmtree(world / "at")
