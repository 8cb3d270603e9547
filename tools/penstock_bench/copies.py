# SPDX-License-Identifier: Apache-2.0
"""The cost of copying rows that somebody holds after a function: CPU seconds with and without the copy.

The function makes all of its columns anew, so that all are copied and nothing tells that they need not be. Both sides
run the same job in one session in turns; the other side's tasks give the function's own memory instead. Counted is
what all processes of the session took, JVM included. A share is a turn's difference by the median without copies; the
interval is that of the median, by drawing from the turns again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.operators.loans import Loan
from penstock_bench.cases import CONSUMERS, PRODUCERS
from penstock_bench.catalogue import COPY_AGGREGATED, COPY_STORED
from penstock_bench.functions import COUNT_DDL, Batches, count_rows
from penstock_bench.measure import SHARE, Outcome, Say, WrongAnswerError
from penstock_bench.page_rows import Row
from penstock_bench.processor import interval_of, processor_seconds
from penstock_bench.rows import NUMBERS, NUMBERS_DDL, GeneratedSource

TURNS = 20
ROWS = 20_000_000
_ROW_BYTES = 32


@dataclass(frozen=True, slots=True)
class MadeAnew:
    """Gives each row as it came, in columns of new arrays; `copied` says whether those who hold rows copy them."""

    copied: bool

    def __call__(self, batches: Batches) -> Batches:
        """The same rows."""
        with nullcontext() if self.copied else patch.object(Loan, "own", _as_it_is):
            for batch in batches:
                yield pa.RecordBatch.from_arrays([_anew(column) for column in batch.columns], schema=NUMBERS)


def copy_outcomes(spark: Any, scale: float, repeat: int, say: Say) -> list[Outcome]:
    """The shares of a blocking exchange and of an aggregation, and the upper ends of their intervals."""
    rows = max(1, int(ROWS * scale))
    turns = max(TURNS, repeat)
    jobs: tuple[tuple[tuple[Row, Row], Callable[[Stream], int]], ...] = (
        (COPY_STORED, _exchanged),
        (COPY_AGGREGATED, _aggregated),
    )
    outcomes = []
    for labels, job in jobs:
        shares, interval = _shares(spark, lambda copied, job=job: _run(spark, rows, copied, job), turns)  # type: ignore[misc]
        say(f"{labels[0].label}: {np.median(shares):.1f} %, 95 % interval {interval[0]:.1f} to {interval[1]:.1f} %")
        for row, figures in zip(labels, (tuple(shares), interval[1:]), strict=True):
            outcomes.append(Outcome(row, rows, rows * _ROW_BYTES, figures, unit=SHARE))
    return outcomes


def _shares(spark: Any, run: Callable[[bool], None], turns: int) -> tuple[list[float], tuple[float, float]]:
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(turns + 1):
        for copied in (True, False) if turn % 2 else (False, True):
            before = processor_seconds(spark.sparkContext.applicationId)
            run(copied)
            seconds[copied].append(processor_seconds(spark.sparkContext.applicationId) - before)
    without = float(np.median(seconds[False][1:]))  # the first turn is not counted
    pairs = zip(seconds[True][1:], seconds[False][1:], strict=True)
    shares = [100 * (one - other) / without for one, other in pairs]
    return shares, interval_of(shares)


def _run(spark: Any, rows: int, copied: bool, job: Callable[[Stream], int]) -> None:
    source = SourceStep("generated", NUMBERS, GeneratedSource(rows), limit=PRODUCERS)
    found = job(Stream((source,), spark).mapInArrow(MadeAnew(copied), NUMBERS_DDL))
    if found != rows:
        raise WrongAnswerError(f"{found} rows arrived of {rows}")


def _exchanged(stream: Stream) -> int:
    keyed = stream.keyBy("id", numPartitions=CONSUMERS, mode="blocking")
    return sum(row.rows for row in keyed.mapInArrow(count_rows, COUNT_DDL).collect())


def _aggregated(stream: Stream) -> int:
    keyed = stream.keyBy("k", numPartitions=CONSUMERS)
    return sum(row.n for row in keyed.agg(n=("*", "count"), x=("x", "mean"), y=("y", "max")).collect())


def _as_it_is(_: Loan, batch: pa.RecordBatch, *_read: object) -> pa.RecordBatch:
    return batch


def _anew(column: pa.Array) -> pa.Array:
    values = np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8) + 0
    return pa.Array.from_buffers(column.type, len(column), [None, pa.py_buffer(values)])
