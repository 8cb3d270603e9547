# SPDX-License-Identifier: Apache-2.0
"""A dozen cells of the kill grid on `local-cluster[2,2,1024]`, on one session in a driver of its own.

Kills of Python workers, executor JVMs and environment processes. Spark decides who runs where, so each cell names
what must run again and what may; the grid without Spark (`tests/processes/test_kill_grid.py`) has the exact lists.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

SECONDS = 120
ALL = "p0 p1 c0 c1"

DRIVER = """
import dataclasses, json, sys
from penstock.torture.cluster import open_cluster
from penstock.torture.grid import Cell, run_cell

with open_cluster("kill-grid") as spark:
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(run_cell(spark, Cell(*json.loads(line))))), flush=True)
print("bye", flush=True)
"""

CELLS: dict[tuple[str, str, str], tuple[str, str, str]] = {
    ("pipelined", "writing", "producer"): (ALL, ALL, "a pipelined exchange keeps nothing"),
    ("pipelined", "reading", "consumer"): (ALL, ALL, "what was read is gone, finished producers included"),
    ("pipelined", "reading", "environment"): (ALL, ALL, "what was not read yet is gone"),
    ("blocking", "writing", "producer"): ("p0", "p0", "nobody has read; the other one is its own"),
    ("blocking", "writing", "environment"): ("p0", "p0 p1", "p1 too where Spark put it on the same executor"),
    ("blocking", "reading", "consumer"): ("c0", "c0", "the environments hold the partitions"),
    ("blocking", "reading", "environment"): ("c0", ALL, "the producers whose partitions it held, and who knows them"),
    ("blocking", "half", "environment"): ("c1", ALL, "as before; c0 only where its result was there"),
    ("hybrid", "reading", "consumer"): ("c0", "c0", "what is written can be read again"),
    ("hybrid_selective", "reading", "consumer"): (ALL, ALL, "what was read is gone"),
    # The executors' JVMs come last: a new one takes Spark a second or two.
    ("blocking", "reading", "executor"): ("c0", "c0 c1", "its environment process and the partitions stay"),
    ("pipelined", "writing", "executor"): (ALL, ALL, "a pipelined exchange keeps nothing"),
}
"""What must run again, what may, and why."""


@pytest.fixture(scope="module")
def grid() -> Iterator[Callable[[tuple[str, str, str]], dict[str, Any]]]:
    """Runs a cell on the shared session; at the end the driver says goodbye and leaves nothing."""
    own = Path(tempfile.mkdtemp(prefix="g-"))
    env = {**os.environ, "TMPDIR": str(own), "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stdout.readline().strip() == "ready"
        asked, told = driver.stdin, driver.stdout

        def run(cell: tuple[str, str, str]) -> dict[str, Any]:
            asked.write(json.dumps(cell) + "\n")
            asked.flush()
            outcome: dict[str, Any] = json.loads(told.readline())
            return outcome

        yield run
        asked.close()
        assert told.readline().strip() == "bye"
        assert driver.wait(SECONDS) == 0
    assert not list(own.glob("penstock-*/*"))


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(("mode", "phase", "victim"), list(CELLS))
def test_cell_on_a_cluster(
    grid: Callable[[tuple[str, str, str]], dict[str, Any]], mode: str, phase: str, victim: str
) -> None:
    """One kill: the job ends well, every row comes out once, and nothing runs again that need not."""
    outcome = grid((mode, phase, victim))
    assert outcome["error"] == ""
    assert outcome["is_right"]
    least, most, reason = CELLS[mode, phase, victim]
    again = set(outcome["restarted"])
    assert set(least.split()) <= again <= set(most.split()), reason
