# SPDX-License-Identifier: Apache-2.0
"""Processors of PySpark's documentation, run by PySpark and by Penstock: the same rows, the same programs.

A call has the rows of a key in a micro-batch there, and here those that the task has at hand. So rows are compared by
the newest one of each key, or by their sums. PySpark needs protobuf for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import penstock
from penstock.testing import DEADLINE

pytest.importorskip("google.protobuf", reason="PySpark's transformWithState needs it")
pytestmark = pytest.mark.spark

STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OUTPUT = StructType(
    [StructField("id", StringType()), StructField("count", IntegerType()), StructField("text", StringType())]
)
STATE = StructType([StructField("value", IntegerType(), True)])
Rows = list[tuple[Any, ...]]


class Violations(StatefulProcessor):
    """The example of `GroupedData.transformWithState`: readings above 100, counted."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        self.num_violations_state = handle.getValueState("numViolations", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Handle the rows of a key."""
        new_violations = 0
        exists = self.num_violations_state.exists()
        if exists:
            existing_violations_row = self.num_violations_state.get()
            existing_violations = existing_violations_row[0]
        else:
            existing_violations = 0
        for row in rows:
            if row.temperature is not None and row.temperature > 100:
                new_violations += 1
        updated_violations = new_violations + existing_violations
        self.num_violations_state.update((updated_violations,))
        yield Row(id=key[0], count=updated_violations, text=None)

    def close(self) -> None:
        """Nothing is held."""


class ViolationsInPandas(Violations):
    """The same over frames, as in `GroupedData.transformWithStateInPandas`."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Handle the rows of a key."""
        existing = self.num_violations_state.get()[0] if self.num_violations_state.exists() else 0
        for pdf in rows:
            existing += int(pdf.loc[pdf["temperature"] > 100].count().get("temperature"))
        self.num_violations_state.update((existing,))
        yield pd.DataFrame({"id": key, "count": existing, "text": None})


class Collections(StatefulProcessor):
    """Lists and maps: all of their calls."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        self.readings = handle.getListState("readings", StructType([StructField("t", LongType())]))
        self.seen = handle.getMapState("seen", "t long", "times int, text string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Handle the rows of a key."""
        assert (timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()) == (-1, -1)
        for row in rows:
            assert isinstance(row, Row)
            assert row["temperature"] == row.temperature == row[1]
            self.readings.appendValue((row.temperature,))
            if self.seen.containsKey((row.temperature,)):
                times, text = self.seen.getValue((row.temperature,))
                self.seen.updateValue((row.temperature,), (times + 1, text))
            else:
                self.seen.updateValue((row.temperature,), (1, f"{key[0]}!"))
        assert self.readings.exists()
        assert self.seen.exists()
        values = sorted(value for (value,) in self.readings.get())
        if len(values) > 6:
            self.readings.put([(value,) for value in values[:2]])
            self.readings.appendList([(value,) for value in values[2:]])
        if self.seen.containsKey((0,)):
            self.seen.removeKey((0,))
        entries = sorted((own[0], tuple(value)) for own, value in self.seen.iterator())
        assert [own for own, _ in entries] == sorted(own[0] for own in self.seen.keys())  # noqa: SIM118
        assert len(list(self.seen.values())) == len(entries)
        yield Row(id=key[0], count=len(values), text=f"{values} {entries}")

    def close(self) -> None:
        """Nothing is held."""


class Forgetful(StatefulProcessor):
    """Clears all that it has, each time that it has seen three readings."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        self.count = handle.getValueState("count", "n int")
        self.rows = handle.getListState("rows", "n int")
        self.map = handle.getMapState("map", "n int", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Handle the rows of a key."""
        for _ in rows:
            count = (self.count.get() or (0,))[0] + 1
            self.count.update((count,))
            self.rows.appendValue((count,))
            self.map.updateValue((count,), (count,))
            if count == 3:
                assert len(list(self.rows.get())) == len(list(self.map.keys())) == 3
                for state in (self.count, self.rows, self.map):
                    state.clear()
                    assert not state.exists()
                yield Row(id=key[0], count=3, text="three")

    def close(self) -> None:
        """Nothing is held."""


def readings(spark: Any, folder: Path) -> None:
    """Some files of readings, of keys that some have in common."""
    for number in range(3):
        rows = [(f"k{n % 5}", (n * 37 + number * 11) % 200) for n in range(40)]
        frame = spark.createDataFrame(rows, "id string, temperature long")
        frame.coalesce(1).write.mode("append").parquet(str(folder))


def by_spark(spark: Any, folder: Path, tmp_path: Path, run: Callable[[Any], Any]) -> Rows:
    """The rows that PySpark's own query gives."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORE)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    rows: Rows = []
    source = spark.readStream.schema("id string, temperature long").option("maxFilesPerTrigger", 1)
    writer = run(source.parquet(str(folder)).groupBy("id")).writeStream.outputMode("update")
    writer = writer.foreachBatch(lambda frame, _: rows.extend(tuple(row) for row in frame.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "theirs")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(DEADLINE)
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        spark.conf.unset("spark.sql.shuffle.partitions")
    return rows


def by_penstock(spark: Any, folder: Path, tmp_path: Path, run: Callable[[Any], Any]) -> Rows:
    """The rows that ours gives."""
    source = penstock.readStream(spark).format("parquet").schema("id string, temperature long")
    stream = run(source.option("bounded", True).load(str(folder)).groupBy("id", numPartitions=2))
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "ours"))
    query = writer.start(str(tmp_path / "output"))
    assert query.awaitTermination(DEADLINE)
    return [tuple(row) for row in spark.read.schema(OUTPUT).parquet(str(tmp_path / "output")).collect()]


def newest(rows: Rows) -> Rows:
    """Of each key the row with the greatest count."""
    return sorted({id_: (id_, count, text) for id_, count, text in sorted(rows, key=lambda row: row[1])}.values())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("verb", "processor", "compared"),
    [
        ("transformWithState", Violations, newest),
        ("transformWithStateInPandas", ViolationsInPandas, newest),
        ("transformWithState", Collections, newest),
        ("transformWithState", Forgetful, sorted),
    ],
    ids=["the example", "the example over frames", "lists and maps", "clear"],
)
def test_the_same_program_gives_the_same_rows(
    spark: Any, tmp_path: Path, verb: str, processor: type[StatefulProcessor], compared: Callable[[Rows], Rows]
) -> None:
    """Unchanged, with PySpark's schemas and PySpark's rows."""
    folder = tmp_path / "input"
    readings(spark, folder)

    def run(grouped: Any) -> Any:
        return getattr(grouped, verb)(processor(), OUTPUT, "Update", "None")

    ours = by_penstock(spark, folder, tmp_path, run)
    assert compared(ours) == compared(by_spark(spark, folder, tmp_path, run))
    assert {row[0] for row in ours} == {f"k{n}" for n in range(5)}
