# SPDX-License-Identifier: Apache-2.0
"""Exactly once on Spark for queries of random shapes: tasks are killed, drivers' queries end in the middle.

The same shapes as in `tests/stream/test_query_shapes.py`, for `make torture`: a tenth of its runs is here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.api.streaming.query import StreamingQuery
from penstock.testing import DEADLINE, wait_until
from penstock_torture.harm import kill_a_worker
from query_shapes import QueryShape, rows_given
from session_probe import queries_ended
from underway import listed

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

RUNS = max(1, int(os.environ.get("PENSTOCK_GRID_RUNS", "10")) // 10)
ROWS = 6_000
PER_SECOND = 4_000
MOST_TASKS = 7
"""The session's slots but one."""


@pytest.fixture(autouse=True)
def ended(spark: Any) -> Iterator[None]:
    """No query outlives its test, and slots come back."""
    yield from queries_ended(spark)


def started(spark: Any, shape: QueryShape, folder: Path, rows: int | None, chance: random.Random) -> StreamingQuery:
    """The query with numbers of tasks that chance says, and checkpoints as often as it goes."""
    given = {"rowsPerSecond": PER_SECOND, "numPartitions": 1, **({} if rows is None else {"numRows": rows})}
    rates = [penstock.readStream(spark).format("rate").options(**given).load() for _ in range(shape.sources)]
    sources = [rate.uid(f"rate{place}") for place, rate in enumerate(rates)]
    stream = shape.stream(sources, shape.widths(chance, MOST_TASKS))
    options: dict[str, Any] = {"checkpointLocation": str(folder / "checkpoints"), "checkpointInterval": "50ms"}
    if shape.timeout is not None:
        options |= {"unaligned": True, "alignedCheckpointTimeout": f"{round(shape.timeout * 1000)}ms"}
        options["persistInFlight"] = chance.choice(["checkpoint", "continuous"])
    query: StreamingQuery = stream.writeStream.format("parquet").options(**options).start(str(folder / "output"))
    return query


@pytest.mark.parametrize("seed", range(RUNS))
def test_each_row_once_in_a_query_of_any_shape(spark: Any, tmp_path: Path, seed: int) -> None:
    """0 lost, 0 doubled, and in order where all exchanges are by key; a quarter with other numbers of tasks."""
    shape = QueryShape.of(seed)
    chance = random.Random(seed)
    rows = ROWS
    if shape.rescales:
        query = started(spark, shape, tmp_path, None, chance)
        wait_until(lambda: any(listed(tmp_path, "checkpoints/chk-*/_metadata")), "a checkpoint is complete")
        query.awaitTermination(chance.uniform(0.0, 0.5))
        query.stop(0.0)
        rows = max(ROWS, rows_given(str(tmp_path / "checkpoints")))
    query = started(spark, shape, tmp_path, rows, chance)
    for _ in range(chance.randint(1, 2)):
        if query.awaitTermination(chance.uniform(0.2, 2.0)):
            break
        kill_a_worker(chance)
    assert query.awaitTermination(DEADLINE) is True
    assert shape.faults(tmp_path / "output", rows) == [], shape
