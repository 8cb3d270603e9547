# SPDX-License-Identifier: Apache-2.0
"""Until when a job waits for what.

Each part of the core says which deadlines it wants in its present state. The core arms those that are new and
withdraws those that no part wants any more; one that passes and is not armed is of no interest. A deadline runs from
the moment it is armed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class DeadlineKind(StrEnum):
    """The events that are waited for."""

    SLOTS = "slots"
    """Slots, beside other Penstock jobs."""
    DEPLOY = "deploy"
    """The tasks of a region that runs together (`region`), since its workers are on their way."""
    RESTART = "restart"
    """The moment at which what failed may run again."""
    UNEXPLAINED = "unexplained"
    """Spark's word on why it stopped tasks."""
    DRAIN = "drain"
    """Tasks that were told to stop while the job goes on, when nothing else is left to do."""
    SETTLE = "settle"
    """Tasks of a job that ends; Spark is asked to cancel what does not stop by itself."""
    GRACE = "grace"
    """Tasks whose Spark job has returned already, as after the user's cancel."""
    LEASED = "leased"
    """Slots that readers lease are counted then, where a DataFrame is still to be read."""
    CHECKPOINT = "checkpoint"
    """The moment at which the checkpoints of a streaming query are looked at again."""
    ABANDON = "abandon"
    """Spark's return; the job ends although something never reported its end."""


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """One deadline of one job; `number` tells several of a kind apart that follow each other."""

    kind: DeadlineKind
    number: int = 0
    region: int = 0


Wanted = Mapping[Deadline, float]
"""Deadlines, and after how many seconds they pass."""

SETTLE_SECONDS = 5.0
"""Time that tasks have to stop by themselves; Spark's cancel kills them, so it comes second."""
GRACE_SECONDS = 0.5
UNEXPLAINED_SECONDS = 2.0
DATAFRAME_SECONDS = 15.0
"""The same where a DataFrame broke off: Spark tries its task again before it gives its job up."""
LEASED_SECONDS = 2.0
ABANDON_SECONDS = 30.0
