# SPDX-License-Identifier: Apache-2.0
"""`penstock_bench alone`: the gaps between the rows of seven tasks while the eighth, which was killed, begins anew.

One source, six mappers and a sink on two executors, with and without the log of rows. Mappers and the sink note when
each of their batches comes. A mapper is killed by SIGKILL; the calm part of a run are the seconds before that, the
other one those from then until its successor has rows, and a little more. The gaps of all survivors are one sample.

Limits: a gap lies between two batches of a task, so one that lasts until the end is not seen. Therefore each survivor
must have a batch after the successor's first.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock
from penstock_bench import catalogue
from penstock_bench.measure import MILLISECONDS, RATIO, Outcome, Say, WrongAnswerError
from penstock_bench.recovery import CLUSTER, until

EXECUTORS = {
    **CLUSTER,
    "spark.master": "local-cluster[2,5,1024]",
    "spark.penstock.job.slotsTimeout": "300s",  # executors are slow to start on a busy machine
}
"""Two slots more than tasks."""
_RATE = 6_000
_MAPPERS = 6
_CALM_SECONDS = 10.0
_MORE_SECONDS = 2.0
_SUFFIX = ".times"

Moments = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gaps:
    """The 99th percentiles of the survivors' gaps in milliseconds, calm and around a kill, and the seconds away."""

    calm: float
    killed: float
    away: float


def lone_outcomes(spark: Any, repeat: int, say: Say) -> list[Outcome]:
    """So many runs without the log and as many with it, in turns; raises WrongAnswerError where one goes wrong."""
    found: dict[str, list[Gaps]] = {way: [] for way in catalogue.LONE_WAYS}
    survivor_gaps(spark, log=False)  # Spark's Python workers start
    for turn in range(repeat):
        for way, gaps in found.items():
            gaps.append(survivor_gaps(spark, log=way == catalogue.LOGGED))
            last = gaps[-1]
            say(
                f"turn {turn}, {way}: 99 % of the gaps are below {last.calm:.0f} ms, and below {last.killed:.0f} ms"
                f" while a task is away, for {last.away:.1f} s: {last.killed / last.calm:.2f} x"
            )
    return [outcome for way, gaps in found.items() for outcome in _outcomes(way, gaps)]


def _outcomes(way: str, gaps: list[Gaps]) -> list[Outcome]:
    times = tuple(each.killed / each.calm for each in gaps)
    return [
        Outcome(catalogue.LONE_CALM[way], penstock=tuple(each.calm for each in gaps), unit=MILLISECONDS),
        Outcome(catalogue.LONE_KILLED[way], penstock=tuple(each.killed for each in gaps), unit=MILLISECONDS),
        Outcome(catalogue.LONE_TIMES[way], penstock=(statistics.median(times),), unit=RATIO),
    ]


def survivor_gaps(spark: Any, *, log: bool) -> Gaps:
    """One run with a kill; raises WrongAnswerError where another task begins anew too, or a survivor stands still."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        query = _start(spark, folder, log=log)
        try:
            until(query, lambda: len(_noted(folder)) == _MAPPERS + 1 and _completed(query) > 0)
            first = set(_noted(folder))
            calm_from = time.monotonic()
            until(query, lambda: time.monotonic() > calm_from + _CALM_SECONDS)
            victim = min(name for name in first if name.startswith("mapper"))
            killed = time.monotonic()
            os.kill(int(victim.removesuffix(_SUFFIX).rpartition("-")[2]), signal.SIGKILL)
            until(query, lambda: len(_noted(folder)) == _MAPPERS + 2)
            back = time.monotonic()
            until(query, lambda: time.monotonic() > back + _MORE_SECONDS and _restarts(query) > 0)
            ended = time.monotonic()
            if _restarts(query) != 1:
                raise WrongAnswerError(f"not one task alone has begun anew: {query.lastProgress['lastRestart']}")
            survivors = [np.fromfile(Path(folder, name)) for name in first - {victim}]
        finally:
            query.stop()
    if any(moments[-1] < back for moments in survivors):
        raise WrongAnswerError("a survivor gave no row after the dead task was back")
    return Gaps(_percentile(survivors, calm_from, killed), _percentile(survivors, killed, ended), back - killed)


def _percentile(survivors: list[Moments], began: float, ended: float) -> float:
    """Of the gaps that end between two moments, in milliseconds."""
    gaps = [np.diff(each)[(each[1:] >= began) & (each[1:] < ended)] for each in survivors]
    return float(np.percentile(np.concatenate(gaps), 99)) * 1e3


def _start(spark: Any, folder: str, *, log: bool) -> Any:
    source = penstock.readStream(spark).format("rate").options(rowsPerSecond=_RATE, numPartitions=1).load()
    mapped = source.rebalance(_MAPPERS).mapInArrow(_noting(folder, "mapper"), "timestamp timestamp, value long")
    sunk = mapped.rebalance(1).mapInArrow(_noting(folder, "sink"), "timestamp timestamp, value long")
    writer = sunk.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoints")
    writer = writer.options(recovery="approximate", consistency="at_least_once", checkpointInterval="1s")
    return (writer.option("persistInFlight", "continuous") if log else writer).start()


def _noting(folder: str, stage: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that gives what it gets and appends the moment of each batch to a file of its process."""

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Path(folder, f"{stage}-{os.getpid()}{_SUFFIX}").open("ab", buffering=0) as times:
            for batch in batches:
                times.write(np.float64(time.monotonic()).tobytes())
                yield batch

    return note


def _noted(folder: str) -> list[str]:
    """The files of the tasks that have noted something."""
    found = []
    for path in Path(folder).glob(f"*{_SUFFIX}"):
        with suppress(FileNotFoundError):
            found += [path.name] if path.stat().st_size else []
    return found


def _completed(query: Any) -> int:
    last = query.lastProgress
    return 0 if last is None else int(last["checkpoints"]["completed"])


def _restarts(query: Any) -> int:
    last = query.lastProgress
    return 0 if last is None else int(last["restarts"])
