# SPDX-License-Identifier: Apache-2.0
"""Streaming rows of `two_trees`: states and timers in both forms, Nexmark, Kafka, files, and one row's way.

Each is a query over what its sources have, to their end; rows that it gives go nowhere, but for those to Kafka and to
files. A processor of rows does for each row what a user's would: it gets, changes and puts back. As all of
`two_trees` it uses the public interface only, so it runs on any checkout of the last versions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import penstock
from penstock_bench import nexmark
from penstock_bench.latency import row_milliseconds
from penstock_bench.nexmark_events import blocks_of

KEYS = 20_000
ENTRIES = 10
"""Entries of a map, and elements of a list, at most."""
FORMS = {"rows": 100_000, "batches": 4_000_000}
"""The rows of a query with a state, by the form of its processor."""
TIMERS = {"rows": 100_000, "batches": 1_500_000}
EVENTS = 1_000_000
IN, OUT = "in", "out"
MESSAGES = 400_000
FILES, FILE_ROWS = 200, 20_000
_TASKS = 2
_OUT = "k long, n long"
_WAIT_SECONDS = 300.0

Run = Callable[[], Any]


class ValueOfRows(StatefulProcessor):  # type: ignore[misc]
    """A number of each key."""

    def init(self, handle: Any) -> None:
        """Declare it."""
        self.state = handle.getValueState("state", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Count."""
        for _ in rows:
            found = self.state.get()
            self.state.update(((0 if found is None else found[0]) + 1,))
        yield Row(k=key[0], n=self.state.get()[0])

    def close(self) -> None:
        """Nothing is held."""


