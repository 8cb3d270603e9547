# SPDX-License-Identifier: Apache-2.0
"""CPU seconds of all processes of a session, out of /proc, and the interval of a median."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from penstock_bench.environment import descendants, environment_pids, parents

_DRAWS = 10_000
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(application: str, other_than: int = 0) -> float:
    """CPU seconds of this process, those that it has started and the application's environments until now.

    Not counted are the process `other_than` and those that it has started.
    """
    above = parents()
    others = {other_than, *descendants(other_than, above)} if other_than else set()
    pids = {os.getpid(), *descendants(os.getpid(), above), *environment_pids(application)}
    return sum(map(_taken, pids - others))


def interval_of(values: list[float]) -> tuple[float, float]:
    """Between which the median lies, by 95 %."""
    random = np.random.default_rng(0)
    drawn = random.choice(np.array(values), (_DRAWS, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(low), float(high)


def _taken(pid: int) -> float:
    """The seconds of a process and of those of its own that have ended; 0 where it is gone."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0.0
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / _TICKS
