# SPDX-License-Identifier: Apache-2.0
"""The same two sources and two counters in Bytewax and in Structured Streaming: how many rows they count in a second.

Both keep a count for each of as many keys in Python, on this machine, with two sources and two counters, and drop
what they give. Bytewax runs as two processes with a worker each, its sources give lists of rows, and `stateful_map`
counts. Structured Streaming runs `applyInPandasWithState` in micro-batches as fast as they go.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock_bench.measure import WrongAnswerError

PARTITIONS = 2
_WAIT_SECONDS = 900.0
_RESULT = re.compile(r"^counted (\d+) (\S+) (\S+)$", re.MULTILINE)


def has_bytewax() -> bool:
    """Tell whether the extra `bench` is installed."""
    return importlib.util.find_spec("bytewax") is not None


def bytewax_rate(keys: int, rows: int) -> float:
    """Millions of rows in a second, from the first row that a counter gave to the last one."""
    program = str(Path(__file__).with_name("bytewax_counters.py"))
    told = {**os.environ, "BYTEWAX_COUNTERS": f"{keys} {rows}"}
    command = [sys.executable, "-m", "bytewax.testing", f"{program}:flow", "-p", str(PARTITIONS), "-w", "1"]
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=_WAIT_SECONDS, check=True)
    found = [(int(count), float(first), float(last)) for count, first, last in _RESULT.findall(done.stdout)]
    if sum(count for count, _, _ in found) != rows:
        raise WrongAnswerError(f"Bytewax has counted {found}, not {rows} rows: {done.stderr[-500:]}")
    return rows / (max(last for _, _, last in found) - min(first for _, first, _ in found)) / 1e6


def structured_rate(spark: Any, keys: int, rows: int, batches: int) -> float:
    """Millions of rows in a second: the median over some micro-batches of so many rows, without the first one."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", PARTITIONS)
        .load()
        .selectExpr(f"value % {keys} AS k", "value")
    )
    counts = numbers.groupBy("k").applyInPandasWithState(_counted, "k long, n long", "n long", "update", "NoTimeout")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, _shuffled_to(spark, PARTITIONS):
        writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            found = _batches(query, batches)
        finally:
            query.stop()
    return float(statistics.median(report["numInputRows"] / report["batchDuration"] for report in found)) / 1e3


def _counted(key: tuple[int], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """One more for each row of a key."""
    import pandas as pd

    known = state.get[0] if state.exists else 0
    state.update((known + sum(len(frame) for frame in frames),))
    yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]]})


def _batches(query: Any, wanted: int) -> list[Any]:
    """The reports of so many micro-batches after the first."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        found = [report for report in query.recentProgress if report["numInputRows"]][1:]
        if len(found) >= wanted:
            return found
        if not query.isActive or time.monotonic() > deadline:
            raise WrongAnswerError(f"Structured Streaming does not get on: {query.exception()}")
        time.sleep(0.2)


@contextlib.contextmanager
def _shuffled_to(spark: Any, partitions: int) -> Iterator[None]:
    former = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    try:
        yield
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", former)
