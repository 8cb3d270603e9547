# SPDX-License-Identifier: Apache-2.0
"""The time that a streaming query stands still after a SIGKILL of one of its tasks, in `local[N]` and on a cluster.

The function after the exchange notes when each of its batches comes. The longest time without one around the kill is
the recovery: it ends with a row of a restarted task, so the restart, the restore and the first rows are all in it.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock.api.streaming.query import StreamingQuery
from penstock_bench.measure import WrongAnswerError
from penstock_bench.workers import worker_pids

CLUSTER = {
    "spark.master": "local-cluster[2,3,1024]",
    "spark.executor.memory": "512m",
    "spark.penstock.environment.scope": "executor",
    "spark.log.level": "OFF",  # executors that end are no news
}
"""Two executors of this host, with an environment process of its own each."""
_RATE = 10_000
_CHECKPOINTS = 3
_WAIT_SECONDS = 120.0


def recovery_seconds(spark: Any) -> float:
    """The longest time without a row after the exchange, around a kill of one task; raises WrongAnswerError."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        numbers = penstock.readStream(spark).format("rate").options(rowsPerSecond=_RATE, numPartitions=2).load()
        counts = numbers.selectExpr("value % 1000 AS k").keyBy("k", numPartitions=2).count()
        writer = counts.mapInArrow(_noting(folder), counts.schema).writeStream.format("noop")
        writer = writer.option("checkpointLocation", f"{folder}/chk").option("checkpointInterval", "1s")
        query = writer.start()
        try:
            until(query, lambda: query.lastProgress is not None and query.lastProgress["batchId"] >= _CHECKPOINTS)
            killed = time.time()
            os.kill(worker_pids()[0], signal.SIGKILL)
            until(query, lambda: _flows_again(query))
        finally:
            query.stop()
        times = np.sort(np.concatenate([np.fromfile(path) for path in Path(folder).glob("*.times")]))
    return float(np.diff(times[times > killed - 1]).max())


def _noting(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that gives what it gets and appends the time of each batch to a file of its process."""

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Path(folder, f"{os.getpid()}.times").open("ab", buffering=0) as times:
            for batch in batches:
                times.write(np.float64(time.time()).tobytes())
                yield batch

    return note


def _flows_again(query: StreamingQuery) -> bool:
    last = query.lastProgress
    return last is not None and last["restarts"] > 0 and last["stages"][1]["running"] > 0 and last["numInputRows"] > 0


def until(query: StreamingQuery, holds: Callable[[], object], seconds: float = _WAIT_SECONDS) -> None:
    """Wait for it; raises WrongAnswerError where the query ends or takes too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        if not query.isActive or time.monotonic() > deadline:
            raise WrongAnswerError(f"the query does not get on: {query.status['message']}")
        time.sleep(0.02)
