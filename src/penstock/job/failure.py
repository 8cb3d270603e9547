# SPDX-License-Identifier: Apache-2.0
"""Why a job failed: the first cause, told from its consequences.

When one task fails, its consumers fail too because their producer is gone, the other tasks are cancelled and
Spark reports its own error. Those reports may come first. A consequence is kept only until a cause is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.shuffle.errors import JobError, PenstockError

CONSEQUENCES = frozenset(
    {
        "ProducerFailedError",
        "PartitionLostError",
        "PartitionReleasedError",
        "PartitionNotProducedError",
        "TaskCancelledError",
        "JobCancelledError",
        "StaleError",
        "IncompleteDataError",
    }
)
"""Error types a task reports when something else went wrong first."""


@dataclass(frozen=True, slots=True)
class _Report:
    rank: int
    text: str
    kind: type[PenstockError]


CAUSE, CONSEQUENCE, ECHO, CUT_OFF, OWN_CANCEL = 0, 1, 2, 3, 4
"""How much a report explains: itself the cause; a follow-up in another task; Spark's word on its own job; a task
whose DataFrame ended in mid-data, of which Spark knows more; Spark's word on a job that we told it to cancel."""

INPUT_CUT_OFF = "DataFrameInputError"
"""The error type of such a task."""


class FailureCause:
    """Keeps the report that explains most, and of equals the first."""

    __slots__ = ("_best",)

    def __init__(self) -> None:
        self._best: _Report | None = None

    def add(self, text: str, rank: int = CAUSE, kind: type[PenstockError] = JobError) -> None:
        """Take a report; `kind` is what the user is to see raised."""
        if self._best is None or rank < self._best.rank:
            self._best = _Report(rank, text, kind)

    @property
    def awaits_spark(self) -> bool:
        """Whether all that is known is that a DataFrame broke off: Spark will soon say why."""
        return self._best is not None and self._best.rank == CUT_OFF

    @property
    def kind(self) -> type[PenstockError]:
        """The error of the best explanation."""
        return self._best.kind if self._best is not None else JobError

    @property
    def text(self) -> str:
        """The best explanation so far."""
        return self._best.text if self._best is not None else "no cause was reported"


def rank_of(error_type: str) -> int:
    """The rank of a task's own report."""
    if error_type == INPUT_CUT_OFF:
        return CUT_OFF
    return CONSEQUENCE if error_type in CONSEQUENCES else CAUSE
