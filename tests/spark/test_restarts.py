# SPDX-License-Identifier: Apache-2.0
"""Kills in `local[8]` with restarts allowed: the job goes on and the rows are right; a cancel is always the end.

`test_kills` has the other half: without restarts what is killed stays dead, and the job says so.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import penstock
from effort import with_all
from endless_jobs import Action
from penstock.errors import JobCancelledError
from penstock.spark.runtime import SparkRuntime
from penstock.testing import wait_until
from penstock_torture import gates as gated
from penstock_torture.gates import Gates
from penstock_torture.grid import Cell, HeldSparkJob, restarts_of, run_cell
from session_probe import SessionProbe

pytestmark = pytest.mark.spark

ALL = ("c0", "c1", "p0", "p1")


@pytest.mark.parametrize(
    ("mode", "phase", "victim", "restarted"),
    [
        ("pipelined", "writing", "producer", ALL),
        with_all("blocking", "reading", "consumer", ("c0",)),
        with_all("pipelined", "reading", "environment", ALL),
    ],
)
def test_a_kill_in_mid_job_is_mended(
    spark: Any, mode: str, phase: str, victim: str, restarted: tuple[str, ...]
) -> None:
    """Plain `local[N]` retries no task and fails the whole Spark job; the rows are right all the same, once each."""
    outcome = run_cell(spark, Cell(mode, phase, victim))
    assert outcome.error == ""
    assert outcome.is_right
    assert set(restarted) <= set(outcome.restarted)


@pytest.mark.thorough
def test_two_kills_one_after_the_other(spark: Any, tmp_path: Path) -> None:
    """The second one hits what the first restart made; all is given back at the end."""
    probe = SessionProbe(spark)
    penstock.repartition(spark.range(10), 2, "id").count()
    job = HeldSparkJob(spark, "blocking", str(tmp_path))
    job.reach("reading")
    for _ in range(2):
        known = len(job.gates.marks())
        os.kill(job.gates.living("c0"), signal.SIGKILL)
        wait_until(lambda known=known: len(job.gates.marks()) > known, "a consumer runs again")
    finished = job.finish()
    assert job.rows_are_right(finished)
    assert restarts_of(finished).count("c0") >= 2
    wait_until(lambda: not probe.jobs(), "no job is left")
    wait_until(lambda: not probe.slots_in_use(), "no slot is held")


def test_cancel_while_a_restart_is_under_way(spark: Any, tmp_path: Path) -> None:
    """The user cancels between the failure and what follows it: the job ends cancelled, and nothing runs again."""
    spark.conf.set("spark.penstock.restart.delay", "60s")
    try:
        gates = Gates(str(tmp_path))
        action = Action(gated.stream(gates, "blocking", spark).run)
        gates.reach("writing", "blocking", lambda place: False)
        probe = SessionProbe(spark)
        known = len(gates.marks())
        os.kill(gates.living("p0"), signal.SIGKILL)
        core = probe._core()
        (job,) = probe.jobs()
        wait_until(lambda: any(name == "restart" for _, name, _ in core.trace(job)), "the restart is decided")
        # As Ctrl-C does: Spark's own cancel has no Spark job to reach while the job waits for its restart.
        runtime = SparkRuntime.of(spark)
        runtime._application.master(runtime.settings()).cancel(job, "the user cancels")
        error = action.wait()
        assert isinstance(error, JobCancelledError)
        assert len(gates.marks()) == known, "something ran again after the cancel"
        wait_until(lambda: not probe.slots_in_use(), "no slot is held")
    finally:
        spark.conf.unset("spark.penstock.restart.delay")
        Gates(str(tmp_path)).open_all()
