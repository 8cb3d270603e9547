# SPDX-License-Identifier: Apache-2.0
"""The decision whether failed subtasks run again, and when.

`Recovery.fail` is where it is decided that a task runs again. Which others run again with it is in `restart_sets`,
how often and how soon in `restart_strategy`. Failures that come within a second of one that was counted are its
consequences: one dead process is seen by its environment, by its consumers and by Spark, each in its own time. Not so
what was launched only after it: that is a failure of its own, so nothing is tried again and again without being
counted. A cancelled or failing job is never restarted. A query that was told to stop is tried once more, at once:
the user waits, and a failure that comes again would keep it from its last checkpoint for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from penstock.graph.failover import Place
from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core.deadlines import DATAFRAME_SECONDS, UNEXPLAINED_SECONDS, Deadline, DeadlineKind, Wanted
from penstock.job.core.failure import Rank
from penstock.job.core.recovery.restart_sets import RestartSets
from penstock.job.core.recovery.restart_strategy import RestartStrategy
from penstock.job.core.states import JobEvent, Phase
from penstock.settings import RestartSettings

BURST_SECONDS = 1.0
"""Failures this soon after one that counted are taken for its consequences."""

LACKING_SECONDS = 1.0
"""The least wait if a host lacks something again: so that it may have it by then."""

FIRST_TRIES = 3
"""A streaming query restarts for ever, once it has run; before that the user waits to hear why it does not."""
LOST_TRIES = 10
"""The same for restarts after tasks were lost: a host may fail for a minute."""


class Recovery:
    """The restarts of one job."""

    def __init__(self, settings: RestartSettings, sets: RestartSets, phase: Phase, now: Callable[[], float]) -> None:
        self.unexplained: frozenset[Place] = frozenset()
        """The subtasks that were stopped, for a reason that is not known yet."""
        self._awaits_dataframe = False
        """True if a DataFrame broke off: Spark says why, or runs its task again."""
        self._sets = sets
        self._phase = phase
        self._now = now
        self._strategy = RestartStrategy.of(settings)
        self._round = 0
        self._counted: float | None = None
        self._counted_round = 0
        self._delay = 0.0
        self._last_tries: int | None = None
        """Of a query that was told to stop: how often it may still begin anew."""

    def fail(self, failed: so.Fail) -> Iterator[so.Decision]:
        """Run again what failed and what depends on it, or fail the job."""
        if self._awaits_dataframe and not failed.explains and self._phase.is_active:
            self.unexplained |= failed.places  # it follows from a DataFrame that broke off
            return
        places = failed.places | self.unexplained if failed.explains else failed.places
        if not places and failed.explains and not failed.missing:
            return  # nothing was lost
        if not self._phase.is_active:
            yield so.FailForGood(failed.cause, failed.rank, anew=False)
            return
        is_burst = self._is_burst(failed)
        yield so.RememberCause(failed.cause, failed.rank, anew=not is_burst)
        delay = 0.0 if is_burst else self._strategy.next_delay(self._now())
        if self._sets.never_began and self._round >= (LOST_TRIES if failed.rank is Rank.LOSS else FIRST_TRIES):
            yield so.FailForGood(failed.cause, failed.rank, why=" (the query has never run)", anew=False)
            return
        if delay is None:
            given_up = f" ({self._strategy.describe()})" if self._round else ""
            yield so.FailForGood(failed.cause, failed.rank, why=given_up, anew=False)
            return
        if self._last_tries is not None and not is_burst:
            if not self._last_tries:
                yield so.FailForGood(failed.cause, failed.rank, why=" (the query was told to stop)", anew=False)
                return
            self._last_tries, delay = self._last_tries - 1, 0.0
        if failed.lacks and self._round and not is_burst:
            delay = max(delay, LACKING_SECONDS)
        self._round += 1
        if not is_burst:
            self._counted, self._counted_round = self._now(), self._round
        yield so.BeginRound(self._round)
        yield from self._restart(self._sets.after(places, whole=failed.whole), failed.cause)
        if delay > 0:
            self._delay = delay
            yield so.HoldStarts(held=True)

    def stop(self, _: events.StopAsked) -> Iterator[so.Decision]:
        """A query is to end well: where it waits to begin anew, that is its last try, and it comes now."""
        if self._last_tries is None:
            self._last_tries = 0 if self._delay else 1
        if self._delay:
            self._delay = 0.0
            yield so.HoldStarts(held=False)

    def make_room(self, _: so.MakeRoom) -> Iterator[so.Decision]:
        """Readers that hold the slots which their producers need begin anew. Nothing has failed."""
        places = self._sets.in_the_way() if self._phase.is_active else set()
        yield from self._begin_anew(places, "readers hold all slots that are left")

    def step_back(self, places: Collection[Place]) -> Iterator[so.Decision]:
        """Tasks whose region waits for slots that are gone begin anew. Nothing has failed."""
        yield from self._begin_anew(places, "slots are gone that its tasks waited for")

    def _begin_anew(self, places: Collection[Place], cause: str) -> Iterator[so.Decision]:
        if places:
            self._round += 1
            yield so.BeginRound(self._round)
            yield from self._restart(self._sets.after(places), cause)

    def _restart(self, places: frozenset[Place], cause: str) -> Iterator[so.Decision]:
        self.unexplained -= places
        self._awaits_dataframe = self._awaits_dataframe and bool(self.unexplained)
        if places:
            yield so.Advance(JobEvent.RESTART)
            yield so.Interrupt(cause, alone=self._sets.alone(places))
        yield so.Record("restart", f"{self._round}: {cause.partition(chr(10))[0]}")
        for place in sorted(places):
            yield so.Reset(place, "task_restarted")
        yield so.Withdraw()

    def withdraw(self, _: so.Withdraw) -> Iterator[so.Decision]:
        """Subtasks that were about to start and may not now give their slots back."""
        for vertex, places in self._sets.withdrawn():
            for place in places:
                yield so.Reset(place, "task_withdrawn")
            yield so.DropDataFrame(vertex)

    def compare(self, other: so.CompareReaders) -> Iterator[so.Decision]:
        """A subtask gave other rows than before: the readers of the earlier ones have failed by that."""
        readers = self._sets.misled(other.place, other.edges)
        if readers:
            yield so.Fail(readers, f"{other.title} gave other rows than in its attempt before", Rank.CAUSE)

    def await_reason(self, stopped: so.AwaitReason) -> Iterator[so.Decision]:
        """Spark has stopped a task and will say why."""
        self.unexplained |= {stopped.place}
        self._awaits_dataframe = self._awaits_dataframe or stopped.rank is Rank.CUT_OFF
        yield so.RememberCause(stopped.cause, stopped.rank)

    def deadlines(self) -> Wanted:
        """The deadlines that it waits for now."""
        wanted: dict[Deadline, float] = {}
        if self._delay:
            wanted[Deadline(DeadlineKind.RESTART, self._counted_round)] = self._delay
        if self.unexplained:
            seconds = DATAFRAME_SECONDS if self._awaits_dataframe else UNEXPLAINED_SECONDS
            wanted[Deadline(DeadlineKind.UNEXPLAINED)] = seconds
        return wanted if self._phase.is_active else {}

    def deadline_passed(self, deadline: Deadline) -> Iterator[so.Decision]:
        """One of them went by."""
        if deadline.kind is DeadlineKind.RESTART:
            self._delay = 0.0
            yield so.HoldStarts(held=False)
        else:
            cause = "tasks were stopped, and Spark does not say why"
            yield so.Fail(self.unexplained, cause, Rank.UNEXPLAINED, explains=True)

    def _is_burst(self, failed: so.Fail) -> bool:
        """Tell whether a failure now is a consequence of the last one that counted.

        Of tasks whose host lacks something each finds it out when it wants it, which may be long after the first.
        """
        soon = self._counted is not None and self._now() - self._counted < BURST_SECONDS
        return (soon or failed.lacks) and failed.launched < self._counted_round
