# SPDX-License-Identifier: Apache-2.0
"""The cost of metrics: CPU seconds of an exchange and of a streaming count, with all of them on and with none.

Each side is a driver of its own with a session of its own, because the environments read these settings at their
start. Both run the same work in turns while the other one waits, and are told apart by their processes, JVM included.
On are the endpoints of the driver and the environments, the figures of each channel, and the event log; nobody asks
the endpoints. A share is as in `copies`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock_bench.cases import ExchangeForm, exchange_case
from penstock_bench.catalogue import METRICS_EXCHANGE, METRICS_STREAM, PIPELINED
from penstock_bench.copies import TURNS
from penstock_bench.measure import SHARE, Outcome, Say, WrongAnswerError
from penstock_bench.processor import interval_of, processor_seconds
from penstock_bench.rows import Dataset, write_numbers
from penstock_bench.session import bench_session

ROWS = 60_000_000
"""Of each work: about 3 CPU seconds, of which the clock of processes tells a hundredth."""
_KEYS = 100_000
_WAIT_SECONDS = 300.0


def metrics_outcomes(folder: Path, scale: float, repeat: int, say: Say) -> list[Outcome]:
    """The shares of the exchange and of the streaming count, and the upper ends of their intervals."""
    data = write_numbers(folder / "numbers", max(1, int(ROWS * scale)))
    stream_rows = max(1, int(ROWS * scale))
    prefix = "spark.penstock.observe."
    every = {"metrics": "true", "detailedMetrics": "true", "eventLog": str(folder / "events")}
    outcomes = []
    with ExitStack() as stack:
        sides = {
            True: stack.enter_context(
                bench_driver(data, stream_rows, {prefix + key: text for key, text in every.items()})
            ),
            False: stack.enter_context(bench_driver(data, stream_rows, {})),
        }
        for work, rows, size, labels in (
            ("exchange", data.rows, data.bytes, METRICS_EXCHANGE),
            ("stream", stream_rows, 8 * stream_rows, METRICS_STREAM),
        ):
            shares = side_shares(sides, work, max(TURNS, repeat))
            low, high = interval_of(shares)
            say(f"{labels[0].label}: {np.median(shares):.1f} %, 95 % interval {low:.1f} to {high:.1f} %")
            outcomes.append(Outcome(labels[0], rows, size, tuple(shares), unit=SHARE))
            outcomes.append(Outcome(labels[1], rows, size, (high,), unit=SHARE))
    return outcomes


def side_shares(sides: Mapping[bool, Callable[[str], float]], work: str, turns: int) -> list[float]:
    """By how much the seconds of the one side are more than the median of the other, in percent, by turn."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(turns + 1):
        for side in (True, False) if turn % 2 else (False, True):
            seconds[side].append(sides[side](work))
    without = float(np.median(seconds[False][1:]))  # the first turn is not counted
    return [100 * (one - other) / without for one, other in zip(seconds[True][1:], seconds[False][1:], strict=True)]


@contextmanager
def bench_driver(data: Dataset, stream_rows: int, conf: Mapping[str, str]) -> Iterator[Callable[[str], float]]:
    """A driver in a process of its own, as a function from the name of some work to its CPU seconds."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, data, stream_rows, conf))
    process.start()
    theirs.close()

    def run(work: str) -> float:
        ours.send(work)
        answer: float = ours.recv()
        return answer

    try:
        yield run
    finally:
        ours.close()
        process.join(_WAIT_SECONDS)


def _serve(asked: Connection, data: Dataset, stream_rows: int, conf: Mapping[str, str]) -> None:
    with bench_session(conf=conf) as spark:
        case = exchange_case(spark, PIPELINED, data, ExchangeForm("id"))
        works: dict[str, Callable[[], None]] = {
            "exchange": lambda: case.check(case.penstock(False), False),
            "stream": lambda: _count(spark, stream_rows),
        }
        while True:
            try:
                work = works[asked.recv()]
            except EOFError:
                return
            before = processor_seconds(spark.sparkContext.applicationId)
            work()
            asked.send(processor_seconds(spark.sparkContext.applicationId) - before)


def _count(spark: Any, rows: int) -> None:
    """The count by key of the streaming row, with a checkpoint each second, over so many numbers."""
    given = {"rowsPerSecond": 0, "numPartitions": 2, "numRows": rows}
    numbers = penstock.readStream(spark).format("rate").options(**given).load()
    counts = numbers.selectExpr(f"value % {_KEYS} AS k").keyBy("k", numPartitions=2).count()
    query = counts.writeStream.format("noop").option("checkpointInterval", "1s").start()
    if not query.awaitTermination(_WAIT_SECONDS):
        query.stop()
        raise WrongAnswerError(f"a query over {rows} rows did not end within {_WAIT_SECONDS:.0f} s")