class ListOfRows(ValueOfRows):
    """The newest values of each key."""

    def init(self, handle: Any) -> None:
        """Declare them."""
        self.state = handle.getListState("state", "v long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Append, and drop the older half of many."""
        for row in rows:
            self.state.appendValue((row.v,))
            values = list(self.state.get())
            if len(values) > ENTRIES:
                self.state.put(values[ENTRIES // 2 :])
        yield Row(k=key[0], n=len(values))


class MapOfRows(ValueOfRows):
    """Some numbers of each key, each by a text."""

    def init(self, handle: Any) -> None:
        """Declare them."""
        self.state = handle.getMapState("state", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Count each."""
        for row in rows:
            own = (row.v % ENTRIES,)
            found = self.state.getValue(own)
            self.state.updateValue(own, ((0 if found is None else found[0]) + 1,))
        yield Row(k=key[0], n=sum(n for (n,) in self.state.values()))


class TimersOfRows(ValueOfRows):
    """A timer for each row."""

    def init(self, handle: Any) -> None:
        """There is no state beside."""
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Register."""
        for row in rows:
            self.handle.registerTimer(row.v)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Give the time."""
        yield Row(k=key[0], n=expiredTimerInfo.getExpiryTimeInMs())


class ValueOfBatches(penstock.BatchProcessor):
    """A number of each key."""

    def init(self, handle: Any) -> None:
        """Declare it."""
        self.state = handle.getValueState("state", "n long")

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
        """Count."""
        n = pc.add(pc.fill_null(self.state.get(keys)["n"], 0), keys.counts())
        self.state.put(keys, {"n": n})
        return pa.RecordBatch.from_arrays([keys.table["k"], n], names=["k", "n"])


class ListOfBatches(penstock.BatchProcessor):
    """The newest values of each key."""

    def init(self, handle: Any) -> None:
        """Declare them."""
        self.state = handle.getListState("state", "v long")

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
        """Append, and forget those of keys that have many."""
        self.state.append(keys, keys.groups, {"v": rows["v"]})
        counts = np.bincount(self.state.get(keys).groups, minlength=len(keys))
        self.state.clear(keys.where(pa.array(counts > ENTRIES)))
        return pa.RecordBatch.from_arrays([keys.table["k"], pa.array(counts)], names=["k", "n"])


class MapOfBatches(penstock.BatchProcessor):
    """Some numbers of each key."""

    def init(self, handle: Any) -> None:
        """Declare them."""
        self.state = handle.getMapState("state", "v long", "n long")

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
        """Count each."""
        pairs = keys.groups * ENTRIES + np.asarray(rows["v"]) % ENTRIES
        pairs, counts = np.unique(pairs, return_counts=True)
        groups, own = pairs // ENTRIES, {"v": pa.array(pairs % ENTRIES)}
        n = pc.add(pc.fill_null(self.state.get(keys, groups, own)["n"], 0), pa.array(counts))
        self.state.put(keys, groups, own, {"n": n})
        return pa.RecordBatch.from_arrays([keys.table["k"], keys.counts()], names=["k", "n"])


class TimersOfBatches(penstock.BatchProcessor):
    """A timer for each row."""

    def init(self, handle: Any) -> None:
        """There is no state beside."""
        self.handle = handle

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> None:
        """Register."""
        self.handle.registerTimers(keys, keys.groups, rows["v"])

    def handleExpiredTimers(self, keys: Any, expiryTimesInMs: pa.Array, timerValues: Any) -> pa.RecordBatch:
        """Give the times."""
        own = keys.table["k"].take(pa.array(keys.groups))
        return pa.RecordBatch.from_arrays([own, expiryTimesInMs], names=["k", "n"])


STATES: dict[str, dict[str, type[Any]]] = {
    "value state": {"rows": ValueOfRows, "batches": ValueOfBatches},
    "list state": {"rows": ListOfRows, "batches": ListOfBatches},
    "map state": {"rows": MapOfRows, "batches": MapOfBatches},
    "timers": {"rows": TimersOfRows, "batches": TimersOfBatches},
}


def query_runs(spark: Any, folder: Path, servers: str) -> dict[str, Run]:
    """Each row's run; it raises where its query does not end well, and gives the seconds of a row's way or None."""
    runs: dict[str, Run] = {}
    for state, processors in STATES.items():
        for form, processor in processors.items():
            rows = (TIMERS if state == "timers" else FORMS)[form]
            runs[f"{state}, {form}"] = _state_run(spark, processor(), form, rows)
    for number in (5, 7):
        runs[f"Nexmark {number}"] = _nexmark_run(spark, number)
    runs["Kafka, reading"] = lambda: _read_kafka(spark, servers)
    runs["Kafka, writing"] = lambda: _write_kafka(spark, servers)
    _write_files(folder)
    runs["files to files"] = lambda: _copy_files(spark, folder)
    for exchanges in (1, 2):
        runs[f"one row's way, {exchanges} exchange(s)"] = lambda n=exchanges: _way(spark, n)  # type: ignore[misc]
    return runs


def feed(servers: str) -> None:
    """Give the topic `IN` its messages."""
    import confluent_kafka as kafka

    producer = kafka.Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 2 * MESSAGES})
    for number in range(MESSAGES):
        producer.produce(IN, str(number), str(number % KEYS), partition=number % 4)
    if producer.flush(60):
        raise TimeoutError("the broker takes no messages")
    producer.close()


def _state_run(spark: Any, processor: Any, form: str, rows: int) -> Run:
    def run() -> None:
        numbers = _numbers(spark, rows).selectExpr(
            f"value * 7919 % {KEYS} AS k", "value AS v", "CAST(value AS TIMESTAMP) AS t"
        )
        keyed = numbers.withWatermark("t", "10 seconds").keyBy("k", numPartitions=_TASKS)
        verb = keyed.transformWithState if form == "rows" else keyed.transformWithStateInArrow
        _to_nowhere(verb(processor, _OUT, "Update", "EventTime"))

    return run


def _nexmark_run(spark: Any, number: int) -> Run:
    query = nexmark.example("queries").QUERIES[number]
    return lambda: _to_nowhere(query(**nexmark.streams(1, blocks_of(EVENTS), spark)))


def _read_kafka(spark: Any, servers: str) -> None:
    reader = penstock.readStream(spark).format("kafka").option("kafka.bootstrap.servers", servers)
    rows = reader.options(subscribe=IN, startingOffsets="earliest", numPartitions=str(_TASKS)).load()
    counts = rows.selectExpr("CAST(key AS STRING) AS key").keyBy("key", numPartitions=_TASKS).count()
    _ended(counts.writeStream.format("noop").trigger(availableNow=True))


def _write_kafka(spark: Any, servers: str) -> None:
    rows = _numbers(spark, MESSAGES).selectExpr("CAST(value AS STRING) AS key", "CAST(value AS STRING) AS value")
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", OUT)
    _ended(writer.option("checkpointInterval", "200ms"))


def _copy_files(spark: Any, folder: Path) -> None:
    rows = penstock.readStream(spark).schema("k long, v long").parquet(str(folder))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as out:
        _ended(rows.writeStream.format("parquet").trigger(availableNow=True), f"{out}/rows")


def _way(spark: Any, exchanges: int) -> float:
    return float(np.median(row_milliseconds(spark, exchanges))) / 1000


def _write_files(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        values = np.arange(number * FILE_ROWS, (number + 1) * FILE_ROWS)
        pq.write_table(pa.table({"k": values % KEYS, "v": values}), folder / f"{number:05}.parquet")


def _numbers(spark: Any, rows: int) -> Any:
    numbers = penstock.readStream(spark).format("rate").options(rowsPerSecond=0, numPartitions=_TASKS)
    return numbers.option("numRows", rows).load()


def _to_nowhere(stream: Any) -> None:
    _ended(stream.writeStream.format("noop").option("checkpointInterval", "1s"))


def _ended(writer: Any, *path: str) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        query = writer.option("checkpointLocation", folder).start(*path)
        if not query.awaitTermination(_WAIT_SECONDS):
            raise TimeoutError(f"the query has not ended after {_WAIT_SECONDS:.0f} s: {query.status['message']}")
