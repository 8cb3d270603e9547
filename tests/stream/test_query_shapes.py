# SPDX-License-Identifier: Apache-2.0
"""Exactly once for queries of random shapes, in this process: kills, back-pressure, barriers that overtake rows.

A seed gives the shape, the kills and their moments. A run that goes on with other numbers of tasks is ended in the
middle, and begun again from its newest checkpoint. `tests/processes/test_exactly_once.py` has the same shapes in real
processes, `tests/spark/test_unaligned_grid.py` on Spark.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.stream import in_flight, increments
from penstock.stream.state import store
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, location
from query_shapes import QueryShape, rows_given
from shaped_graphs import ROWS, graph_of

GRID_RUNS = int(os.environ.get("PENSTOCK_GRID_RUNS", "0"))
CALM = range(GRID_RUNS or 6)
TIMEOUTS_OF_CALM = (0.002, 0.02, 0.1)
"""Seconds: about as long as an aligned checkpoint takes here."""
SEEDS = range(GRID_RUNS) if GRID_RUNS else (0, 4, 9, 15)
"""The few: each way to join with its timeouts, some with a count, some with other numbers of tasks."""
KEEPING = range(GRID_RUNS) if GRID_RUNS else (0, 2, 4, 7)
"""The few: state of each kind, with other numbers of tasks too."""


def begun(shape: QueryShape, folder: Path, rows: int | None, chance: random.Random) -> LocalQuery:
    """A query that has not been started."""
    graph = graph_of(shape, folder, rows, chance)
    unaligned = shape.timeout is not None
    continuous = unaligned and chance.random() < 0.5
    return LocalQuery(
        graph, location(folder), unaligned=unaligned, aligned_timeout=shape.timeout or 0.0, continuous=continuous
    )


def strike(query: LocalQuery, chance: random.Random, times: int) -> None:
    """Kill tasks at random moments; the moments and the tasks do not depend on what the query does."""
    for _ in range(times):
        wait, victim = chance.uniform(0.02, 0.15), chance.random()
        if query.run(time.monotonic() + wait):
            return
        tasks = list(query.lines)
        query.kill(tasks[int(victim * len(tasks))])


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_once_in_a_query_of_any_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """0 lost, 0 doubled, and in order where all exchanges are by key.

    In each second run rows in flight are in pieces so small that recoveries often refer to some. Of each two runs one
    has checkpoints of counts that refer to older ones however few the keys are.
    """
    if seed // 2 % 2:
        monkeypatch.setattr(increments, "LEAST_SLOTS", 0)
    if seed % 2:
        monkeypatch.setattr(in_flight, "PIECE_BYTES", 1024)
    run_through_kills(QueryShape.of(seed), seed, tmp_path)


@pytest.mark.parametrize("seed", KEEPING)
def test_each_row_once_in_state_of_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """0 lost, 0 doubled, no timer lost and none fired twice, where a processor counts by a state of its own.

    Its store is built anew with each batch of every second run. Checkpoints refer to older ones however few keys
    there are.
    """
    monkeypatch.setattr(increments, "LEAST_SLOTS", 0)
    if seed % 2:
        monkeypatch.setattr(store, "SPARE", -1_000_000)
    run_through_kills(QueryShape.keeping(seed), seed, tmp_path)


def run_through_kills(shape: QueryShape, seed: int, tmp_path: Path) -> None:
    """Run a query through kills, some with other numbers of tasks in between, and count its rows."""
    chance = random.Random(seed)
    rows = ROWS
    if shape.rescales:
        with begun(shape, tmp_path, None, chance) as query:
            query.start()
            deadline = time.monotonic() + DEADLINE
            while not query.completed and time.monotonic() < deadline:
                query.run(time.monotonic() + 0.05)
            strike(query, chance, 1)
            query.run(time.monotonic() + chance.uniform(0.0, 0.1))
        rows = max(ROWS, rows_given(location(tmp_path)))
    with begun(shape, tmp_path, rows, chance) as query:
        query.start()
        strike(query, chance, chance.randint(1, 3))
        query.run_through()
        assert len(query.failures) <= query.kills, query.failures
    assert shape.faults(tmp_path / "out", rows) == [], shape


@pytest.mark.parametrize("seed", CALM)
def test_nothing_begins_anew_where_nothing_is_killed(tmp_path: Path, seed: int) -> None:
    """Barriers that may time out do so all the time, and overtake those that did not: no sum of an epoch differs."""
    shape = replace(QueryShape.of(seed), timeout=TIMEOUTS_OF_CALM[seed % len(TIMEOUTS_OF_CALM)])
    chance = random.Random(seed)
    with begun(shape, tmp_path, ROWS, chance) as query:
        query.start()
        query.run_through()
        assert query.failures == []
    assert shape.faults(tmp_path / "out", ROWS) == [], shape
