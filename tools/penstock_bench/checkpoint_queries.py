# SPDX-License-Identifier: Apache-2.0
"""The queries of `python -m penstock_bench checkpoints`, and the moments that it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import penstock
from penstock.api.streaming.query import StreamingQuery
from penstock_bench import recovery
from penstock_bench.catalogue import ALIGNED, CONTINUOUS, UNALIGNED

TASKS = 4
WAYS: dict[str, dict[str, Any]] = {
    ALIGNED: {},
    UNALIGNED: {"unaligned": "true"},
    CONTINUOUS: {"unaligned": "true", "persistInFlight": "continuous"},
}
"""The options of each way to take checkpoints."""
Batches = Iterator[pa.RecordBatch]
Function = Callable[[Batches], Batches]
_PRESSED = 0.8
_PRESSED_REPORTS = 3
_WAIT_SECONDS = 300.0


def busy(micros: float, before: Callable[[], None] | None = None) -> Function:
    """A function that is busy so long with each row, and calls `before` ahead of each batch."""

    def through(batches: Batches) -> Batches:
        for batch in batches:
            if before is not None:
                before()
            end = time.perf_counter() + batch.num_rows * micros / 1e6
            while time.perf_counter() < end:
                pass
            yield batch

    return through


@contextmanager
def query(
    spark: Any,
    micros: float = 0.0,
    *,
    first: Function | None = None,
    last: Function | None = None,
    folder: str = "",
    **options: Any,
) -> Iterator[StreamingQuery]:
    """The query, for a `with` block: sources with `first`, two exchanges, and `last`, or a function that is busy.

    Its rows go into Parquet files below `folder`, or nowhere.
    """
    source = penstock.readStream(spark).format("rate").options(rowsPerSecond=0, numPartitions=TASKS).load()
    rows = source if first is None else source.mapInArrow(first, source.schema)
    rows = rows.keyBy("value", numPartitions=TASKS).select("timestamp", "value").rebalance(TASKS)
    if last is not None or micros:
        rows = rows.mapInArrow(last or busy(micros), rows.schema)
    writer = rows.writeStream.format("parquet" if folder else "noop").option("checkpointTimeout", "600s")
    started: StreamingQuery = writer.options(**options).start(*([folder] if folder else []))
    try:
        yield started
    finally:
        started.stop(0.0)


def pressed(started: StreamingQuery) -> None:
    """Return when the sources stand still most of the time."""
    until(started, lambda: _is_pressed(started.recentProgress[-_PRESSED_REPORTS:]))


def until(started: StreamingQuery, holds: Callable[[], object]) -> None:
    """As of any query, with time for aligned checkpoints under back-pressure."""
    recovery.until(started, holds, _WAIT_SECONDS)


def _is_pressed(reports: list[dict[str, Any]]) -> bool:
    return len(reports) == _PRESSED_REPORTS and all(
        report["stages"][0]["backPressured"] >= _PRESSED for report in reports
    )
