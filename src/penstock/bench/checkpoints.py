# SPDX-License-Identifier: Apache-2.0
"""`penstock bench checkpoints`: how long a checkpoint takes while a slow operator holds everything back.

Two exchanges between stages of four tasks; the sources give rows as fast as they go, and the last operator is busy
for some microseconds with each row. Checkpoints are asked for one after the other, once the sources stand still most
of the time. Aligned and unaligned ones are measured in queries of their own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

import penstock
from penstock.api.streaming.query import StreamingQuery
from penstock.bench import catalogue
from penstock.bench.measure import MEGABYTES, RATIO, ROWS_RATE, SECONDS, Outcome, Say, WrongAnswerError

TASKS = 4
SLOTS = 3 * TASKS + 1
_PRESSED = 0.8
_PRESSED_REPORTS = 3
_RATE_REPORTS = 8
_WAIT_SECONDS = 300.0
_CHECKPOINT_SECONDS = 600.0
UNALIGNED = "unaligned"

Batches = Iterator[pa.RecordBatch]


def checkpoint_outcomes(spark: Any, repeat: int, say: Say) -> list[Outcome]:
    """All rows of the catalogue's section."""
    kinds = [False, True] if _knows_unaligned() else [False]
    outcomes: list[Outcome] = []
    medians: dict[tuple[float, bool], float] = {}
    for micros, rows in catalogue.CHECKPOINTS_SLOW.items():
        for unaligned in kinds:
            seconds, in_flight = _under_pressure(spark, micros, unaligned, repeat)
            medians[micros, unaligned] = statistics.median(seconds)
            row = rows[unaligned]
            say(f"{row.label}: {medians[micros, unaligned]:.3f} s, {max(in_flight) / 1e6:.1f} MB in flight")
            outcomes.append(Outcome(row, penstock=tuple(seconds), unit=SECONDS))
            if unaligned:
                figures = tuple(bytes_ / 1e6 for bytes_ in in_flight)
                outcomes.append(Outcome(catalogue.CHECKPOINTS_IN_FLIGHT[micros], penstock=figures, unit=MEGABYTES))
    if len(kinds) > 1:
        fast, slow = catalogue.CHECKPOINTS_SLOW
        shorter = medians[fast, False] / medians[fast, True]
        longer = medians[slow, True] / medians[fast, True]
        outcomes.append(Outcome(catalogue.CHECKPOINTS_SHORTER, penstock=(shorter,), unit=RATIO))
        outcomes.append(Outcome(catalogue.CHECKPOINTS_FLAT, penstock=(longer,), unit=RATIO))
    for unaligned in kinds:
        rates = _freely(spark, unaligned)
        row = catalogue.CHECKPOINTS_RATE[unaligned]
        say(f"{row.label}: {statistics.median(rates):.2f} M rows/s")
        outcomes.append(Outcome(row, penstock=tuple(rates), unit=ROWS_RATE))
    return outcomes


def _knows_unaligned() -> bool:
    from penstock.shuffle.settings import StreamingSettings

    return hasattr(StreamingSettings(), UNALIGNED)


def _busy(micros: float) -> Callable[[Batches], Batches]:
    """A function that is busy so long with each row."""

    def busy(batches: Batches) -> Batches:
        for batch in batches:
            end = time.perf_counter() + batch.num_rows * micros / 1e6
            while time.perf_counter() < end:
                pass
            yield batch

    return busy


def _started(spark: Any, micros: float, *, unaligned: bool, interval: str) -> StreamingQuery:
    source = penstock.readStream(spark).format("rate").options(rowsPerSecond=0, numPartitions=TASKS).load()
    middle = source.keyBy("value", numPartitions=TASKS).select("value").rebalance(TASKS)
    last = middle.mapInArrow(_busy(micros), middle.schema) if micros else middle
    writer = last.writeStream.format("noop").option("checkpointInterval", interval)
    writer = writer.option("checkpointTimeout", f"{_CHECKPOINT_SECONDS:g}s")
    if unaligned:
        writer = writer.option(UNALIGNED, True)
    started: StreamingQuery = writer.start()
    return started


def _under_pressure(spark: Any, micros: float, unaligned: bool, repeat: int) -> tuple[list[float], list[float]]:
    """The seconds of each checkpoint, and its bytes in flight."""
    query = _started(spark, micros, unaligned=unaligned, interval="0s")
    try:
        _until(query, lambda: _is_pressed(query.recentProgress[-_PRESSED_REPORTS:]))
        for _ in range(repeat):
            query.checkpoint(_CHECKPOINT_SECONDS)
        reports = query.recentCheckpoints[-repeat:]
    finally:
        query.stop(0.0)
    return [report["seconds"] for report in reports], [report["inFlightBytes"] for report in reports]


def _is_pressed(reports: list[dict[str, Any]]) -> bool:
    return len(reports) == _PRESSED_REPORTS and all(
        report["stages"][0]["backPressured"] >= _PRESSED for report in reports
    )


def _freely(spark: Any, unaligned: bool) -> list[float]:
    """Millions of rows in each second, with a checkpoint each second and nothing that holds the rows back."""
    query = _started(spark, 0.0, unaligned=unaligned, interval="1s")
    try:
        _until(query, lambda: len(_with_checkpoints(query)) >= _RATE_REPORTS)
        found = _with_checkpoints(query)[-_RATE_REPORTS:]
    finally:
        query.stop(0.0)
    return [report["stages"][-1]["rowsIn"] / report["batchDuration"] / 1e3 for report in found]


def _with_checkpoints(query: StreamingQuery) -> list[dict[str, Any]]:
    return [report for report in query.recentProgress if report["checkpoints"]["completed"] > 1]


def _until(query: StreamingQuery, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not holds():
        if not query.isActive or time.monotonic() > deadline:
            raise WrongAnswerError(f"the query does not get there: {query.status['message']}")
        time.sleep(0.05)
