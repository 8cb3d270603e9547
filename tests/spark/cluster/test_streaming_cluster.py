# SPDX-License-Identifier: Apache-2.0
"""A streaming query on two executors: one of them is killed, and no row is lost or doubled."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.testing import DEADLINE, wait_until
from underway import below, listed

pytestmark = pytest.mark.spark

ROWS = 8_000


def executors() -> list[int]:
    """The processes of the executors."""
    return sorted(process.pid for process in below(os.getpid(), "CoarseGrainedExecutorBackend"))


def test_killed_executor_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    """Its tasks and its environment are gone; the query goes on from its last checkpoint on the new executor."""
    numbers = penstock.readStream(cluster).format("rate").options(rowsPerSecond=1_000, numPartitions=1, numRows=ROWS)
    counted = numbers.load().keyBy("value", numPartitions=2).agg(n=("value", "count")).rebalance(1)
    writer = counted.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoints"))
    query = writer.option("checkpointInterval", "300ms").start(str(tmp_path / "output"))
    wait_until(lambda: listed(tmp_path / "output", "part-*"), "rows were committed")
    os.kill(executors()[0], signal.SIGKILL)
    assert query.awaitTermination(DEADLINE) is True
    table = pq.read_table(tmp_path / "output")
    assert len(pc.unique(table["value"])) == table.num_rows == ROWS
    assert set(table["n"].to_pylist()) == {1}
