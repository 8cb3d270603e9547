# SPDX-License-Identifier: Apache-2.0
"""Queries of random shapes that go on several times, each time with another way to get rows into checkpoints.

A seed gives the shape and for each run: the way (aligned, unaligned, unaligned with logs), numbers of tasks, how
often checkpoints come, how many are under way and kept, how small pieces and files of logs are, and the kills: at
random, as soon as a checkpoint is complete, and twice before a recovery has one.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from effort import some_of
from penstock.checkpoint.coordinator import CheckpointOptions
from penstock.checkpoint.found import UsableCheckpoint
from penstock.checkpoint.storage import CheckpointStorage
from penstock.stream import in_flight, log_writer, row_log
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, location
from query_shapes import QueryShape, rows_given
from shaped_graphs import ROWS, graph_of
from underway import listed

RUNS = int(os.environ.get("PENSTOCK_GRID_RUNS", "5"))
WAYS = ("aligned", "unaligned", "continuous", "continuous")


def begun(shape: QueryShape, folder: Path, rows: int | None, chance: random.Random, way: str) -> LocalQuery:
    """A query that has not been started."""
    options = CheckpointOptions(
        interval=chance.choice((0.01, 0.02, 0.05)),
        tolerable_failures=5_000,
        retained=chance.randint(1, 4),
        max_concurrent=chance.choice((1, 1, 3)),
        min_pause=0.0,
    )
    return LocalQuery(
        graph_of(shape, folder, rows, chance),
        location(folder),
        options,
        unaligned=way != "aligned",
        aligned_timeout=shape.timeout or 0.0,
        continuous=way == "continuous",
    )


def strike(query: LocalQuery, chance: random.Random) -> None:
    """Kill a task at some moment, perhaps twice."""
    how = chance.choice(("any time", "complete", "twice"))
    victims = [chance.random() for _ in range(2)]
    wait = chance.uniform(0.005, 0.15)
    if how == "complete":
        known, deadline = len(query.completed), time.monotonic() + 0.3
        while len(query.completed) == known and time.monotonic() < deadline:
            if query.run(time.monotonic() + 0.001):
                return
    elif query.run(time.monotonic() + wait):
        return
    for victim in victims[: 2 if how == "twice" else 1]:
        tasks = list(query.lines)
        query.kill(tasks[int(victim * len(tasks))])
        if query.run(time.monotonic() + chance.uniform(0.0, 0.02)):
            return


def is_tidy(folder: Path) -> bool:
    """Tell whether the logs at the location are those that its checkpoints need."""
    place = Path(location(folder))
    kept = [each.metadata for each in CheckpointStorage(str(place)).history() if isinstance(each, UsableCheckpoint)]
    needed = {
        chunk.file for metadata in kept for part in metadata.parts.values() for chunk in part.chunks if chunk.file
    }
    found = {str(path.relative_to(place)) for path in listed(place, "logs-*/*")}
    return found <= needed


@pytest.mark.parametrize("seed", some_of(range(RUNS), 3))
def test_each_row_once_however_the_way_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """0 lost, 0 doubled; after each run no log is left that no checkpoint needs."""
    chance = random.Random(seed)
    monkeypatch.setattr(in_flight, "PIECE_BYTES", chance.choice((1024, 256 << 10)))
    monkeypatch.setattr(log_writer, "PIECE_BYTES", chance.choice((200, 1024, 256 << 10)))
    gathered, waiting = chance.choice(((1, 2), (2048, 4096), (8 << 20, 16 << 20)))
    monkeypatch.setattr(log_writer, "GATHERED_BYTES", gathered)
    monkeypatch.setattr(row_log, "MOST_WAITING", waiting)
    monkeypatch.setattr(log_writer, "FILE_BYTES", chance.choice((4096, 64 << 20)))
    shape = QueryShape.of(seed)
    for _ in range(chance.randint(1, 3)):
        way = chance.choice(WAYS)
        with begun(shape, tmp_path, None, chance, way) as query:
            query.start()
            deadline = time.monotonic() + DEADLINE
            while not query.completed and time.monotonic() < deadline:
                query.run(time.monotonic() + 0.005)
            for _ in range(chance.randint(0, 2)):
                strike(query, chance)
            if chance.random() < 0.3:
                query.stop()
                query.run_through()
        assert is_tidy(tmp_path)
    rows = max(ROWS, rows_given(location(tmp_path)))
    with begun(shape, tmp_path, rows, chance, chance.choice(WAYS)) as query:
        query.start()
        for _ in range(chance.randint(1, 3)):
            strike(query, chance)
        query.run_through()
    assert is_tidy(tmp_path)
    assert shape.faults(tmp_path / "out", rows) == [], shape
