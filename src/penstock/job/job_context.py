# SPDX-License-Identifier: Apache-2.0
"""What the cores of all jobs share, and how long a job that ends waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.job import instructions as do
from penstock.job.tracker import PartitionTracker

SETTLE_SECONDS = 5.0
"""How long tasks have to stop by themselves; Spark's cancel kills them, so it comes second."""
GRACE_SECONDS = 0.5
"""How long tasks have to stop when Spark has returned already."""
UNEXPLAINED_SECONDS = 2.0
"""How long Spark has to say why it stopped a task."""
LENT_SECONDS = 2.0
"""How long after the last reader lent its slot they are counted, where a DataFrame is still to be read."""
ABANDON_SECONDS = 30.0
"""How long Spark has to return after its cancel."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What one job shares with the others."""

    tracker: PartitionTracker
    emit: Callable[[do.Instruction], None]
    now: Callable[[], float]
