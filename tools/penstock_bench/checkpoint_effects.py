# SPDX-License-Identifier: Apache-2.0
"""Effects of checkpoints of each kind on a query: when rows are visible, the cost of a failure, the rate of rows."""

from __future__ import annotations

import hashlib
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from penstock.api.streaming.query import StreamingQuery
from penstock_bench import catalogue
from penstock_bench.checkpoint_queries import TASKS, WAYS, Batches, Function, busy, pressed, query, until
from penstock_bench.measure import COUNT, ROWS_RATE, SECONDS, SHARE, Outcome, Say
from penstock_bench.page_rows import Row

_SLOW = 10.0
_VISIBLE_SECONDS = 8.0
_FAILURES = 3
_CHECKPOINTS_BETWEEN = 3
_FILL_SECONDS = 5.0
_RATE_REPORTS = 6
_ROUNDS = 4
_HASHES = 24
"""So often a source's rows are hashed, which makes its stage the one that is busy."""
_RANGE = "<qq"


def effects(spark: Any, say: Say) -> list[Outcome]:
    """Rows of the catalogue, each for some ways to take checkpoints."""
    visible, replayed = catalogue.CHECKPOINTS_VISIBLE, catalogue.CHECKPOINTS_REPLAYED
    outcomes = [_told(say, row, _visible(spark, way), SECONDS) for way, row in visible.items()]
    outcomes += [_told(say, row, _replayed(spark, way), COUNT) for way, row in replayed.items()]
    held: list[float] = []
    for rows, first in ((catalogue.CHECKPOINTS_RATE, hashing), (catalogue.CHECKPOINTS_FULL, None)):
        rates: dict[str, list[float]] = {way: [] for way in rows}
        for turn in range(_ROUNDS):
            ways = list(rates.items())
            # The machine may be busier at one time than at another: each way is first, and last, as often.
            for way, found in ways if turn % 2 else reversed(ways):
                reports = _freely(spark, way, first)
                found += [each["stages"][-1]["rowsIn"] / each["batchDuration"] / 1e3 for each in reports]
                if first is not None:
                    held += [100 * each["stages"][0]["backPressured"] for each in reports]
        outcomes += [_told(say, rows[each], tuple(found), ROWS_RATE) for each, found in rates.items()]
    return [*outcomes, _told(say, catalogue.CHECKPOINTS_PRESSED, tuple(held), SHARE)]


def hashing(batches: Batches) -> Batches:
    """A function that costs its stage more than the exchanges after it."""
    for batch in batches:
        for _ in range(_HASHES):
            hashlib.sha256(batch.column(1).buffers()[1])
        yield batch


def _told(say: Say, row: Row, figures: tuple[float, ...], unit: str) -> Outcome:
    say(f"{row.label}: {statistics.median(figures):,.2f} {unit}")
    return Outcome(row, penstock=figures, unit=unit)


def _visible(spark: Any, way: str) -> tuple[float, ...]:
    """The median of the seconds from the making of a row until its file is visible."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        with query(spark, _SLOW, folder=folder, **WAYS[way], checkpointInterval="250ms") as started:
            pressed(started)
            began, completed = time.time(), _completed(started)
            until(started, lambda: time.time() - began > _VISIBLE_SECONDS and _completed(started) > completed + 1)
        waits = []
        for path in Path(folder).glob("part-*"):
            named = path.stat().st_ctime
            if named > began:
                made = pq.read_table(path, columns=["timestamp"])["timestamp"].to_numpy()
                waits.append(named - made.astype("datetime64[us]").astype(np.int64) / 1e6)
    return (float(np.median(np.concatenate(waits))),)


def _replayed(spark: Any, way: str) -> tuple[float, ...]:
    """Rows that were given again after each of some failures, on average."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        flag = Path(folder) / "fail"
        first, last = _noting(folder), busy(_SLOW, _failing(flag))
        with query(spark, first=first, last=last, **WAYS[way], checkpointInterval="50ms") as started:
            for failures in range(_FAILURES):
                _let_run(started)
                flag.touch()
                until(started, lambda failures=failures: _restarts(started) > failures)  # type: ignore[misc]
            _let_run(started)
        return (sum(_given_again(Path(folder) / f"{number}") for number in range(TASKS)) / _FAILURES,)


def _let_run(started: StreamingQuery) -> None:
    """Return some checkpoints and seconds later: the rows in flight have filled up by then."""
    completed, began = _completed(started), time.monotonic()
    until(started, lambda: _completed(started) >= completed + _CHECKPOINTS_BETWEEN)
    until(started, lambda: time.monotonic() - began > _FILL_SECONDS)


def _noting(folder: str) -> Function:
    """A function after the sources that notes which of their values it has seen, each partition in a file."""

    def note(batches: Batches) -> Batches:
        for batch in batches:
            values = batch.column(1)
            first, last = values[0].as_py(), values[-1].as_py()
            with (Path(folder) / f"{first % TASKS}").open("ab") as file:
                file.write(struct.pack(_RANGE, first, last))
            yield batch

    return note


def _failing(flag: Path) -> Callable[[], None]:
    """Raises once for each time that the file is made."""

    def look() -> None:
        if flag.exists():
            flag.unlink(missing_ok=True)
            raise RuntimeError("the bench makes the last operator fail")

    return look


def _given_again(notes: Path) -> int:
    """Rows of a partition, whose values are `TASKS` apart, that came more than once."""
    again, most = 0, -1
    for first, last in struct.iter_unpack(_RANGE, notes.read_bytes()):
        if most >= first:
            again += (min(most, last) - first) // TASKS + 1
        most = max(most, last)
    return again


def _completed(started: StreamingQuery) -> int:
    progress = started.lastProgress
    return 0 if progress is None else int(progress["checkpoints"]["completed"])


def _restarts(started: StreamingQuery) -> int:
    progress = started.lastProgress
    return 0 if progress is None else int(progress["restarts"])


def _freely(spark: Any, way: str, first: Function | None) -> list[dict[str, Any]]:
    """The reports of some seconds, each with a checkpoint."""
    with query(spark, first=first, **WAYS[way], checkpointInterval="1s") as started:
        until(started, lambda: len(_with_checkpoints(started)) >= _RATE_REPORTS)
        return _with_checkpoints(started)[-_RATE_REPORTS:]


def _with_checkpoints(started: StreamingQuery) -> list[dict[str, Any]]:
    return [report for report in started.recentProgress if report["checkpoints"]["completed"] > 1]
