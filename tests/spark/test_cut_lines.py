# SPDX-License-Identifier: Apache-2.0
"""The line between Spark's driver and the environment breaks while both live: no row is lost, nothing restarts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from cuttable_proxy import CuttableProxy
from penstock.attachment.launch import EnvironmentLaunch
from penstock.spark.application import Application
from penstock.testing import wait_until
from penstock_torture.grid import HeldSparkJob, restarts_of
from sessions import SLOTS, Kind, Sessions
from underway import listed

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

CUT = Kind(f"local[{SLOTS}]", SLOTS, (("spark.penstock.restart.strategy", "none"),))
"""A session of its own: its environment is to reach the driver through a proxy."""
ROWS = 3_000


class Line:
    """The proxy, which is made when the first environment is to be started."""

    def __init__(self) -> None:
        self.proxy: CuttableProxy | None = None

    def through(self, launch: EnvironmentLaunch) -> EnvironmentLaunch:
        """The same, reaching the driver through the proxy."""
        if self.proxy is None:
            self.proxy = CuttableProxy(launch.master)
        return dataclasses.replace(launch, master=self.proxy.address)

    def cut(self) -> None:
        """Reset all connections, until somebody has tried in vain to connect again."""
        assert self.proxy is not None
        self.proxy.cut()
        self.proxy.wait_refused(2)
        self.proxy.mend()


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    """Between the driver and the environments of this file's session."""
    line = Line()
    launch = Application.launch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Application, "launch", lambda self, settings: line.through(launch(self, settings)))
        yield line
    if line.proxy is not None:
        line.proxy.close()


@pytest.fixture(scope="module")
def cut_session(sessions: Sessions, line: Line) -> Iterator[Any]:
    """The session, which ends before its proxy."""
    sessions.stop()
    yield sessions.of(CUT)
    sessions.stop()


@pytest.mark.parametrize("mode", ["pipelined", "hybrid", "blocking"])
def test_a_job_goes_on_through_a_cut(cut_session: Any, line: Line, tmp_path: Path, mode: str) -> None:
    """In mid-job, while producers hold rows back; without restarts anything lost would fail the job."""
    job = HeldSparkJob(cut_session, mode, str(tmp_path))
    job.reach("writing")
    line.cut()
    finished = job.finish()
    assert restarts_of(finished) == ()
    assert job.rows_are_right(finished)


def test_a_query_goes_on_through_cuts(cut_session: Any, line: Line, tmp_path: Path) -> None:
    """Each row is committed once, by the attempt with which the query began."""
    rate = penstock.readStream(cut_session).format("rate")
    rows = rate.options(rowsPerSecond=2000, numPartitions=1, numRows=ROWS).load()
    counted = rows.keyBy("value", numPartitions=1).agg(n=("value", "count")).rebalance(1)
    writer = counted.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoints"))
    query = writer.option("checkpointInterval", "50ms").start(str(tmp_path / "output"))
    wait_until(lambda: listed(tmp_path / "output", "part-*"), "rows were committed")
    for _ in range(2):
        line.cut()
    assert query.awaitTermination(60)
    assert query.exception() is None
    table = pq.read_table(tmp_path / "output")
    assert len(pc.unique(table["value"])) == table.num_rows == ROWS
    assert set(table["n"].to_pylist()) == {1}
