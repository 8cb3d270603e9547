# SPDX-License-Identifier: Apache-2.0
"""A batch processor of many keys in a query, and the same query without it: rows and CPU seconds.

    python -m penstock_bench.processor_keys --keys 1000000 --seconds 10

Two sources make numbers as fast as they go, an exchange by key brings them to two tasks, and a sink drops what these
give. Keys come in no order, and all of them come before one comes again. The processor gets two numbers of each key
of its batch, adds to them, puts them back, and gives a row for each; the second query has a function that gives its
rows as they are in that place. The rate is the median over the seconds of one query, and CPU seconds are those of all
processes of the session, sources and JVM included. A checkpoint comes each `--checkpoints`; `0s`: none does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock.api.keyed_stream import KeyedStream
from penstock.api.stream import Stream
from penstock_bench.processor import processor_seconds
from penstock_bench.recovery import until
from penstock_bench.session import bench_session

SLOTS = 4
TASKS = 2
WARM_ROUNDS = 2
"""So often each key comes before anything counts."""
PATIENCE = 300.0
_STRIDE = 7919
"""Keys of rows that follow each other are so far apart; a prime, so all keys come."""
_ROWS = "k long, n long, amount long"


class Totals(penstock.BatchProcessor):
    """The rows of each key, and the sum of their amounts."""

    def init(self, handle: Any) -> None:
        """Two numbers of each key."""
        self.total = handle.getValueState("total", "n long, amount long")

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
        """Get, add, put."""
        before = self.total.get(keys)
        n = pc.add(pc.fill_null(before["n"], 0), keys.counts())
        amount = pc.add(pc.fill_null(before["amount"], 0), keys.sum(rows["amount"]))
        self.total.put(keys, {"n": n, "amount": amount})
        return pa.RecordBatch.from_arrays([keys.table["k"], n, amount], names=["k", "n", "amount"])


@dataclass(frozen=True, slots=True)
class Figures:
    """Rows in a second, and the CPU seconds of a million rows."""

    name: str
    rows_a_second: float
    processor_seconds: float


def _counted(keyed: KeyedStream) -> Stream:
    return keyed.transformWithStateInArrow(Totals(), _ROWS)


def _passed(keyed: KeyedStream) -> Stream:
    return keyed.mapInArrow(_as_they_are, "k long, amount long")


QUERIES: dict[str, Callable[[KeyedStream], Stream]] = {"processor": _counted, "exchange": _passed}
"""The rest of each query behind the exchange."""


def measured(spark: Any, name: str, keys: int, seconds: int, checkpoints: str) -> Figures:
    """Run one query for so many seconds behind its first ones."""
    numbers = penstock.readStream(spark).format("rate").options(rowsPerSecond=0, numPartitions=TASKS).load()
    rows = numbers.selectExpr(f"(value * {_STRIDE}) % {keys} AS k", "value AS amount")
    stream = QUERIES[name](rows.keyBy("k", numPartitions=TASKS))
    application = spark.sparkContext.applicationId
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.option("checkpointInterval", checkpoints).start()
        try:
            until(query, lambda: sum(map(_rows, query.recentProgress)) >= WARM_ROUNDS * keys, PATIENCE)
            first, before = len(query.recentProgress), processor_seconds(application)
            until(query, lambda: len(query.recentProgress) >= first + seconds, PATIENCE)
            taken = processor_seconds(application) - before
            reports = query.recentProgress[first : first + seconds]
        finally:
            query.stop(PATIENCE)
    rates = [1000 * _rows(report) / report["batchDuration"] for report in reports]
    return Figures(name, statistics.median(rates), 1e6 * taken / sum(map(_rows, reports)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=10, help="of each query, after its first ones; 90 at most")
    parser.add_argument("--checkpoints", default="1s", help="the time from one to the next")
    parser.add_argument("--query", choices=tuple(QUERIES), action="append", help="these alone")
    options = parser.parse_args(arguments)
    with bench_session(SLOTS) as spark:
        for name in options.query or QUERIES:
            found = measured(spark, name, options.keys, options.seconds, options.checkpoints)
            sys.stdout.write(
                f"{name}, {options.keys:,} keys: {found.rows_a_second / 1e6:.2f} M rows/s,"
                f" {found.processor_seconds:.3f} CPU seconds for a million rows\n"
            )
            sys.stdout.flush()
    return 0


def _rows(report: dict[str, Any]) -> int:
    """The rows that the tasks behind the exchange took in the second of a report."""
    return int(report["stages"][1]["rowsIn"])


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    sys.exit(main())
