# SPDX-License-Identifier: Apache-2.0
"""Blocking exchanges to many subpartitions: ranges against few, sort-merge against hash, twice the data.

The rows are made in memory, two producers write, eight tasks read. Every figure is of a whole job in a warm session.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.machine.memory import machine_memory
from penstock.spark.runtime import SparkRuntime
from penstock_bench import catalogue
from penstock_bench.cases import PRODUCERS
from penstock_bench.environment import PeakMemory
from penstock_bench.functions import COUNT_DDL, count_rows
from penstock_bench.measure import COUNT, MEGABYTES, RATIO, SECONDS, Outcome, Say, WrongAnswerError
from penstock_bench.page_rows import Row
from penstock_bench.rows import NUMBERS, GeneratedSource
from penstock_bench.workers import WorkerFigures, WorkerWatch

ROW_BYTES = 32
MANY, FEW = 1_000, 8
READERS = 8
_ROWS = 31_250_000
_MORE = 1.1
"""Stored bytes are more than the rows', and the target should still give as many readers as meant."""


@dataclass(frozen=True, slots=True)
class Wide:
    """One run of one width and mode."""

    seconds: float
    workers: WorkerFigures
    stored: float
    """Bytes on disk over bytes of rows."""


def width_outcomes(spark: Any, scale: float, repeat: int, say: Say) -> list[Outcome]:
    """The rows of the table about blocking exchanges."""
    rows = max(MANY, int(_ROWS * scale))
    say(f"blocking, {rows * ROW_BYTES / 1e6:,.0f} MB to {FEW} and to {MANY:,} subpartitions, {READERS} readers")
    contenders = {"few": (FEW, "blocking"), "many": (MANY, "blocking"), "hash": (MANY, "blocking_hash")}
    runs: dict[str, list[Wide]] = {name: [] for name in (*contenders, "twice")}
    for turn in range(repeat + 1):
        for name, (subpartitions, mode) in contenders.items():
            runs[name].append(run_wide(spark, rows, subpartitions, mode))
        runs["twice"].append(run_wide(spark, 2 * rows, MANY, "blocking"))
        shown = ", ".join(f"{name} {found[-1].seconds:.2f} s" for name, found in runs.items())
        say(f"  {shown}" + ("" if turn else " (not counted)"))
    return list(_outcomes({name: found[1:] for name, found in runs.items()}, rows))


def little_memory_outcomes(spark: Any, scale: float, say: Say) -> list[Outcome]:
    """Twice the data to many subpartitions, in a session whose environment has little network memory."""
    rows = max(MANY, int(2 * _ROWS * scale))
    memory = SparkRuntime.of(spark).settings().network.memory_on(machine_memory())
    for mode in ("blocking", "blocking_hash"):  # so that the workers are there, and what they import
        run_wide(spark, rows // 20, FEW, mode)
    with PeakMemory(spark.sparkContext.applicationId) as peak:
        run = run_wide(spark, rows, MANY, "blocking")
    megabytes = run.workers.bytes / 1e6
    held = f"{megabytes:.0f} MB in tasks, {peak.bytes / 1e6:.0f} MB in the environment"
    say(f"with {memory >> 20} MB of network memory: {run.seconds:.2f} s, {held}")
    size = rows * ROW_BYTES
    return [
        Outcome(catalogue.LITTLE_MEMORY, rows, size, (run.seconds,)),
        Outcome(catalogue.LITTLE_MEMORY_TASKS, rows, size, (megabytes,), unit=MEGABYTES),
    ]


def run_wide(spark: Any, rows: int, subpartitions: int, mode: Any) -> Wide:
    """One job: made in memory, keyed to so many subpartitions, counted by eight readers of ranges."""
    source = SourceStep("generated", NUMBERS, GeneratedSource(rows), limit=PRODUCERS)
    counted = Stream((source,), spark).keyBy("id", mode=mode).mapInArrow(count_rows, COUNT_DDL)
    runtime = SparkRuntime.of(spark)
    settings = runtime.settings()
    target = int(rows * ROW_BYTES * _MORE / READERS)
    settings = replace(
        settings, blocking=replace(settings.blocking, max_subpartitions=subpartitions, target_bytes=target)
    )
    plan = counted.plan(settings, runtime.total_slots(), keep=False)
    gc.collect()
    began = time.perf_counter()
    with WorkerWatch() as watch:
        result = runtime.run(lambda: plan.parts, settings)
    seconds = time.perf_counter() - began
    written = result.metrics[0]
    read = result.metrics[1]["rows_in"]
    if read != rows:
        raise WrongAnswerError(f"{read:,.0f} rows arrived of {rows:,}")
    return Wide(seconds, watch.figures, written.get("service.bytes_stored", 0.0) / written["bytes_out"])


def _outcomes(runs: dict[str, list[Wide]], rows: int) -> Iterator[Outcome]:
    def outcome(row: Row, kind: str, unit: str, figure: Callable[[Wide], float]) -> Outcome:
        count = 2 * rows if kind == "twice" else rows
        return Outcome(row, count, count * ROW_BYTES, tuple(figure(run) for run in runs[kind]), unit=unit)

    seconds = {
        "few": catalogue.WIDE_FEW,
        "many": catalogue.WIDE_MANY,
        "twice": catalogue.WIDE_TWICE,
        "hash": catalogue.WIDE_HASH,
    }
    memory = {
        "many": catalogue.WIDE_MANY_MEMORY,
        "twice": catalogue.WIDE_TWICE_MEMORY,
        "hash": catalogue.WIDE_HASH_MEMORY,
    }
    files = {"many": catalogue.WIDE_MANY_FILES, "hash": catalogue.WIDE_HASH_FILES}
    writes = {"many": catalogue.WIDE_MANY_WRITES, "hash": catalogue.WIDE_HASH_WRITES}
    yield from (outcome(row, kind, SECONDS, lambda run: run.seconds) for kind, row in seconds.items())
    yield from (outcome(row, kind, MEGABYTES, lambda run: run.workers.bytes / 1e6) for kind, row in memory.items())
    yield from (outcome(row, kind, COUNT, lambda run: run.workers.files) for kind, row in files.items())
    yield from (outcome(row, kind, COUNT, lambda run: run.workers.writes) for kind, row in writes.items())
    yield outcome(catalogue.WIDE_STORED, "many", RATIO, lambda run: run.stored)
