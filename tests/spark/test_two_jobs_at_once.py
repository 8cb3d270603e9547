# SPDX-License-Identifier: Apache-2.0
"""Two actions at the same time under both of Spark's schedulers: who runs beside whom, and who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from endless_jobs import Action, all_slots_work
from held_stages import nothing_until
from penstock.testing import DEADLINE, wait_until
from session_probe import SessionProbe
from sessions import FAIR, SLOTS, USUAL, Sessions

pytestmark = pytest.mark.spark

ROWS = 1000


class Jobs:
    """Jobs that wait for their `go`."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._rows = str(folder / "rows.parquet")
        # One row group is one task, so a job needs one slot more than its number of partitions.
        pq.write_table(pa.table({"id": pa.array(range(ROWS), pa.int64())}), self._rows)

    def submit(self, name: str, pool: str, partitions: int) -> Action:
        """Count the rows on a thread of its own."""

        def act() -> int:
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
            stream = penstock.readParquet(self._spark, self._rows).mapInArrow(self._held(name), "id long")
            keyed = stream.keyBy("id", numPartitions=partitions, mode="pipelined")
            return int(keyed.mapInArrow(lambda batches: batches, "id long").toDF().count())

        return Action(act)

    def has_started(self, name: str) -> bool:
        """Tell whether its source runs."""
        return Path(self._folder, f"started-{name}").exists()

    def let_go(self, *names: str) -> None:
        """Open their gates."""
        for name in names:
            Path(self._folder, f"go-{name}").touch()

    def _held(self, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        started, go = self._folder / f"started-{name}", self._folder / f"go-{name}"

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                started.touch()
                yield from nothing_until(go, batch)
                yield batch

        return stage


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [USUAL, FAIR], ids=["FIFO", "FAIR"])
def test_two_jobs_at_once(sessions: Sessions, tmp_path: Path, kind: Any) -> None:
    """Jobs that fit run together, one that does not waits its turn, one that never fits is refused at once."""
    spark = sessions.of(kind)
    probe = SessionProbe(spark)
    all_slots_work(spark)
    jobs = Jobs(spark, tmp_path)

    both = [jobs.submit("a", "one", 3), jobs.submit("b", "two", 3)]
    wait_until(lambda: jobs.has_started("a") and jobs.has_started("b"), "both run at the same time")
    assert (probe.slots_in_use(), len(probe.jobs())) == (SLOTS, 2)
    jobs.let_go("a", "b")
    assert [action.wait(DEADLINE) for action in both] == [ROWS, ROWS]

    first = jobs.submit("c", "one", 4)
    wait_until(lambda: jobs.has_started("c"), "the first runs")
    second = jobs.submit("d", "two", 4)
    wait_until(lambda: len(probe.jobs()) == 2, "the second is submitted")
    assert probe.slots_in_use() == 5
    assert not jobs.has_started("d")
    jobs.let_go("c", "d")
    assert [action.wait(DEADLINE) for action in (first, second)] == [ROWS, ROWS]

    error = jobs.submit("e", "one", SLOTS).wait(DEADLINE)
    assert f"needs {SLOTS + 1} task slots at the same time, but the application has {SLOTS}" in str(error)
