# SPDX-License-Identifier: Apache-2.0
"""On Spark: what `mostInFlightBytes` of a query says holds, also for a run that begins with rows in flight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.api.streaming.query import StreamingQuery
from penstock.testing import wait_until
from session_probe import queries_ended

pytestmark = pytest.mark.spark

CHECKPOINTS = 4


@pytest.fixture(autouse=True)
def _no_query_is_left(spark: Any) -> Iterator[None]:
    """All queries that a test started have ended when it has."""
    yield from queries_ended(spark)


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """An operator that holds all in front of it back."""
    for batch in batches:
        time.sleep(batch.num_rows * 20e-6)
        yield batch


def started(spark: Any, folder: Path, way: str) -> StreamingQuery:
    """A source as fast as it goes, two exchanges, and a slow operator."""
    source = penstock.readStream(spark).format("rate").options(rowsPerSecond=0, numPartitions=1).load()
    rows = source.keyBy("value", numPartitions=2).select("timestamp", "value").rebalance(2)
    rows = rows.mapInArrow(slow, rows.schema)
    options = {"checkpointLocation": str(folder), "checkpointInterval": "100ms", "unaligned": True}
    query: StreamingQuery = rows.writeStream.format("noop").options(**options, persistInFlight=way).start()
    return query


def held(query: StreamingQuery) -> int:
    """The most bytes in flight of the last checkpoints, once there are some."""
    wait_until(
        lambda: sum(each["inFlightBytes"] > 0 for each in query.recentCheckpoints) >= CHECKPOINTS,
        "rows are in flight of some checkpoints",
    )
    return max(each["inFlightBytes"] for each in query.recentCheckpoints)


@pytest.mark.thorough
def test_no_checkpoint_holds_more_than_a_query_says(spark: Any, tmp_path: Path) -> None:
    """Three runs of one query, which log or write with the checkpoint in turn; the later ones begin with rows."""
    for way in ("continuous", "checkpoint", "continuous"):
        query = started(spark, tmp_path, way)
        most = held(query)
        assert 0 < most <= query.mostInFlightBytes
        query.stop(0.0)
