# SPDX-License-Identifier: Apache-2.0
"""A query with a large state: how long a checkpoint of it takes, what it holds up, and how soon a new run goes on."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench.recovery import until

_WAIT_SECONDS = 300.0
_STEADY = 3


@dataclass(frozen=True, slots=True)
class StateFigures:
    """`dip` is the share of the rate that a worst second lacks, `restored` seconds to first rows."""

    bytes: int
    seconds: float
    dip: float
    restored: float


def state_figures(counters: Callable[[], Any], keys: int) -> StateFigures:
    """Of a query over so many keys whose rows name one key after the other; `counters` makes its stream."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        query = _started(counters(), folder)
        try:
            until(
                query,
                lambda: sum(report["stages"][1]["rowsIn"] for report in query.recentProgress) > keys,
                _WAIT_SECONDS,
            )
            seconds, dip = _checkpoint(query)
            newest = max(Path(folder).glob("chk-*"))
            size = sum(path.stat().st_size for path in newest.iterdir())
        finally:
            query.stop(_WAIT_SECONDS)
        began = time.monotonic()
        query = _started(counters(), folder)
        try:
            until(query, lambda: _rate(query) > 0, _WAIT_SECONDS)
            return StateFigures(size, seconds, dip, time.monotonic() - began)
        finally:
            query.stop(_WAIT_SECONDS)


def _started(stream: Any, folder: str) -> Any:
    writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
    return writer.option("checkpointInterval", "0s").start()


def _checkpoint(query: Any) -> tuple[float, float]:
    """The seconds of a checkpoint, and the share of the rate that its worst second lacks."""
    _wait_reports(query, _STEADY)
    steady = statistics.median(_rates(query)[-_STEADY:])
    known = _last(query)
    began = time.monotonic()
    query.checkpoint(_WAIT_SECONDS)
    seconds = time.monotonic() - began
    _wait_reports(query, 1)
    during = [report for report in query.recentProgress if report["timestamp"] > known]
    return seconds, max(0.0, 1.0 - min(map(_rate_of, during)) / steady)


def _last(query: Any) -> str:
    return "" if query.lastProgress is None else str(query.lastProgress["timestamp"])


def _wait_reports(query: Any, count: int) -> None:
    """Until there are so many more."""
    known = _last(query)
    until(query, lambda: sum(report["timestamp"] > known for report in query.recentProgress) >= count, _WAIT_SECONDS)


def _rates(query: Any) -> list[float]:
    return [_rate_of(report) for report in query.recentProgress]


def _rate(query: Any) -> float:
    return 0.0 if query.lastProgress is None else _rate_of(query.lastProgress)


def _rate_of(report: Any) -> float:
    return float(report["stages"][1]["rowsIn"] / report["batchDuration"])
