# SPDX-License-Identifier: Apache-2.0
"""Some cells of the kill grid on a cluster, each kind of victim once; `make torture` has them all.

Kills of Python workers, executor JVMs and environment processes. Spark decides who runs where, so each cell names
what must run again and what may; the grid without Spark (`tests/processes/test_kill_grid.py`) has the exact lists.
"""

from __future__ import annotations

from typing import Any

import pytest

from effort import some_of
from penstock_torture.grid import Cell, run_cell

pytestmark = pytest.mark.spark

ALL = "p0 p1 c0 c1"

CELLS: dict[tuple[str, str, str], tuple[str, str, str]] = {
    ("pipelined", "reading", "environment"): (ALL, ALL, "what was not read yet is gone"),
    ("blocking", "writing", "producer"): ("p0", "p0", "nobody has read; the other one is its own"),
    ("blocking", "half", "environment"): ("c1", ALL, "the producers whose partitions it held, c0's result if there"),
    ("hybrid_selective", "reading", "consumer"): (ALL, ALL, "what was read is gone"),
    # An executor's JVM comes last: a new one takes Spark a second or two.
    ("blocking", "reading", "executor"): ("c0", "c0 c1", "its environment process and the partitions stay"),
}
"""The subtasks that must run again, those that may, and why."""


@pytest.mark.parametrize(("mode", "phase", "victim"), some_of(list(CELLS), 3))
def test_cell_on_a_cluster(cluster: Any, mode: str, phase: str, victim: str) -> None:
    """One kill: the job ends well, every row comes out once, and nothing runs again that need not."""
    outcome = run_cell(cluster, Cell(mode, phase, victim))
    assert outcome.error == ""
    assert outcome.is_right
    least, most, reason = CELLS[mode, phase, victim]
    again = set(outcome.restarted)
    assert set(least.split()) <= again <= set(most.split()), reason
