# SPDX-License-Identifier: Apache-2.0
"""Why a job failed: the first cause, told from its consequences.

When one task fails, its consumers fail too because their producer is gone, the other tasks are cancelled and
Spark reports its own error. Those reports may come first. A consequence is kept only until a cause is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from penstock.errors import FailureKind, JobError, PenstockError

TRACEBACK = "Traceback (most recent call last):"
"""Python's own words."""


class Rank(IntEnum):
    """The worth of a report as an explanation; the lowest wins."""

    CAUSE = 0
    LOSS = 1
    """A lost task. As good as a cause, but where a DataFrame broke off: Spark ends this task too, and says why."""
    UNEXPLAINED = 2
    """Tasks that Spark stopped or runs again without a word why. It may know more once its job has ended."""
    CONSEQUENCE = 3
    ECHO = 4
    """Spark's report of its own job."""
    CUT_OFF = 5
    """A task whose DataFrame ended in mid-data, of which Spark knows more."""
    OWN_CANCEL = 6
    """Spark's report of a job that we told it to cancel."""
    TASK_ERROR = 7
    """Spark's report of a task of such a job. It explains only what no other report has explained."""


@dataclass(frozen=True, slots=True)
class _Report:
    rank: Rank
    text: str
    kind: type[PenstockError]


class FailureCause:
    """Keeps the report that explains most, and of equals the first."""

    __slots__ = ("_best",)

    def __init__(self) -> None:
        self._best: _Report | None = None

    def add(self, text: str, rank: Rank, kind: type[PenstockError] = JobError) -> None:
        """Take a report; `kind` is what the user is to see raised."""
        if rank is Rank.LOSS:
            if self.awaits_spark:
                return
            rank = Rank.CAUSE
        if rank is Rank.TASK_ERROR and self._best is not None:
            if self._best.rank is not Rank.UNEXPLAINED:
                return
            rank = Rank.CAUSE
        if self._best is None or rank < self._best.rank:
            self._best = _Report(rank, text, kind)

    @property
    def awaits_spark(self) -> bool:
        """True if all that is known is that a DataFrame broke off: Spark will soon say why."""
        return self._best is not None and self._best.rank is Rank.CUT_OFF

    @property
    def is_known(self) -> bool:
        """True if anything was reported."""
        return self._best is not None

    @property
    def kind(self) -> type[PenstockError]:
        """The error of the best explanation."""
        return self._best.kind if self._best is not None else JobError

    @property
    def text(self) -> str:
        """The best explanation so far."""
        return self._best.text if self._best is not None else "no cause was reported"


_RANKS = {FailureKind.INPUT_CUT_OFF: Rank.CUT_OFF, FailureKind.CONSEQUENCE: Rank.CONSEQUENCE}


def rank_of(failure: FailureKind) -> Rank:
    """The rank of a task's own report."""
    return _RANKS.get(failure, Rank.CAUSE)


def is_users(text: str) -> bool:
    """Tell whether this is an error of the user's code: only such ones come with a traceback."""
    return TRACEBACK in text


def told(title: str, environment: str, error: str) -> str:
    """A task's failure in words: the error first. One of the user's code says itself in which stage it was raised."""
    if is_users(error):
        return f"{error} (on {environment})"
    return f"{error or 'it gave no reason'} ({title})"
