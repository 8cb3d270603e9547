# SPDX-License-Identifier: Apache-2.0
"""One side of `two_trees`: a session of the Penstock that is installed here, and a row of the bench when it is asked.

It uses the public interface and what it has beside it only, so it runs on any checkout of the last versions. A line
on standard input names a row; a line on standard output has its CPU seconds, in all processes of the session, and
those that it took, or those of a row's way.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock_bench.functions import COUNT_DDL, MEAN_DDL, count_rows, group_mean
from penstock_bench.processor import processor_seconds
from penstock_bench.rows import NUMBERS, Dataset, GeneratedSource, write_numbers, write_texts
from penstock_bench.session import bench_session
from penstock_bench.tree_queries import query_runs

_CONSUMERS = 4
_PRODUCERS = 2
_KEYS = 100_000
_MANY = "1000"
_STREAM_ROWS = 60_000_000
_WAIT_SECONDS = 300.0
SLOTS = 10
"""Each stage of a query needs one; Nexmark's have the most."""
SETTINGS = {"spark.penstock.blocking.maxSubpartitions": _MANY}

Run = Callable[[], int]


def main(folder: Path, rows: int, servers: str) -> int:
    """Answer until standard input ends."""
    with bench_session(SLOTS, SETTINGS) as spark:
        runs = _runs(spark, write_numbers(folder / "numbers", rows), write_texts(folder / "texts", rows // 4))
        queries = query_runs(spark, folder / "files", servers)
        _answer([*runs, *queries])
        for line in sys.stdin:
            name = line.strip()
            expected, run = runs.get(name) or (None, queries[name])
            application = spark.sparkContext.applicationId
            before, began = processor_seconds(application), time.perf_counter()
            found = run()
            seconds = time.perf_counter() - began
            if expected is not None and found != expected:
                raise ValueError(f"{name}: {found:,} rows arrived of {expected:,}")
            way = found if expected is None else None
            _answer([processor_seconds(application) - before, seconds if way is None else way])
    return 0


def _runs(spark: Any, numbers: Dataset, texts: Dataset) -> dict[str, tuple[int, Run]]:
    """Each row's runs, and the rows that must arrive."""

    def exchanged(data: Dataset, key: str, mode: Any) -> Run:
        rows = penstock.readParquet(spark, list(data.paths))
        keyed = rows.keyBy(key, numPartitions=_CONSUMERS, mode=mode)
        return lambda: _counted(keyed)

    def made() -> Stream:
        return Stream((SourceStep("generated", NUMBERS, GeneratedSource(numbers.rows), limit=_PRODUCERS),), spark)

    def aggregated() -> int:
        keyed = made().keyBy("k", numPartitions=_CONSUMERS)
        return sum(row.n for row in keyed.agg(n=("*", "count"), x=("x", "mean"), y=("y", "max")).collect())

    def grouped() -> int:
        rows = penstock.readParquet(spark, list(numbers.paths))
        return len(rows.groupBy("k", numPartitions=_CONSUMERS).applyInArrow(group_mean, MEAN_DDL).collect())

    def few() -> int:
        source = SourceStep("generated", NUMBERS, GeneratedSource(1_000), limit=_PRODUCERS)
        return _counted(Stream((source,), spark).keyBy("id", numPartitions=_CONSUMERS))

    total = numbers.rows
    return {
        "exchange, pipelined": (total, exchanged(numbers, "id", "pipelined")),
        "exchange, blocking": (total, exchanged(numbers, "id", "blocking")),
        "exchange, hybrid": (total, exchanged(numbers, "id", "hybrid")),
        "exchange by a string": (texts.rows, exchanged(texts, "key", "pipelined")),
        "1,000 subpartitions, sort-merge": (total, lambda: _counted(made().keyBy("id", mode="blocking"))),
        "1,000 subpartitions, hash": (total, lambda: _counted(made().keyBy("id", mode="blocking_hash"))),
        "aggregation": (total, aggregated),
        "groupBy().applyInArrow": (len(numbers.means), grouped),
        "a thousand rows": (1_000, few),
        "streaming count": (_STREAM_ROWS, lambda: _streamed(spark, "0s")),
        "streaming count, checkpoints": (_STREAM_ROWS, lambda: _streamed(spark, "500ms")),
    }


def _answer(found: list[Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _counted(stream: Any) -> int:
    return int(sum(row.rows for row in stream.mapInArrow(count_rows, COUNT_DDL).collect()))


def _streamed(spark: Any, interval: str) -> int:
    """A query that counts numbers by key, until its sources end; the rows that they have given."""
    numbers = penstock.readStream(spark).format("rate").options(rowsPerSecond=0, numPartitions=_PRODUCERS)
    keyed = (
        numbers.option("numRows", _STREAM_ROWS).load().selectExpr(f"value % {_KEYS} AS k").keyBy("k", numPartitions=2)
    )
    query = keyed.count().writeStream.format("noop").option("checkpointInterval", interval).start()
    if not query.awaitTermination(_WAIT_SECONDS):
        raise TimeoutError(f"the query has not ended after {_WAIT_SECONDS:.0f} s: {query.status['message']}")
    return _STREAM_ROWS


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
