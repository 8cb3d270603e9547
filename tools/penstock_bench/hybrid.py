# SPDX-License-Identifier: Apache-2.0
"""Hybrid exchanges beside blocking ones: with memory for everything and for a tenth, and what overlap gives.

`overlap` is a pipeline of three exchanges whose stages wait more than they compute, as for a service they call: the
middle one longest. Blocking, the stages' times add up; hybrid, a stage works on what the one before has given so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

import penstock
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock_bench.cases import CONSUMERS
from penstock_bench.catalogue import MEMORIES, MODE_ROWS, MODES, OVERLAP_MEMORY_ROWS, OVERLAP_ROWS
from penstock_bench.environment import PeakMemory
from penstock_bench.functions import COUNT_DDL, count_rows
from penstock_bench.measure import MEGABYTES, Outcome, Say, WrongAnswerError, timed
from penstock_bench.rows import NUMBERS, NUMBERS_DDL, Dataset, GeneratedSource

_TURNS = 3
"""Turns of the three modes for each repetition: they are short, and what is asked is small differences."""
_OVERLAP_ROWS = 4_000_000
_WAITS = (0.03, 0.1, 0.03)
"""Seconds that the three stages after the source wait for each batch of 65,536 rows."""


def exchange_outcomes(spark: Any, data: Dataset, share: str, repeat: int, say: Say) -> list[Outcome]:
    """The exchange by an integer in three modes, in turns; `share` of `MEMORIES` says how much of it has room."""
    say(f"{', '.join(MODES)}: {data.rows:,} rows, {data.bytes / 1e6:,.0f} MB, {MEMORIES[share]}")
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(_TURNS * repeat + 1):
        for mode in MODES:
            run = _exchange(spark, data, mode)
            seconds[mode].append(timed(run, lambda rows: _check(rows, data.rows)))
        shown = ", ".join(f"{mode} {found[-1]:.2f} s" for mode, found in seconds.items())
        say(f"  {shown}" + ("" if turn else " (not counted)"))
    return [
        Outcome(MODE_ROWS[mode, share], data.rows, data.bytes, tuple(found[1:])) for mode, found in seconds.items()
    ]


def overlap_outcomes(spark: Any, scale: float, repeat: int, say: Say) -> list[Outcome]:
    """Three exchanges with a slow middle stage, blocking and hybrid in turns; the environment's peak memory."""
    rows = max(1000, int(_OVERLAP_ROWS * scale))
    say(f"three exchanges with a slow middle stage, {rows:,} rows")
    modes = tuple(OVERLAP_ROWS)
    seconds: dict[str, list[float]] = {mode: [] for mode in modes}
    peaks: dict[str, int] = dict.fromkeys(modes, 0)
    for turn in range(repeat + 1):
        for mode in modes:
            with PeakMemory(spark.sparkContext.applicationId) as peak:
                began = time.perf_counter()
                _check(_three_exchanges(spark, rows, mode), rows)
                seconds[mode].append(time.perf_counter() - began)
            peaks[mode] = max(peaks[mode], peak.bytes)
        shown = ", ".join(f"{mode} {found[-1]:.2f} s" for mode, found in seconds.items())
        say(f"  {shown}" + ("" if turn else " (not counted)"))
    outcomes = []
    for mode in modes:
        outcomes.append(Outcome(OVERLAP_ROWS[mode], rows, rows * 32, tuple(seconds[mode][1:])))
        memory = (peaks[mode] / 1e6,)
        outcomes.append(Outcome(OVERLAP_MEMORY_ROWS[mode], rows, rows * 32, memory, unit=MEGABYTES))
    return outcomes


def _exchange(spark: Any, data: Dataset, mode: Any) -> Callable[[], int]:
    def run() -> int:
        keyed = penstock.readParquet(spark, list(data.paths)).keyBy("id", numPartitions=CONSUMERS, mode=mode)
        return sum(row.rows for row in keyed.mapInArrow(count_rows, COUNT_DDL).toDF().collect())

    return run


def _three_exchanges(spark: Any, rows: int, mode: Any) -> int:
    source = SourceStep("generated", NUMBERS, GeneratedSource(rows), limit=2, partitions=2)
    stream = Stream((source,), spark)
    for seconds in _WAITS:
        stream = stream.keyBy("id", numPartitions=2, mode=mode).mapInArrow(_waiting(seconds), NUMBERS_DDL)
    return sum(row.rows for row in stream.mapInArrow(count_rows, COUNT_DDL).toDF().collect())


def _waiting(seconds: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(seconds * batch.num_rows / 65536)
            yield batch

    return wait


def _check(found: int, rows: int) -> None:
    if found != rows:
        raise WrongAnswerError(f"{found:,} rows arrived of {rows:,}")
