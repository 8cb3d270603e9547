# SPDX-License-Identifier: Apache-2.0
"""The exchange alone: rows that are made once in memory, so that the time grows with nothing but the exchange.

The rate is the slope of time over bytes, by least squares, so that the cost of starting a job is not in it; where so
few rows are asked for that there is no slope, it is that of the largest size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock_bench.cases import CONSUMERS, PRODUCERS
from penstock_bench.catalogue import ENVIRONMENT_ROWS, SLOPE
from penstock_bench.environment import PeakMemory
from penstock_bench.functions import COUNT_DDL, count_rows, reader
from penstock_bench.measure import MEGABYTES, RATE, Outcome, Say, WrongAnswerError, timed
from penstock_bench.rows import NUMBERS, NUMBERS_DDL, GeneratedSource

ROW_BYTES = 32


def rate_outcome(spark: Any, scale: float, repeat: int, say: Say) -> Outcome:
    """Bytes a second, ours over four sizes, Spark's over the two smallest."""
    sizes = [max(1, int(rows * scale)) for rows in (10_000_000, 20_000_000, 40_000_000, 75_000_000)]
    say(f"exchange alone: {', '.join(f'{rows * ROW_BYTES / 1e6:,.0f}' for rows in sizes)} MB")
    ours, theirs = [], []
    generated_exchange(spark, sizes[0])
    spark_exchange(spark, sizes[0] // 10)
    for _ in range(repeat):
        ours.append(_rate(sizes, lambda rows: generated_exchange(spark, rows)))
        say(f"  Penstock {ours[-1]:.2f} GB/s")
    theirs.append(_rate(sizes[:2], lambda rows: spark_exchange(spark, rows)))
    say(f"  Spark {theirs[-1]:.2f} GB/s")
    return Outcome(SLOPE, sizes[-1], sizes[-1] * ROW_BYTES, tuple(ours), tuple(theirs), CONSUMERS, RATE)


def memory_outcomes(spark: Any, scale: float, say: Say) -> list[Outcome]:
    """The environment's own peak at two sizes."""
    outcomes = []
    for row, millions in zip(ENVIRONMENT_ROWS, (5, 40), strict=True):
        rows = int(millions * 1_000_000 * scale) or 1
        with PeakMemory(spark.sparkContext.applicationId) as peak:
            generated_exchange(spark, rows)
        megabytes = peak.bytes / 1e6
        say(f"environment process: {megabytes:.0f} MB of its own at {rows * ROW_BYTES / 1e6:,.0f} MB of rows")
        outcomes.append(Outcome(row, rows, rows * ROW_BYTES, (megabytes,), unit=MEGABYTES))
    return outcomes


def generated_exchange(spark: Any, rows: int) -> float:
    """Seconds of one exchange by key over Penstock."""
    source = SourceStep("generated", NUMBERS, GeneratedSource(rows), limit=PRODUCERS)
    keyed = Stream((source,), spark).keyBy("id", numPartitions=CONSUMERS)
    frame = keyed.mapInArrow(count_rows, COUNT_DDL)
    return timed(lambda: frame.toDF().collect(), _checker(rows))


def spark_exchange(spark: Any, rows: int) -> float:
    """Seconds of the same over Spark's shuffle."""
    frame = spark.range(0, PRODUCERS, 1, PRODUCERS).mapInArrow(reader(GeneratedSource(rows), PRODUCERS), NUMBERS_DDL)
    return timed(
        lambda: frame.repartition(CONSUMERS, "id").mapInArrow(count_rows, COUNT_DDL).collect(), _checker(rows)
    )


def _checker(rows: int) -> Callable[[Any], None]:
    def check(answer: Any) -> None:
        total = sum(row.rows for row in answer)
        if total != rows:
            raise WrongAnswerError(f"{total} rows arrived of {rows}")

    return check


def _rate(sizes: Sequence[int], run: Callable[[int], float]) -> float:
    seconds = [run(rows) for rows in sizes]
    slope = float(np.polyfit([rows * ROW_BYTES for rows in sizes], seconds, 1)[0])
    return 1e-9 / slope if slope > 0 else sizes[-1] * ROW_BYTES / seconds[-1] / 1e9
