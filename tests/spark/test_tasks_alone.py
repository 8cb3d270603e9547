# SPDX-License-Identifier: Apache-2.0
"""Tasks that begin anew alone on Spark: the others go on, and the loss that is reported is the one that is there."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from effort import with_all
from penstock.errors import PlanError, SettingError
from penstock.testing import wait_until
from session_probe import queries_ended

pytestmark = pytest.mark.spark

RATE = 6_000
KEYS = 50
APPROXIMATE = {"recovery": "approximate", "consistency": "at_least_once", "checkpointInterval": "100ms"}


@pytest.fixture(autouse=True)
def ended(spark: Any) -> Iterator[None]:
    """No query outlives its test, and slots come back."""
    yield from queries_ended(spark)


def dying(wish: Path, columns: list[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function of which one task's process is killed in the middle of a batch, when somebody wants that."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with contextlib.suppress(FileNotFoundError):
                wish.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch.select(columns)

    return function


@pytest.mark.thorough
def test_killed_task_begins_anew_alone(spark: Any, tmp_path: Path) -> None:
    """Reported lost are exactly the rows that the sink never got; no row came twice, and checkpoints go on."""
    found, missing, doubled = of_killed_task(spark, tmp_path, {})
    assert (missing, doubled) == (found["rowsLost"], 0)
    assert found["rowsLost"] > 0


def test_killed_task_reads_its_input_again_out_of_the_log(spark: Any, tmp_path: Path) -> None:
    """No row is missing; those that came twice are the ones given again, less those that were lost on their way."""
    found, missing, doubled = of_killed_task(spark, tmp_path, {"persistInFlight": "continuous"})
    assert (missing, doubled) == (0, found["rowsReadAgain"] - found["rowsLost"])
    assert found["rowsForgotten"] == 0
    assert not [title for title in found["rowsLostByExchange"] if "exchange 0" in title], "rows to the task were lost"


@pytest.mark.parametrize("log", [with_all(False), True], ids=["without a log", "with the log"])
def test_counts_by_key_lack_what_is_reported(spark: Any, tmp_path: Path, log: bool) -> None:
    """A counter begins anew alone, twice: its keys lack the rows lost and forgotten; with the log none lacks any."""
    source = penstock.readStream(spark).format("rate").options(rowsPerSecond=RATE, numPartitions=1).load()
    counted = source.selectExpr(f"value % {KEYS} AS k", "value").keyBy("k", numPartitions=2)
    counted = counted.agg(n=("value", "count"), newest=("value", "max"))
    passed = counted.mapInArrow(dying(tmp_path / "wish", ["k", "n", "newest"]), counted.schema).rebalance(1)
    writer = passed.writeStream.format("parquet").options(**APPROXIMATE).outputMode("update")
    logging = {"persistInFlight": "continuous"} if log else {}
    writer = writer.options(**logging).option("checkpointInterval", "700ms")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoints")).start(str(tmp_path / "output"))
    for kill in (1, 2):
        before = completed(query)
        wait_until(lambda before=before: completed(query) > before + 1, "checkpoints are complete")
        (tmp_path / "wish").touch()
        wait_until(lambda kill=kill: is_known(query, kill), "it is known what was lost")
    before = completed(query)
    wait_until(lambda: completed(query) > before + 2, "checkpoints go on")
    found = query.lastProgress["recovery"]
    query.stop()
    table = pq.read_table(tmp_path / "output").group_by("k").aggregate([("n", "max"), ("newest", "max")])
    given = pc.add(pc.divide(pc.subtract(table["newest_max"], table["k"]), KEYS), 1)
    missing = pc.subtract(given, table["n_max"])
    assert table.num_rows == KEYS
    lost = sum(rows for title, rows in found["rowsLostByExchange"].items() if "exchange 0" in title)
    assert pc.sum(missing).as_py() == lost + found["rowsForgotten"]
    assert pc.min(missing).as_py() >= 0, "no key counts a row twice"
    assert (pc.max(missing).as_py() == 0) is log
    assert found["tasksNotCounted"] == 0


def of_killed_task(spark: Any, folder: Path, options: dict[str, str]) -> tuple[dict[str, Any], int, int]:
    """Kill one of two tasks between a source and a sink: the report, rows that are missing, and rows twice."""
    source = penstock.readStream(spark).format("rate").options(rowsPerSecond=RATE, numPartitions=1)
    passed = source.load().rebalance(2).mapInArrow(dying(folder / "wish", ["value"]), "value long").rebalance(1)
    writer = passed.writeStream.format("parquet").options(**APPROXIMATE, **options)
    query = writer.option("checkpointLocation", str(folder / "checkpoints")).start(str(folder / "output"))
    wait_until(lambda: completed(query) > 0, "a checkpoint is complete")
    before = completed(query)
    (folder / "wish").touch()
    wait_until(lambda: is_known(query), "it is known what was lost")
    wait_until(lambda: completed(query) > before + 2, "checkpoints go on")
    report = query.lastProgress
    query.stop()
    values = pq.read_table(folder / "output")["value"]
    distinct = len(pc.unique(values))
    assert (report["restarts"], report["recovery"]["restartsAlone"]) == (1, 1)
    assert report["recovery"]["tasksNotCounted"] == 0
    return report["recovery"], pc.max(values).as_py() + 1 - distinct, len(values) - distinct


def completed(query: Any) -> int:
    """The number of complete checkpoints."""
    report = query.lastProgress
    return 0 if report is None else report["checkpoints"]["completed"]


def is_known(query: Any, restarts: int = 1) -> bool:
    """Tell whether so many tasks have begun anew, and all channels have been counted since."""
    report = query.lastProgress
    found = None if report is None else report["recovery"]
    return found is not None and found["restartsAlone"] == restarts and found["channelsNotCounted"] == 0


def test_what_can_not_be_honest_is_refused(spark: Any, tmp_path: Path) -> None:
    """Exactly once, the end of what is available, event time, and sinks whose tasks commit together."""
    rows = penstock.readStream(spark).format("rate").options(rowsPerSecond=10, numPartitions=1).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoints"))
    with pytest.raises(SettingError, match="at_least_once only"):
        writer.option("recovery", "approximate").start()
    writer = writer.options(**APPROXIMATE)
    with pytest.raises(PlanError, match="availableNow"):
        writer.trigger(availableNow=True).start()
    timed = rows.withWatermark("timestamp", "1 second").writeStream.format("noop").options(**APPROXIMATE)
    with pytest.raises(PlanError, match="has event time"):
        timed.option("checkpointLocation", str(tmp_path / "checkpoints")).start()
    batches = rows.writeStream.foreachBatch(lambda _, __: None).options(**APPROXIMATE)
    with pytest.raises(PlanError, match="once and together"):
        batches.option("checkpointLocation", str(tmp_path / "checkpoints")).start()
    whole = rows.groupBy("value").count().writeStream.format("console").outputMode("complete").options(**APPROXIMATE)
    with pytest.raises(PlanError, match="whole result"):
        whole.option("checkpointLocation", str(tmp_path / "checkpoints")).start()
