# SPDX-License-Identifier: Apache-2.0
"""The bench of first jobs without its sessions: turns, medians, what a failed run says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.errors import PenstockError
from penstock_bench import start

WAYS = (start.Way("A", "pyspark"), start.Way("B", "penstock"), start.Way("C", "penstock", start.DAEMON))


def test_the_ways_take_turns() -> None:
    """One run of each, then again; the medians are of each figure alone."""
    ran: list[str] = []

    def run(way: start.Way, slots: int) -> Mapping[str, float]:
        ran.append(way.name)
        assert slots == 2
        return {"first": float(len(ran)), "second": 0.5}

    found = start.measured(run, WAYS, 3, 2)
    assert ran == [way.name for way in WAYS] * 3
    assert start.medians(found)["B"] == {"first": 5.0, "second": 0.5}


def test_a_run_that_fails_says_why() -> None:
    """The error has the way and the end of what was printed."""
    with pytest.raises(PenstockError, match=r"A failed: no Java here"):
        start.run_cold(WAYS[0], 2, "import sys; sys.exit('no Java here')")
