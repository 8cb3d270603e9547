# SPDX-License-Identifier: Apache-2.0
"""`penstock_bench streaming`: rows in a second, what checkpoints cost, a row's way, and how long a recovery takes.

Rates are out of the reports of the query itself, one a second; a row's way is measured by the clock of one host.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.api.streaming.query import StreamingQuery
from penstock_bench import catalogue
from penstock_bench.measure import (
    MEGABYTES,
    MILLISECONDS,
    RATIO,
    ROWS_RATE,
    SECONDS,
    SHARE,
    Outcome,
    Say,
    WrongAnswerError,
)
from penstock_bench.page_rows import Row
from penstock_bench.recovery import recovery_seconds, until
from penstock_bench.streaming_rivals import bytewax_rate, has_bytewax, structured_rate
from penstock_bench.streaming_state import cost_of_checkpoints, state_figures

SLOTS = 6
_WARM_REPORTS = 4
_REPORTS = 10
_KEYS = 100_000
_MANY_KEYS = 10_000_000
_CHECKPOINTS = 9
"""Of the large state."""
_TURNS = 6
_RATE = 10_000
_BYTEWAX_ROWS = 1_000_000
_SPARK_ROWS = 4_000_000
"""Of one micro-batch: its cost is by key more than by row, so that fewer would be unfair."""
_SPARK_BATCHES = 1
_WAIT_SECONDS = 120.0

Batches = Iterator[pa.RecordBatch]


def streaming_outcomes(spark: Any, scale: float, repeat: int, say: Say) -> list[Outcome]:
    """All rows of the catalogue's section; `scale` is times the usual seconds."""
    reports = max(3, round(_REPORTS * scale))
    outcomes = []
    for interval, row in (("0s", catalogue.STREAM_RATE), ("1s", catalogue.STREAM_RATE_CHECKPOINTS)):
        rates, checkpoints = _rates(spark, interval, reports)
        outcome = Outcome(row, penstock=tuple(rates), unit=ROWS_RATE)
        say(f"{row.label}: {outcome.penstock_median:.2f} M rows/s")
        if checkpoints:
            outcomes.append(_beside_spark(spark, outcome, round(_SPARK_ROWS * scale), say))
            outcomes.append(Outcome(catalogue.STREAM_CHECKPOINT, penstock=tuple(checkpoints)))
        else:
            outcomes += [outcome, *_beside_bytewax(outcome.penstock_median, round(_BYTEWAX_ROWS * scale), say)]
    outcomes.append(_cost(spark, scale, say))
    milliseconds = _latencies(spark, reports)
    for share, row in ((50, catalogue.STREAM_LATENCY), (99, catalogue.STREAM_LATENCY_TAIL)):
        figure = float(np.percentile(milliseconds, share))
        say(f"{row.label}: {figure:.2f} ms")
        outcomes.append(Outcome(row, len(milliseconds), penstock=(figure,), unit=MILLISECONDS))
    outcomes.append(recovery_outcome(spark, catalogue.STREAM_RECOVERY, repeat, say))
    return [*outcomes, *_large_state(spark, scale, say)]


def recovery_outcome(spark: Any, row: Row, repeat: int, say: Say) -> Outcome:
    """The seconds of so many recoveries."""
    found = tuple(recovery_seconds(spark) for _ in range(repeat))
    say(f"{row.label}: {statistics.median(found):.2f} s")
    return Outcome(row, penstock=found, unit=SECONDS)


def _large_state(spark: Any, scale: float, say: Say) -> list[Outcome]:
    checkpoints = max(3, round(_CHECKPOINTS * scale))
    figures = state_figures(lambda: _counters(spark, keys=_MANY_KEYS), _MANY_KEYS, checkpoints)
    seconds, dips = figures.seconds, tuple(100 * dip for dip in figures.dips)
    say(
        f"{_MANY_KEYS:,} keys: {figures.bytes / 1e6:.0f} MB in {statistics.median(seconds):.2f} s,"
        f" dip {statistics.median(dips):.0f} % ({min(dips):.0f} to {max(dips):.0f}),"
        f" a new run has rows after {figures.restored:.2f} s"
    )
    return [
        Outcome(catalogue.STREAM_STATE_SIZE, penstock=(figures.bytes / 1e6,), unit=MEGABYTES),
        Outcome(catalogue.STREAM_STATE_SECONDS, penstock=seconds),
        Outcome(catalogue.STREAM_STATE_DIP, penstock=dips, unit=SHARE),
        Outcome(catalogue.STREAM_STATE_RESTORED, penstock=(figures.restored,)),
    ]


