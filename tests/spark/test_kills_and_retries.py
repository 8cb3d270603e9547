# SPDX-License-Identifier: Apache-2.0
"""Kills and errors where Spark itself tries a task again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import penstock
from effort import with_all
from endless_jobs import Action, all_slots_work, endless, running, watching
from penstock.testing import wait_until
from session_probe import marks
from sessions import SLOTS, Kind, Sessions

pytestmark = pytest.mark.spark

WITH_RETRIES = Kind(f"local[{SLOTS},3]", SLOTS, (("spark.penstock.restart.strategy", "none"),))
WITH_RESTARTS = Kind("local[4,4]", 4)


def test_worker_killed_where_spark_retries(sessions: Sessions, tmp_path: Path) -> None:
    """With `local[8,3]` Spark starts another attempt: it is refused, the job fails once, the session goes on."""
    spark = sessions.of(WITH_RETRIES)
    source = penstock.fromDataFrame(spark.range(0, 1000, 1, 2)).mapInArrow(endless(str(tmp_path)), "id long")
    stream = source.keyBy("id", numPartitions=2).mapInArrow(watching(str(tmp_path)), "id long")
    action = Action(stream.run)
    wait_until(lambda: running(tmp_path), "both ends run")
    os.kill(marks(tmp_path / "producers")[0], signal.SIGKILL)
    assert "was lost" in str(action.wait())
    assert not (tmp_path / "ended").exists()
    all_slots_work(spark)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [WITH_RETRIES, with_all(WITH_RESTARTS)], ids=["once", "again"])
def test_an_error_that_comes_again_in_a_dataframe_is_told(sessions: Sessions, kind: Kind) -> None:
    """Spark runs the task again each time, so its job never says why: the error that the task had comes out."""
    spark = sessions.of(kind)
    stream = penstock.fromDataFrame(spark.range(0, 1000, 1, 4).mapInArrow(_breaks_off, "id long"))
    for action in (stream.count, stream.keyBy("id", numPartitions=2).toDF().collect):
        with pytest.raises(PythonException, match="ValueError: the source breaks off"):
            action()


def _breaks_off(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        raise ValueError("the source breaks off")
