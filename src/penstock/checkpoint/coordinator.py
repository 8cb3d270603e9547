# SPDX-License-Identifier: Apache-2.0
"""The checkpoint coordinator of one streaming query, as a sans-I/O core.

A checkpoint is triggered at the heads (running tasks with no running task in front of them), acknowledged by every
task that runs, stored (its metadata last), and then complete: sinks commit. Or it ends before: a task declines it, it
expires, a newer one completes first, or the query restarts. Each call is one event; it returns what is to be done, in
order. `now` is a clock's seconds and never goes back.

Rules
- Checkpoint numbers grow for ever, over restarts too: a late word of an old one finds nothing and is dropped.
- A task that has handled the end of its data takes part in one more checkpoint, which is triggered at once, and
  goes when that one is complete. One that has gone is "finished" in every later checkpoint. If it goes while one is
  under way that it has not acknowledged, the tasks downstream of it may be heads now, and are told.
- When the query is told to stop, all tasks end their data, and one checkpoint holds the last state of all: the one
  that a later start goes on from. So nothing is triggered before all have ended, and nothing after it, which would
  leave out tasks that have gone.
- Periodic checkpoints keep `min_pause` seconds after the end of the last one; those that a user asked for do not.
  Not more than `max_concurrent` are under way; what is asked for meanwhile is joined into the next one.
- A checkpoint fails once, and counts if it is newer than the last completed one; more failures in a row than
  tolerated fail the query. A checkpoint that was subsumed, or given up for a restart, has not failed.
- While its metadata is being written it is unknown whether a checkpoint exists, so nothing gives it up then, and
  the query does not restart before `is_settled`.
- Memory: one entry for each task of each checkpoint under way, and the retained completed ones. Nothing grows with
  the number of checkpoints or of restarts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field

from penstock.checkpoint import decisions as do
from penstock.checkpoint.alignment import CAME_IN_THE_MIDDLE, IN_FRONT
from penstock.checkpoint.barriers import Alignment, CheckpointBarrier
from penstock.checkpoint.schedule import Schedule

Task = Hashable
"""The name of a subtask, of any type: it is only compared."""
Heads = Callable[[Collection[Task]], Iterable[Task]]
"""Of a query some of whose tasks have finished: those that run and have no running task in front of them."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """When checkpoints are taken; seconds. `interval` None: only when they are asked for.

    Aligned barriers turn unaligned after `aligned_timeout`, 0: they never were aligned; None: never. A checkpoint
    that is not complete `BEGIN_ANEW` times as long after its trigger begins anew, unaligned from the start: one of
    its barriers stands behind rows at a sender. With `hastens` one is begun as soon as tasks that began anew alone
    are there: they read logs up to its barriers.
    """

    interval: float | None = None
    timeout: float = 600.0
    min_pause: float = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    retained: int = 1
    alignment: Alignment = Alignment.ALIGNED
    aligned_timeout: float | None = None
    hastens: bool = False


BEGIN_ANEW = 2
"""Times `aligned_timeout`: how long an aligned checkpoint may take that could have turned unaligned."""


@dataclass(slots=True)
class _Pending:
    """One checkpoint under way.

    `missing` are the tasks that have not acknowledged it; where none is, its metadata is being stored.
    """

    number: int
    triggered: float
    missing: set[Task]
    calls: tuple[int, ...]
    finished: set[Task]
    waiting: frozenset[Task] = frozenset()
    heads: set[Task] = field(default_factory=set)
    handles: dict[Task, object] = field(default_factory=dict)
    alignment: Alignment = Alignment.ALIGNED

    @property
    def is_collecting(self) -> bool:
        """True if tasks are still to acknowledge it."""
        return bool(self.missing)


class CheckpointCoordinator:
    """The checkpoints of one query over all its attempts. `heads` knows the query's graph."""

    def __init__(self, options: CheckpointOptions, heads: Heads, first: int = 1) -> None:
        self._options = options
        self._heads = heads
        self._next = first
        self._tasks: frozenset[Task] = frozenset()
        self._finished: set[Task] = set()
        self._waiting: set[Task] = set()
        """Tasks that have handled the end of their data, and go with the next checkpoint they take part in."""
        self._ended: set[Task] = set()
        """All that have handled it, those too that a complete checkpoint lets go."""
        self._pending: dict[int, _Pending] = {}
        self._completed: deque[int] = deque()
        self._asked: list[int] = []
        self._schedule = Schedule(options.interval, options.min_pause)
        self._failures = 0
        self._is_failed = self._is_short = False

    @property
    def latest_completed(self) -> int | None:
        """The newest checkpoint that a recovery may start from."""
        return self._completed[-1] if self._completed else None

    @property
    def latest_begun(self) -> int:
        """No checkpoint has a higher number."""
        return self._next - 1

    @property
    def is_settled(self) -> bool:
        """True if no metadata is being written, so that `latest_completed` is the one that a recovery begins with."""
        return all(pending.is_collecting for pending in self._pending.values())

    @property
    def pending(self) -> list[int]:
        """The checkpoints under way, oldest first."""
        return list(self._pending)

    # --- the query's tasks

    def running(self, tasks: Iterable[Task], now: float, finished: Iterable[Task] = ()) -> list[do.Decision]:
        """All tasks of an attempt of the query run (or had `finished` in the checkpoint it began with)."""
        if not self.is_settled:
            raise ValueError("a query can't restart while the metadata of a checkpoint is being written")
        self._tasks = frozenset(tasks)
        self._finished = set(finished)
        self._is_short = False
        self._waiting.clear()
        self._ended.clear()
        self._schedule.begun(now)
        return self._advance(now)

    def interrupted(self, cause: str, now: float) -> list[do.Decision]:
        """The attempt is over: what is being collected is given up, uncounted, and what was asked for is kept."""
        decisions: list[do.Decision] = []
        for pending in [each for each in self._pending.values() if each.is_collecting]:
            self._asked.extend(pending.calls)
            decisions += self._drop(pending, cause, now)
        self._tasks = frozenset()
        self._schedule.suspend()
        return decisions

    def fell_short(self, cause: str, now: float) -> list[do.Decision]:
        """Tasks begin anew alone: as `interrupted`, and no checkpoint is begun before they are there again.

        None of them has ended its data: a query of which some tasks have begins anew as a whole.
        """
        tasks = self._tasks
        decisions = self.interrupted(cause, now)
        self._tasks, self._is_short = tasks, bool(tasks)
        return decisions

    def complete_again(self, now: float) -> list[do.Decision]:
        """All tasks of the attempt run again, and go on together."""
        self._is_short = False
        if self._options.hastens:
            self._schedule.hasten(now)
        else:
            self._schedule.begun(now)
        return self._advance(now)

    @property
    def is_running(self) -> bool:
        """True if all tasks of an attempt run, or did until some of them fell out."""
        return bool(self._tasks)

    @property
    def has_all_data(self) -> bool:
        """True if no task has handled the end of its data, and none is told to."""
        return not (self._ended or self._finished or self._schedule.is_stopping)

    def skip(self) -> int:
        """Leave a number out, and return it: what was begun is below it, and what will be above."""
        self._next += 1
        return self.latest_begun

    def closed(self, cause: str, now: float) -> list[do.Decision]:
        """The query is over: as `interrupted`, and open calls are answered."""
        decisions = self.interrupted(cause, now)
        decisions += [do.AnswerTrigger(call, None, cause) for call in self._asked]
        self._asked.clear()
        return decisions

    def data_ended(self, task: Task, now: float) -> list[do.Decision]:
        """A task has handled the end of its data, and waits for a checkpoint that holds its last state."""
        if task in self._tasks and task not in self._finished:
            self._waiting.add(task)
            self._ended.add(task)
        return self._advance(now)

    def task_finished(self, task: Task, now: float) -> list[do.Decision]:
        """A task has gone, well, after the checkpoint that held its last state."""
        if task not in self._tasks or task in self._finished:
            return []
        self._finished.add(task)
        self._waiting.discard(task)
        decisions: list[do.Decision] = []
        for pending in [each for each in self._pending.values() if task in each.missing]:
            pending.missing.discard(task)
            pending.finished.add(task)
            decisions += self._tell_heads(pending) + self._settle(pending)
        return decisions + self._advance(now)

    def stopping(self, now: float) -> list[do.Decision]:
        """The query is told to stop: all of its tasks will end their data soon."""
        self._schedule.stop()
        return self._advance(now)

    def going_on(self) -> None:
        """The query does not stop after all: the next attempt takes checkpoints as before."""
        self._schedule.go_on()

    # --- triggers

    def asked(self, call: int, now: float) -> list[do.Decision]:
        """A checkpoint is wanted now; the answer carries the call's number."""
        self._asked.append(call)
        return self._advance(now)

    def time_passed(self, now: float) -> list[do.Decision]:
        """A wake-up that was asked for has come, or any other moment."""
        decisions: list[do.Decision] = []
        for pending in list(self._pending.values()):
            if pending.is_collecting and now >= pending.triggered + self._options.timeout:
                waited = f"it expired after {self._options.timeout:g} s: {_missing(pending)}"
                decisions += self._fail(pending, waited, now)
            elif pending.is_collecting and now >= self._anew_at(pending):
                decisions += self._drop(pending, "it took too long to be aligned: the next one is unaligned", now)
                self._asked.extend(pending.calls)
                decisions += self._trigger(now, Alignment.UNALIGNED)
        return decisions + self._advance(now)

    # --- what becomes of a checkpoint

    def acknowledged(self, number: int, task: Task, handle: object, now: float) -> list[do.Decision]:
        """A task's snapshot is stored; `handle` says where. Late and doubled words change nothing."""
        pending = self._pending.get(number)
        if pending is None or task not in pending.missing:
            return [] if pending is not None else [do.DiscardHandle(number, handle)]
        pending.missing.discard(task)
        pending.handles[task] = handle
        return self._settle(pending)

    def declined(self, number: int, task: Task, cause: str, now: float) -> list[do.Decision]:
        """A task took no snapshot."""
        pending = self._pending.get(number)
        if pending is None or task not in pending.missing:
            return []
        if self._options.hastens and cause == IN_FRONT:
            return []  # or a word that came ahead of the other task's own would make a failure of it
        if cause == CAME_IN_THE_MIDDLE:
            decisions = self._drop(pending, f"{task}: {cause}", now)
            self._asked.extend(pending.calls)
            self._schedule.hasten(now)
            return decisions + self._advance(now)
        return self._fail(pending, f"{task} declined it: {cause}", now)

    def stored(self, number: int, now: float) -> list[do.Decision]:
        """The metadata is there: the checkpoint is complete."""
        pending = self._pending.pop(number, None)
        if pending is None:
            return [do.Discard(number)]
        self._failures = 0
        self._schedule.completed()
        self._schedule.ended(now)
        self._waiting -= pending.waiting
        if self._completed and self._completed[-1] > number:
            return [do.Discard(number), *self._answered(pending, number), *self._advance(now)]
        decisions: list[do.Decision] = [do.Complete(number), *self._answered(pending, number)]
        for older in [each for each in self._pending.values() if each.number < number]:
            if older.is_collecting:
                decisions += self._drop(older, f"checkpoint {number} completed first", now)
                decisions += self._answered(older, number)
        self._completed.append(number)
        while len(self._completed) > self._options.retained:
            decisions.append(do.Discard(self._completed.popleft()))
        return decisions + self._advance(now)

    def store_failed(self, number: int, cause: str, now: float) -> list[do.Decision]:
        """The metadata could not be written."""
        pending = self._pending.get(number)
        return [] if pending is None else self._fail(pending, f"it could not be stored: {cause}", now)

    def restored(self, numbers: Iterable[int]) -> None:
        """Completed checkpoints that an earlier driver left, oldest first; new ones get higher numbers."""
        self._completed.extend(numbers)
        if self._completed:
            self._next = max(self._next, self._completed[-1] + 1)

    def damaged(self, number: int) -> list[do.Decision]:
        """A completed checkpoint can't be restored from; the one before it is the newest now."""
        if number not in self._completed:
            return []
        self._completed.remove(number)
        return [do.Discard(number)]

    def check(self) -> None:
        """The invariants of this core; raises AssertionError."""
        for pending in self._pending.values():
            if pending.missing & pending.handles.keys() or not pending.missing <= self._tasks:
                raise AssertionError(f"checkpoint {pending.number}: {pending.missing} and {pending.handles.keys()}")
        if len(self._pending) > self._options.max_concurrent:
            raise AssertionError(f"{len(self._pending)} checkpoints are under way")
        if len(self._completed) > max(self._options.retained, 1) or self._next <= max(self._pending, default=0):
            raise AssertionError(f"completed {self._completed}, next {self._next}, pending {list(self._pending)}")

    # --- inside

    def _advance(self, now: float) -> list[do.Decision]:
        """Trigger what is due; else say when to look again."""
        decisions: list[do.Decision] = []
        if self._may_trigger(now):
            decisions += self._trigger(now)
        wake = self._next_wake(now)
        return [*decisions, do.WakeAt(wake)] if wake is not None else decisions

    def _may_trigger(self, now: float) -> bool:
        if not self._tasks or self._is_short or self._is_failed or len(self._pending) >= self._options.max_concurrent:
            return False
        if not self._tasks - self._finished:
            return False  # no task is left to take a snapshot
        if self._asked and not self._schedule.is_stopping:
            return True
        if self._uncovered() and now >= self._schedule.retry_at:
            return True
        due = self._periodic_at
        return due is not None and now >= due

    @property
    def _periodic_at(self) -> float | None:
        """When the next periodic one is due; None where all data has ended.

        A task that is let go stays until it knows what became of each checkpoint that holds rows in flight of its
        own, so one after the other would keep it for ever.
        """
        return None if self._tasks <= self._ended | self._finished else self._schedule.at

    def _anew_at(self, pending: _Pending) -> float:
        """When an aligned checkpoint begins anew as an unaligned one; not where tasks end their data meanwhile."""
        timeout = self._options.aligned_timeout
        if pending.alignment is not Alignment.ALIGNED or timeout is None or self._schedule.is_stopping:
            return float("inf")
        return pending.triggered + BEGIN_ANEW * timeout

    def _trigger(self, now: float, alignment: Alignment | None = None) -> list[do.Decision]:
        number, self._next = self._next, self._next + 1
        missing = set(self._tasks - self._finished)
        waiting = frozenset(self._waiting)
        self._pending[number] = pending = _Pending(
            number, now, missing, tuple(self._asked), set(self._finished), waiting
        )
        pending.alignment = alignment or self._alignment
        self._asked.clear()
        self._schedule.begun(now)
        return self._tell_heads(pending)

    @property
    def _alignment(self) -> Alignment:
        """The alignment that checkpoints begin with."""
        return Alignment.UNALIGNED if self._options.aligned_timeout == 0 else self._options.alignment

    def _uncovered(self) -> set[Task]:
        """Tasks whose last state no checkpoint under way will hold, and that are to be in the next one."""
        if self._schedule.is_stopping and not self._tasks - self._finished <= self._waiting:
            return set()
        return self._waiting.difference(*(pending.waiting for pending in self._pending.values()))

    def _tell_heads(self, pending: _Pending) -> list[do.Decision]:
        """Trigger at the heads that have not been told."""
        heads = [task for task in self._heads(self._finished) if task not in pending.heads]
        if not heads or not pending.missing:
            return []
        pending.heads.update(heads)
        barrier = CheckpointBarrier(
            pending.number, pending.triggered, pending.alignment, self._options.aligned_timeout
        )
        return [do.Trigger(barrier, tuple(heads))]

    def _next_wake(self, now: float) -> float | None:
        collecting = [each for each in self._pending.values() if each.is_collecting]
        times = [min(pending.triggered + self._options.timeout, self._anew_at(pending)) for pending in collecting]
        if self._tasks and not self._is_short and len(self._pending) < self._options.max_concurrent:
            if (due := self._periodic_at) is not None:
                times.append(due)
            if self._uncovered():
                times.append(self._schedule.retry_at)
        return min(times, default=None)

    def _settle(self, pending: _Pending) -> list[do.Decision]:
        if pending.missing:
            return []
        return [do.Store(pending.number, dict(pending.handles), frozenset(pending.finished))]

    def _fail(self, pending: _Pending, cause: str, now: float) -> list[do.Decision]:
        decisions = self._drop(pending, cause, now)
        decisions += [do.AnswerTrigger(call, None, cause) for call in pending.calls]
        if not self._completed or pending.number > self._completed[-1]:
            self._failures += 1
        self._schedule.failed(now, self._failures)
        if self._failures > self._options.tolerable_failures and not self._is_failed:
            self._is_failed = True
            allowed = f"tolerableFailedCheckpoints={self._options.tolerable_failures}"
            decisions.append(do.FailQuery(f"checkpoint {pending.number} failed ({allowed}): {cause}"))
        return decisions + self._advance(now)

    def _drop(self, pending: _Pending, cause: str, now: float) -> list[do.Decision]:
        self._pending.pop(pending.number, None)
        self._schedule.ended(now)
        return [do.GiveUp(pending.number, cause), do.Discard(pending.number)]

    @staticmethod
    def _answered(pending: _Pending, number: int) -> list[do.Decision]:
        return [do.AnswerTrigger(call, number) for call in pending.calls]


def _missing(pending: _Pending) -> str:
    count = len(pending.missing)
    some = ", ".join(sorted(map(str, pending.missing))[:3])
    return f"{count} of {count + len(pending.handles)} tasks have not acknowledged it ({some})"
