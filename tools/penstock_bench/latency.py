# SPDX-License-Identifier: Apache-2.0
"""The time of one row through one and two exchanges, from the function that gives it to the one that gets it.

A source gives a row, waits, gives the next one: nothing else is under way, so what is measured is wake-ups, the flush
time-out and the hops between processes, not queues. All processes are on one host and read one monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock_bench.catalogue import LATENCY_ROWS
from penstock_bench.measure import MILLISECONDS, Outcome, Say, WrongAnswerError

FLUSH_TIMEOUT = "1ms"
"""The setting of a user who wants low latency; with the default a row waits for up to a tenth of a second."""
_ROWS = 400
_WARM_ROWS = 100
_PAUSE_SECONDS = 0.005

_NUMBER = pa.schema([("id", pa.int64()), ("given", pa.int64())])
_NUMBER_DDL = "id long, given long"
_LATENCY_DDL = "id long, nanoseconds long"
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class PacedSource:
    """One row at a time, each with the time at which it was given; picklable."""

    rows: int
    pause: float = _PAUSE_SECONDS

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """The first subtask's rows; the others have none."""
        for number in range(self.rows if subtask == 0 else 0):
            time.sleep(self.pause)
            yield _row(number, time.monotonic_ns(), _NUMBER)


def latency_outcomes(spark: Any, say: Say) -> list[Outcome]:
    """The median and the 99th percentile of each row's way, in milliseconds, for each number of exchanges."""
    outcomes = []
    for exchanges, (median, tail) in LATENCY_ROWS.items():
        milliseconds = row_milliseconds(spark, exchanges)
        figures = [float(np.percentile(milliseconds, share)) for share in (50, 99)]
        say(f"one row through {exchanges} exchange(s): median {figures[0]:.2f} ms, 99 % {figures[1]:.2f} ms")
        for row, figure in zip((median, tail), figures, strict=True):
            outcomes.append(Outcome(row, _ROWS, 0, (figure,), unit=MILLISECONDS))
    return outcomes


def row_milliseconds(spark: Any, exchanges: int) -> np.ndarray[Any, Any]:
    """The way of each row, without those of the first moments."""
    source = SourceStep("paced", _NUMBER, PacedSource(_WARM_ROWS + _ROWS), limit=1, partitions=1)
    stream = Stream((source,), spark)
    for _ in range(exchanges - 1):
        stream = stream.keyBy("id", numPartitions=1, mode="pipelined").mapInArrow(_pass_on, _NUMBER_DDL)
    stream = stream.keyBy("id", numPartitions=1, mode="pipelined").mapInArrow(_clocked, _LATENCY_DDL)
    found = {row.id: row.nanoseconds for row in stream.toDF().collect()}
    if sorted(found) != list(range(_WARM_ROWS + _ROWS)):
        raise WrongAnswerError(f"{len(found)} rows arrived of {_WARM_ROWS + _ROWS}")
    return np.array([found[number] for number in range(_WARM_ROWS, _WARM_ROWS + _ROWS)]) / 1e6


def _pass_on(batches: Batches) -> Batches:
    yield from batches


def _clocked(batches: Batches) -> Batches:
    for batch in batches:
        now = time.monotonic_ns()
        for number, given in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            yield _row(number, now - given, pa.schema([("id", pa.int64()), ("nanoseconds", pa.int64())]))


def _row(first: int, second: int, schema: pa.Schema) -> pa.RecordBatch:
    values = (np.array([value], np.int64) for value in (first, second))
    columns = [pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(value)]) for value in values]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
