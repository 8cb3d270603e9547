# SPDX-License-Identifier: Apache-2.0
"""The effect of checkpoints on a query's rate: those of a large state one by one, and one each second.

The dip of a checkpoint is the share of the rate that its worst second lacks: seconds are counted from its trigger
until it is complete, and the rate is the median of the seconds before it. Rows are counted after the state.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_bench.noted_rows import NotedRows, NotingSink
from penstock_bench.recovery import until

_WAIT_SECONDS = 300.0
_STEADY_SECONDS = 3.0
_ROUND_SECONDS = 4.0
_SETTLE_SECONDS = 1.0

Counters = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class StateFigures:
    """Of each checkpoint its seconds and its dip, a share; `restored`: seconds until a new run has rows."""

    bytes: int
    seconds: tuple[float, ...]
    dips: tuple[float, ...]
    restored: float


def state_figures(counters: Counters, keys: int, checkpoints: int) -> StateFigures:
    """Of a query over so many keys whose rows name one key after the other; `counters` makes its stream."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as made:
        folder, notes = _folders(made)
        query = _started(counters(), folder, notes)
        try:
            until(query, lambda: _rows(query) > keys, _WAIT_SECONDS)
            spans = [_checkpoint(query) for _ in range(checkpoints)]
            time.sleep(_SETTLE_SECONDS)
            rows = NotedRows(notes)
            dips = [max(0.0, 1.0 - rows.worst_second(*span) / rows.usual_second(*_before(span))) for span in spans]
            newest = max(folder.glob("chk-*"), key=lambda path: path.stat().st_mtime)
            size = sum(path.stat().st_size for path in newest.iterdir())
        finally:
            query.stop(_WAIT_SECONDS)
        began = time.monotonic()
        query = _started(counters(), folder, notes)
        try:
            until(query, lambda: _rows(query) > 0, _WAIT_SECONDS)
            restored = time.monotonic() - began
        finally:
            query.stop(_WAIT_SECONDS)
    return StateFigures(size, tuple(ended - began for began, ended in spans), tuple(dips), restored)


def cost_of_checkpoints(counters: Counters, rounds: int) -> tuple[float, ...]:
    """The share of the rate that a checkpoint each second costs: seconds with and without them in turns."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as made:
        folder, notes = _folders(made)
        query = _started(counters(), folder, notes)
        try:
            until(query, lambda: _rows(query) > 0, _WAIT_SECONDS)
            spans = []
            for _ in range(rounds):
                time.sleep(_SETTLE_SECONDS)
                without = _span(lambda: time.sleep(_ROUND_SECONDS))
                spans.append((without, _span(lambda: _each_second(query))))
        finally:
            query.stop(_WAIT_SECONDS)
        rows = NotedRows(notes)
        return tuple(1.0 - rows.rate(*during) / rows.rate(*without) for without, during in spans)


def _folders(made: str) -> tuple[Path, Path]:
    notes = Path(made) / "rows"
    notes.mkdir()
    return Path(made) / "checkpoints", notes


def _started(stream: Any, folder: Path, notes: Path) -> Any:
    writer = stream.writeStream.format(NotingSink(str(notes))).option("checkpointLocation", str(folder))
    return writer.option("checkpointInterval", "0s").start()


def _rows(query: Any) -> int:
    return sum(int(report["stages"][1]["rowsIn"]) for report in query.recentProgress)


def _checkpoint(query: Any) -> tuple[float, float]:
    """The times at which a checkpoint began and ended, some seconds after the one before."""
    time.sleep(_SETTLE_SECONDS + _STEADY_SECONDS)
    return _span(lambda: query.checkpoint(_WAIT_SECONDS))


def _before(span: tuple[float, float]) -> tuple[float, float]:
    """The steady seconds before it."""
    return span[0] - _STEADY_SECONDS, span[0]


def _each_second(query: Any) -> None:
    began = time.monotonic()
    for number in range(int(_ROUND_SECONDS)):
        query.checkpoint(_WAIT_SECONDS)
        time.sleep(max(0.0, began + number + 1 - time.monotonic()))


def _span(run: Callable[[], object]) -> tuple[float, float]:
    began = time.monotonic()
    run()
    return began, time.monotonic()
