# SPDX-License-Identifier: Apache-2.0
"""A row's way to a Python function and to a keyed window, beside a bare ping over sockets in the same seconds.

    python -m penstock_bench.row_ways --seconds 20 --rate 10000

Each query has a source of so many rows in a second, a checkpoint each second, and a sink that writes each row once. A
ping of as many numbers in a second runs beside it, so that both have the same neighbours, checkpoints among them, and
their figures may be compared on a busy machine too. Both give each millisecond what is due, and send it at once
(`bufferTimeout` is 0). All times are those since a row was due:

- `function`: until a function behind a plain exchange gets it;
- `window`: since the end of a window of a tenth of a second, for each of a hundred keys, until a function behind it
  gets its count. So the watermark's way is in it, which comes with the rows.
- `update`: until a function gets the count of a window that the row has changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.stream.rate import RateSource
from penstock_bench.measure import WrongAnswerError
from penstock_bench.ping import PAUSE_SECONDS, Ping
from penstock_bench.session import bench_session

SLOTS = 4
KEYS = 100
WARM_SECONDS = 5
"""Of each query; they do not count."""
PATIENCE = 300.0
SHARES = (50, 90, 99, 99.9)
WAYS = "due long, micros long"
OPTIONS = {"bufferTimeout": "0ms", "checkpointInterval": "1s", "watermarkInterval": "1ms"}

Batches = Iterator[pa.RecordBatch]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ways:
    """The milliseconds of rows at some shares of them, for a query and the ping beside it."""

    name: str
    rows: int
    query: tuple[float, ...]
    ping: tuple[float, ...]

    @property
    def times(self) -> tuple[float, ...]:
        """The query's, in those of the ping."""
        return tuple(one / other for one, other in zip(self.query, self.ping, strict=True))


def to_function(numbers: Stream) -> Stream:
    """A function behind an exchange by key."""
    return numbers.keyBy("value", numPartitions=1).mapInArrow(_since_due, WAYS)


def to_window(numbers: Stream) -> Stream:
    """A function behind windows that are given once."""
    return _windows(numbers).mapInArrow(_since_end, WAYS)


def to_update(numbers: Stream) -> Stream:
    """A function behind windows that are given with each change."""
    return _windows(numbers).mapInArrow(_since_last, WAYS)


QUERIES: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "function": (to_function, "append"),
    "window": (to_window, "append"),
    "update": (to_update, "update"),
}
"""The stream of each, and its output mode."""


def measured(spark: Any, name: str, rate: int, seconds: int) -> Ways:
    """Run one query with a ping beside it."""
    build, mode = QUERIES[name]
    source = RateSource(rate, 1, rate * (WARM_SECONDS + seconds), PAUSE_SECONDS)
    step = SourceStep("rate", source.schema, source, limit=1, partitions=1, streaming=True)
    stream = build(Stream((step,), spark))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        writer = stream.writeStream.format("parquet").outputMode(mode).options(**OPTIONS)
        writer = writer.option("checkpointLocation", f"{folder}/checkpoints")
        with Ping(rate, Path(folder)) as ping:
            query = writer.start(f"{folder}/rows")
            if not query.awaitTermination(PATIENCE):
                query.stop()
                raise TimeoutError(f"{name}: the query has not ended: {query.status['message']}")
        table = pq.read_table(f"{folder}/rows")
        due, ways = table["due"].to_numpy() * 1000, table["micros"].to_numpy() / 1e3
        return compared(name, due, ways, *ping.ways(), WARM_SECONDS)


def compared(name: str, due: Times, ways: Any, ping_due: Times, ping_ways: Any, warm: float) -> Ways:
    """The shares of both in the seconds that they have in common, without the first ones of the query."""
    if not len(due):
        raise WrongAnswerError(f"{name}: no row has arrived")
    first, last = int(due.min() + warm * 1e9), int(due.max())
    counted, beside = ways[due >= first], ping_ways[(ping_due >= first) & (ping_due <= last)]
    if not len(counted) or not len(beside):
        raise WrongAnswerError(
            f"{name}: {len(counted)} rows and {len(beside)} numbers were due after the first seconds"
        )
    found = (tuple(float(each) for each in np.percentile(of, SHARES)) for of in (counted, beside))
    return Ways(name, len(counted), *found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=20, help="of each query, after the first ones")
    parser.add_argument("--rate", type=int, default=10_000, help="rows in a second")
    parser.add_argument("--query", choices=tuple(QUERIES), action="append", help="these alone")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    with bench_session(SLOTS) as spark:
        for name in options.query or QUERIES:
            ways = measured(spark, name, options.rate, options.seconds)
            sys.stdout.write(_line(ways, as_json=options.json))
            sys.stdout.flush()
    return 0


def _line(ways: Ways, *, as_json: bool) -> str:
    if as_json:
        shares = [str(share) for share in SHARES]
        found = {
            "query": dict(zip(shares, ways.query, strict=True)),
            "ping": dict(zip(shares, ways.ping, strict=True)),
        }
        return json.dumps({"name": ways.name, "rows": ways.rows, **found}) + "\n"
    cells = [
        f"{share} %: {one:.2f} ms (ping {other:.2f} ms, {times:.1f} times)"
        for share, one, other, times in zip(SHARES, ways.query, ways.ping, ways.times, strict=True)
    ]
    return f"{ways.name}, {ways.rows:,} rows: {'; '.join(cells)}\n"


def _windows(numbers: Stream) -> Stream:
    timed = numbers.selectExpr("timestamp", f"value % {KEYS} AS k").withWatermark("timestamp", "0 seconds")
    by_window = timed.groupBy("k", penstock.window("timestamp", "100 milliseconds"), numPartitions=1)
    return by_window.agg(last=("timestamp", "max"), n=("*", "count"))


def _since_due(batches: Batches) -> Batches:
    for batch in batches:
        yield _ways(batch.column(0))


def _since_end(batches: Batches) -> Batches:
    for batch in batches:
        yield _ways(batch.column("window").field("end"))


def _since_last(batches: Batches) -> Batches:
    for batch in batches:
        yield _ways(batch.column("last"))


def _ways(due: pa.Array) -> pa.RecordBatch:
    """The microseconds since 1970 at which rows were due, and those since then."""
    moments = np.frombuffer(due.buffers()[1], np.int64)[due.offset : due.offset + len(due)]
    micros = time.time_ns() // 1000 - moments
    return pa.RecordBatch.from_arrays([pa.array(moments), pa.array(micros)], names=["due", "micros"])


if __name__ == "__main__":
    sys.exit(main())