def _cost(spark: Any, scale: float, say: Say) -> Outcome:
    """The share of the rate that a checkpoint each second costs."""
    turns = max(3, round(_TURNS * scale))
    shares = tuple(100 * share for share in cost_of_checkpoints(lambda: _counters(spark), turns))
    outcome = Outcome(catalogue.STREAM_CHECKPOINT_COST, penstock=shares, unit=SHARE)
    say(f"{outcome.row.label}: {outcome.penstock_median:.1f} % ({min(shares):.1f} to {max(shares):.1f})")
    return outcome


def _beside_spark(spark: Any, ours: Outcome, rows: int, say: Say) -> Outcome:
    """With the rate of the same pipeline in Structured Streaming beside it."""
    rate = structured_rate(spark, _KEYS, rows, _SPARK_BATCHES)
    found = replace(ours, spark=(rate,))
    say(f"the same in Structured Streaming: {rate:.3f} M rows/s, {found.ratio:.0f} times less")
    return found


def _beside_bytewax(ours: float, rows: int, say: Say) -> list[Outcome]:
    """The rate of the same pipeline in Bytewax, where that is installed, and how many times it Penstock's is."""
    if not has_bytewax():
        say("Bytewax is not installed (the extra `bench`): its row is left out")
        return []
    rate = bytewax_rate(_KEYS, rows)
    say(f"{catalogue.STREAM_BYTEWAX.label}: {rate:.3f} M rows/s, {ours / rate:.0f} times less")
    return [
        Outcome(catalogue.STREAM_BYTEWAX, rows, penstock=(rate,), unit=ROWS_RATE),
        Outcome(catalogue.STREAM_BYTEWAX_TIMES, penstock=(ours / rate,), unit=RATIO),
    ]


def _counters(spark: Any, rate: int = 0, keys: int = _KEYS) -> Any:
    numbers = penstock.readStream(spark).format("rate").options(rowsPerSecond=rate, numPartitions=2).load()
    return numbers.selectExpr(f"value % {keys} AS k").keyBy("k", numPartitions=2).count()


def _rates(spark: Any, interval: str, reports: int) -> tuple[list[float], list[float]]:
    """Millions of rows in each second after the first ones, and the seconds of each one's last checkpoint."""
    query = _counters(spark).writeStream.format("noop").option("checkpointInterval", interval).start()
    try:
        # A first query waits for Spark's Python workers to start.
        until(query, lambda: len(_flowing(query)) >= _WARM_REPORTS + reports)
        found = _flowing(query)[-reports:]
    finally:
        query.stop()
    rates = [report["stages"][1]["rowsIn"] / report["batchDuration"] / 1e3 for report in found]
    return rates, [report["checkpoints"]["lastSeconds"] for report in found if report["checkpoints"]["completed"]]


def _flowing(query: StreamingQuery) -> list[dict[str, Any]]:
    """The reports from the first one with rows on."""
    found = query.recentProgress
    first = next((number for number, report in enumerate(found) if report["numInputRows"]), len(found))
    return found[first:]


def _latencies(spark: Any, reports: int) -> np.ndarray[Any, Any]:
    """The milliseconds of each row's way, without those of the first seconds."""
    numbers = penstock.readStream(spark).format("rate").options(rowsPerSecond=_RATE, numPartitions=1)
    timed = numbers.option("numRows", _RATE * (reports + _WARM_REPORTS)).load().keyBy("value", numPartitions=1)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        writer = timed.mapInArrow(_clocked, "value long, micros long").writeStream.format("parquet")
        query = writer.option("bufferTimeout", "1ms").option("checkpointInterval", "1s").start(folder)
        query.awaitTermination(_WAIT_SECONDS)
        table = pq.read_table(folder)
    behind = table["value"].to_numpy() >= _RATE * _WARM_REPORTS
    if not behind.any():
        raise WrongAnswerError("no row has arrived")
    found: np.ndarray[Any, Any] = table["micros"].to_numpy()[behind] / 1e3
    return found


def _clocked(batches: Batches) -> Batches:
    """Each row with the time since it was due."""
    import numpy as np
    import pyarrow as pa

    for batch in batches:
        due = batch.column(0).cast(pa.int64()).to_numpy()
        micros = pa.array(int(time.time() * 1e6) - np.asarray(due))
        yield pa.record_batch([batch.column(1), micros], names=["value", "micros"])
