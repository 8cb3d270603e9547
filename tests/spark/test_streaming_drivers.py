# SPDX-License-Identifier: Apache-2.0
"""A driver that is killed in the middle of a query: another one, with the same checkpointLocation, goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.testing import DEADLINE, wait_until
from underway import below, listed

pytestmark = pytest.mark.spark

ROWS = 8_000
PROGRAM = f"""
import sys
import penstock
from penstock.spark.session import open_session
with open_session("driver", 4) as spark:
    rate = penstock.readStream(spark).format("rate").options(rowsPerSecond=2000, numPartitions=1, numRows={ROWS})
    counted = rate.load().keyBy("value", numPartitions=1).agg(n=("value", "count")).rebalance(1)
    writer = counted.writeStream.format("parquet").option("checkpointLocation", sys.argv[1] + "/checkpoints")
    query = writer.option("checkpointInterval", "200ms").start(sys.argv[1] + "/output")
    print(query.id, flush=True)
    query.awaitTermination()
"""


def driver(folder: Path) -> subprocess.Popen[str]:
    """A process with a Spark session of its own."""
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True, env=env)


@pytest.mark.thorough
def test_next_driver_goes_on(tmp_path: Path) -> None:
    """The driver and its JVM die by SIGKILL while rows flow; the next one ends the query: 0 lost, 0 doubled."""
    first = driver(tmp_path)
    wait_until(lambda: listed(tmp_path / "output", "part-*"), "rows were committed")
    for process in [*below(first.pid), psutil.Process(first.pid)]:
        with suppress(psutil.NoSuchProcess):  # a worker may end, or be a zombie, before its turn comes
            if "penstock.environment" not in " ".join(process.cmdline()):
                process.send_signal(signal.SIGKILL)
    printed, _ = first.communicate(timeout=DEADLINE)
    assert len(pq.read_table(tmp_path / "output")) < ROWS
    second = driver(tmp_path)
    again, _ = second.communicate(timeout=DEADLINE)
    assert second.returncode == 0
    assert again == printed
    table = pq.read_table(tmp_path / "output")
    assert len(pc.unique(table["value"])) == table.num_rows == ROWS
    assert set(table["n"].to_pylist()) == {1}
