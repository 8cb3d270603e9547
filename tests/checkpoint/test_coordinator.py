# SPDX-License-Identifier: Apache-2.0
"""The coordinator's core: triggers, ends and their counts, and random histories of months."""

from __future__ import annotations

import pickle
import random
from collections.abc import Collection, Iterable

import pytest

from penstock.checkpoint import decisions as do
from penstock.checkpoint.alignment import CAME_IN_THE_MIDDLE, IN_FRONT
from penstock.checkpoint.barriers import Alignment
from penstock.checkpoint.coordinator import CheckpointCoordinator, CheckpointOptions
from penstock.checkpoint.schedule import FAILED_PAUSE

SOURCES = ("source-0", "source-1")
SINKS = ("sink-0", "sink-1")
TASKS = (*SOURCES, *SINKS)


def _heads(finished: Collection[object]) -> Iterable[str]:
    """Two sources, each in front of both sinks."""
    running = [source for source in SOURCES if source not in finished]
    return running or [sink for sink in SINKS if sink not in finished]


def _coordinator(**options) -> CheckpointCoordinator:
    coordinator = CheckpointCoordinator(CheckpointOptions(**options), _heads)
    coordinator.running(TASKS, 0.0)
    return coordinator


def _of(kind: type, decisions: Iterable[do.Decision]) -> list:
    return [decision for decision in decisions if isinstance(decision, kind)]


def _acknowledge(coordinator: CheckpointCoordinator, number: int, now: float, tasks=TASKS) -> list[do.Decision]:
    decisions = []
    for task in tasks:
        decisions += coordinator.acknowledged(number, task, f"{task}@{number}", now)
        coordinator.check()
    return decisions


def _complete(coordinator: CheckpointCoordinator, number: int, now: float) -> list[do.Decision]:
    assert _of(do.Store, _acknowledge(coordinator, number, now))
    decisions = coordinator.stored(number, now)
    coordinator.check()
    return decisions


def test_a_checkpoint_from_trigger_to_completion() -> None:
    """It is due after the interval, stored when all tasks have acknowledged, complete when stored."""
    coordinator = _coordinator(interval=10.0)
    assert coordinator.time_passed(9.0) == [do.WakeAt(10.0)]
    (trigger,) = _of(do.Trigger, coordinator.time_passed(10.0))
    assert (trigger.barrier.checkpoint, trigger.heads) == (1, SOURCES)
    (store,) = _of(do.Store, _acknowledge(coordinator, 1, 11.0))
    assert set(store.handles) == set(TASKS)
    assert coordinator.latest_completed is None
    assert _of(do.Complete, coordinator.stored(1, 12.0)) == [do.Complete(1)]
    assert coordinator.latest_completed == 1


def test_a_checkpoint_that_is_aligned_for_too_long_begins_anew_unaligned() -> None:
    """It does not count as failed, whoever asked is answered by the new one, and that one has time."""
    coordinator = _coordinator(interval=10.0, aligned_timeout=1.0)
    (first,) = _of(do.Trigger, coordinator.asked(5, 1.0))
    assert (first.barrier.alignment, first.barrier.timeout) == (Alignment.ALIGNED, 1.0)
    assert _of(do.Trigger, coordinator.time_passed(2.9)) == []
    decisions = coordinator.time_passed(3.0)
    (second,) = _of(do.Trigger, decisions)
    assert (second.barrier.checkpoint, second.barrier.alignment) == (2, Alignment.UNALIGNED)
    assert [abandon.checkpoint for abandon in _of(do.GiveUp, decisions)] == [1]
    assert _of(do.FailQuery, decisions) == []
    assert _of(do.Trigger, coordinator.time_passed(9.0)) == []
    assert _of(do.AnswerTrigger, _complete(coordinator, 2, 9.0)) == [do.AnswerTrigger(5, 2)]


def test_without_patience_checkpoints_are_unaligned_from_the_start() -> None:
    """A timeout of 0."""
    coordinator = _coordinator(interval=10.0, aligned_timeout=0.0)
    (trigger,) = _of(do.Trigger, coordinator.time_passed(10.0))
    assert trigger.barrier.alignment is Alignment.UNALIGNED


def test_a_query_that_stops_has_one_last_checkpoint() -> None:
    """It is triggered when all tasks have ended their data, and none follows that would miss those that have gone."""
    coordinator = _coordinator(interval=10.0, tolerable_failures=1)
    assert _of(do.Trigger, coordinator.stopping(1.0)) == []
    for task in TASKS[:-1]:
        assert _of(do.Trigger, coordinator.data_ended(task, 2.0)) == []
    assert _of(do.Trigger, coordinator.asked(7, 2.5)) == _of(do.Trigger, coordinator.time_passed(50.0)) == []
    (trigger,) = _of(do.Trigger, coordinator.data_ended(TASKS[-1], 51.0))
    (given_up,) = _of(do.GiveUp, coordinator.declined(1, TASKS[0], "the disk is full", 52.0))
    assert given_up.checkpoint == trigger.barrier.checkpoint == 1
    assert _of(do.Trigger, coordinator.time_passed(52.0 + FAILED_PAUSE))
    assert _of(do.Complete, _complete(coordinator, 2, 54.0)) == [do.Complete(2)]
    for task in TASKS:
        assert _of(do.Trigger, coordinator.task_finished(task, 55.0)) == []
    assert _of(do.Trigger, coordinator.time_passed(100.0)) == []
    assert coordinator.latest_completed == 2


def test_no_checkpoint_begins_anew_in_a_query_that_stops() -> None:
    """One that was under way then, and takes long: ended tasks would go with it, and the last one would lack them.

    A later start would take their sources for ended, and their rows would be lost.
    """
    coordinator = _coordinator(interval=10.0, aligned_timeout=1.0)
    assert _of(do.Trigger, coordinator.asked(5, 1.0))
    coordinator.stopping(1.5)
    coordinator.data_ended(TASKS[0], 2.0)
    decisions = coordinator.time_passed(50.0)
    assert (_of(do.Trigger, decisions), _of(do.GiveUp, decisions)) == ([], [])
    assert _of(do.AnswerTrigger, _complete(coordinator, 1, 60.0)) == [do.AnswerTrigger(5, 1)]
    for task in TASKS[1:]:
        decisions = coordinator.data_ended(task, 61.0)
    assert [trigger.barrier.checkpoint for trigger in _of(do.Trigger, decisions)] == [2]


def test_no_checkpoint_before_all_tasks_run() -> None:
    """Without a running attempt nothing is triggered, whatever is asked for; it is as soon as one runs."""
    coordinator = CheckpointCoordinator(CheckpointOptions(interval=1.0), _heads)
    assert _of(do.Trigger, coordinator.asked(5, 100.0)) == []
    assert _of(do.Trigger, coordinator.running(TASKS, 101.0))


def test_the_pause_holds_periodic_ones_back_but_not_what_is_asked_for() -> None:
    """`min_pause` counts from the end of the last one."""
    coordinator = _coordinator(interval=10.0, min_pause=30.0)
    coordinator.time_passed(10.0)
    _complete(coordinator, 1, 15.0)
    assert _of(do.Trigger, coordinator.time_passed(44.0)) == []
    assert _of(do.Trigger, coordinator.asked(1, 44.0))
    assert _of(do.AnswerTrigger, _complete(coordinator, 2, 44.5)) == [do.AnswerTrigger(1, 2)]
    assert coordinator.time_passed(60.0) == [do.WakeAt(74.5)]


def test_one_at_a_time_and_what_is_asked_meanwhile_is_joined() -> None:
    """Three calls while one is under way get one checkpoint together."""
    coordinator = _coordinator()
    coordinator.asked(1, 0.0)
    for call in (2, 3, 4):
        assert _of(do.Trigger, coordinator.asked(call, 1.0)) == []
    decisions = _complete(coordinator, 1, 2.0)
    assert _of(do.AnswerTrigger, decisions) == [do.AnswerTrigger(1, 1)]
    assert [t.barrier.checkpoint for t in _of(do.Trigger, decisions)] == [2]
    assert _of(do.AnswerTrigger, _complete(coordinator, 2, 3.0)) == [do.AnswerTrigger(call, 2) for call in (2, 3, 4)]


def test_an_expired_one_names_who_is_missing() -> None:
    """The tasks that did not answer in time are in the answer, and the tasks are told."""
    coordinator = _coordinator(timeout=60.0, tolerable_failures=1)
    coordinator.asked(9, 0.0)
    _acknowledge(coordinator, 1, 1.0, SOURCES)
    assert coordinator.time_passed(59.0) == [do.WakeAt(60.0)]
    decisions = coordinator.time_passed(60.0)
    assert [type(decision) for decision in decisions[:3]] == [do.GiveUp, do.Discard, do.AnswerTrigger]
    assert "2 of 4 tasks have not acknowledged it (sink-0, sink-1)" in decisions[2].cause
    assert coordinator.acknowledged(1, "sink-0", "late", 61.0) == [do.DiscardHandle(1, "late")]


def test_failures_in_a_row_fail_the_query() -> None:
    """A success in between starts the count again; a failure of an older one does not count."""
    coordinator = _coordinator(tolerable_failures=1)
    for round_, number in enumerate((1, 3)):
        coordinator.asked(1, round_)
        assert not _of(do.FailQuery, coordinator.declined(number, "sink-1", "disk full", round_))
        if not round_:
            coordinator.asked(1, round_)
            _complete(coordinator, 2, round_)
    coordinator.asked(1, 5.0)
    (failed,) = _of(do.FailQuery, coordinator.declined(4, "sink-0", "disk full", 5.0))
    assert failed.cause == "checkpoint 4 failed (tolerableFailedCheckpoints=1): sink-0 declined it: disk full"
    assert _of(do.Trigger, coordinator.asked(2, 6.0)) == []


@pytest.mark.parametrize(("interval", "least"), [(0.02, 30.0), (0.2, 30.0), (2.0, 30.0), (10.0, 100.0)])
def test_what_is_tolerated_lasts_for_a_while_at_any_interval(interval: float, least: float) -> None:
    """A location that is full for seconds ends no query with a short interval; what is asked for does not wait."""
    coordinator = _coordinator(interval=interval, tolerable_failures=10)
    now, failed = 0.0, False
    while not failed:
        (wake,) = _of(do.WakeAt, coordinator.time_passed(now))
        now = max(now, wake.time)
        for trigger in _of(do.Trigger, coordinator.time_passed(now)):
            failed = bool(_of(do.FailQuery, coordinator.declined(trigger.barrier.checkpoint, SINKS[0], "full", now)))
    assert least <= now < least + 60
    coordinator = _coordinator(interval=interval, tolerable_failures=10)
    for number in range(1, 4):
        assert _of(do.Trigger, coordinator.asked(number, 0.0))
        coordinator.declined(number, SINKS[0], "full", 0.0)
    assert _of(do.Trigger, coordinator.time_passed(max(interval, 5.0)))
    assert _of(do.Trigger, _complete(coordinator, 4, max(interval, 5.0) + interval)), "it is well again"


@pytest.mark.parametrize("interval", [0.05, 0.2, 1.0, 600.0, None])
@pytest.mark.parametrize("ended", [0, 1, len(TASKS)], ids=["none ended", "one ended", "all ended"])
def test_ten_failures_last_for_half_a_minute(interval: float | None, ended: int) -> None:
    """Every checkpoint is declined at once: ten are tolerated, at any interval, also when tasks' data has ended."""
    if interval is None and not ended:
        pytest.skip("nothing is triggered")
    coordinator = _coordinator(interval=interval, tolerable_failures=10)
    now = begin = 0.0 if ended else interval or 0.0
    decisions = coordinator.time_passed(now)
    for task in TASKS[:ended]:
        decisions += coordinator.data_ended(task, now)
    failures = 0
    while not _of(do.FailQuery, decisions):
        triggers = _of(do.Trigger, decisions)
        if not triggers:
            (*_, wake) = _of(do.WakeAt, decisions)
            now = max(now, wake.time)
        failures += len(triggers)
        decisions = [
            each
            for trigger in triggers
            for each in coordinator.declined(trigger.barrier.checkpoint, TASKS[0], "no space", now)
        ] or coordinator.time_passed(now)
        coordinator.check()
    assert failures == 11
    assert now - begin >= 30.0


def test_tasks_that_read_logs_get_a_barrier_at_once() -> None:
    """When they are there, and again where they came in the middle of one: that is no failure, nor are its echoes."""
    coordinator = _coordinator(interval=10.0, hastens=True)
    coordinator.fell_short("died", 3.0)
    (first,) = _of(do.Trigger, coordinator.complete_again(4.0))
    coordinator.asked(7, 4.0)
    assert coordinator.declined(first.barrier.checkpoint, SINKS[1], IN_FRONT, 4.0) == []
    decisions = coordinator.declined(first.barrier.checkpoint, SINKS[0], CAME_IN_THE_MIDDLE, 4.0)
    (second,) = _of(do.Trigger, decisions)
    assert [each.checkpoint for each in _of(do.GiveUp, decisions)] == [first.barrier.checkpoint]
    assert _of(do.FailQuery, decisions) == []
    answers = _of(do.AnswerTrigger, _complete(coordinator, second.barrier.checkpoint, 5.0))
    assert answers == [do.AnswerTrigger(7, second.barrier.checkpoint)]


def test_a_metadata_that_could_not_be_written_is_a_failure() -> None:
    """The storage's reason reaches whoever asked."""
    coordinator = _coordinator(tolerable_failures=5)
    coordinator.asked(1, 0.0)
    _acknowledge(coordinator, 1, 1.0)
    (answer,) = _of(do.AnswerTrigger, coordinator.store_failed(1, "read-only file system", 2.0))
    assert answer == do.AnswerTrigger(1, None, "it could not be stored: read-only file system")


def test_what_is_being_stored_is_never_given_up() -> None:
    """Nobody can tell whether it exists: neither a time-out nor a restart drops it, and a restart waits for it."""
    coordinator = _coordinator(timeout=10.0)
    coordinator.asked(1, 0.0)
    _acknowledge(coordinator, 1, 1.0)
    assert not coordinator.is_settled
    assert _of(do.GiveUp, [*coordinator.time_passed(100.0), *coordinator.interrupted("a task was lost", 101.0)]) == []
    with pytest.raises(ValueError, match="being written"):
        coordinator.running(TASKS, 102.0)
    assert _of(do.Complete, coordinator.stored(1, 103.0))
    coordinator.running(TASKS, 104.0)
    assert coordinator.latest_completed == 1


def test_a_restart_gives_up_what_is_collected_and_keeps_what_was_asked() -> None:
    """No failure is counted; the next attempt's first checkpoint answers."""
    coordinator = _coordinator(tolerable_failures=0)
    coordinator.asked(1, 0.0)
    _acknowledge(coordinator, 1, 0.5, SOURCES)
    decisions = coordinator.interrupted("a task was lost", 1.0)
    assert [type(decision) for decision in decisions] == [do.GiveUp, do.Discard]
    assert _of(do.Trigger, coordinator.running(TASKS, 2.0))
    assert _of(do.AnswerTrigger, _complete(coordinator, 2, 3.0)) == [do.AnswerTrigger(1, 2)]
    assert coordinator.acknowledged(1, "sink-0", "late", 4.0) == [do.DiscardHandle(1, "late")]


def test_a_newer_one_that_completes_first_subsumes_the_older() -> None:
    """The older is given up without a failure, and who asked for it is answered with the newer."""
    coordinator = _coordinator(max_concurrent=2)
    coordinator.asked(1, 0.0)
    coordinator.asked(2, 1.0)
    decisions = _complete(coordinator, 2, 2.0)
    assert _of(do.AnswerTrigger, decisions) == [do.AnswerTrigger(2, 2), do.AnswerTrigger(1, 2)]
    assert [a.checkpoint for a in _of(do.GiveUp, decisions)] == [1]


def test_only_the_retained_ones_are_kept() -> None:
    """The oldest completed one is discarded when there are more than retained."""
    coordinator = _coordinator(retained=2)
    discarded = []
    for number in range(1, 6):
        coordinator.asked(number, float(number))
        discarded += [d.checkpoint for d in _of(do.Discard, _complete(coordinator, number, float(number)))]
    assert discarded == [1, 2, 3]


def test_the_end_of_data_asks_for_one_more_checkpoint() -> None:
    """Tasks whose data has ended take part in it, and go when it is complete; the next one begins after them."""
    coordinator = _coordinator()
    assert _of(do.Trigger, coordinator.data_ended("source-0", 1.0))
    coordinator.data_ended("source-1", 1.5)
    decisions = _complete(coordinator, 1, 2.0)
    assert _of(do.Complete, decisions)
    (again,) = _of(do.Trigger, decisions)  # for source-1, whose word came after the first one was triggered
    assert again.barrier.checkpoint == 2
    assert coordinator.task_finished("source-0", 2.5) == [do.WakeAt(601.0 + 1.0)]
    (behind,) = _of(do.Trigger, coordinator.task_finished("source-1", 3.0))
    assert (behind.barrier.checkpoint, behind.heads) == (2, SINKS)
    (store,) = _of(do.Store, _acknowledge(coordinator, 2, 4.0, SINKS))
    assert store.finished == {"source-0", "source-1"}


def test_no_periodic_checkpoint_when_all_data_has_ended() -> None:
    """Tasks stay until each that they took part in is settled: one after the other would keep them for ever."""
    coordinator = _coordinator(interval=1.0, max_concurrent=3)
    for now in (1.0, 2.0):
        assert _of(do.Trigger, coordinator.time_passed(now))
    for task in TASKS:
        coordinator.data_ended(task, 2.5)
    coordinator.time_passed(100.0)
    while coordinator.pending:
        _complete(coordinator, coordinator.pending[0], 100.0)
    assert coordinator.latest_completed == 4, "one when the first had ended, one when all had"
    assert coordinator.time_passed(200.0) == []
    assert not coordinator.has_all_data, "tasks that are let go have ended all the same"
    coordinator.interrupted("a task was lost", 201.0)
    assert _of(do.WakeAt, coordinator.running(TASKS, 202.0)) == [do.WakeAt(203.0)], "it reads again"


def test_ended_tasks_get_another_try_after_a_failure() -> None:
    """The checkpoint that they wait for is tried again, not in a tight loop."""
    coordinator = _coordinator(tolerable_failures=3)
    coordinator.data_ended("sink-0", 0.0)
    decisions = coordinator.declined(1, "sink-1", "disk full", 1.0)
    assert _of(do.Trigger, decisions) == []
    assert _of(do.WakeAt, decisions) == [do.WakeAt(1.0 + FAILED_PAUSE)]
    assert _of(do.Trigger, coordinator.time_passed(1.0 + FAILED_PAUSE))


def test_numbers_go_on_after_those_of_an_earlier_driver() -> None:
    """A query that is taken up again begins after the newest checkpoint it found."""
    coordinator = CheckpointCoordinator(CheckpointOptions(retained=2), _heads)
    coordinator.restored([40, 41])
    coordinator.running(TASKS, 0.0)
    (trigger,) = _of(do.Trigger, coordinator.asked(1, 0.0))
    assert trigger.barrier.checkpoint == 42
    assert [d.checkpoint for d in _of(do.Discard, _complete(coordinator, 42, 1.0))] == [40]


def test_the_end_of_the_query_answers_everybody() -> None:
    """Nobody waits for a checkpoint of a query that is over."""
    coordinator = _coordinator()
    coordinator.asked(1, 0.0)
    coordinator.asked(2, 0.0)
    answers = _of(do.AnswerTrigger, coordinator.closed("the query was stopped", 1.0))
    assert sorted(answer.call for answer in answers) == [1, 2]
    assert {answer.checkpoint for answer in answers} == {None}


class _History:
    """A query driven by random events; storage and tasks answer late, twice, or not at all."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        options = CheckpointOptions(
            interval=1.0, timeout=5.0, max_concurrent=self.random.randint(1, 3), tolerable_failures=10**9, retained=3
        )
        self.coordinator = CheckpointCoordinator(options, _heads)
        self.words: list[tuple] = []
        self.completed: list[int] = []
        self.restarts = 0
        self.take(self.coordinator.running(TASKS, self.now))

    def take(self, decisions: list[do.Decision]) -> None:
        for decision in decisions:
            match decision:
                case do.Trigger(barrier, _):
                    for task in TASKS:
                        if self.random.random() < 0.97:
                            self.words.append(("acknowledged", barrier.checkpoint, task))
                    if self.random.random() < 0.02:
                        self.words.append(("declined", barrier.checkpoint, "sink-0"))
                case do.Store(checkpoint, handles, finished):
                    assert set(handles) | finished == set(TASKS)
                    self.words.append(("stored" if self.random.random() < 0.97 else "store_failed", checkpoint, None))
                case do.Complete(checkpoint):
                    assert not self.completed or checkpoint > self.completed[-1]
                    self.completed = [checkpoint]
        self.coordinator.check()

    def step(self) -> None:
        self.now += self.random.expovariate(10.0)
        if self.words and self.random.random() < 0.9:
            kind, checkpoint, task = self.words.pop(self.random.randrange(min(len(self.words), 12)))
            match kind:
                case "acknowledged":
                    self.take(self.coordinator.acknowledged(checkpoint, task, "handle", self.now))
                case "declined":
                    self.take(self.coordinator.declined(checkpoint, task, "no", self.now))
                case "stored":
                    self.take(self.coordinator.stored(checkpoint, self.now))
                case "store_failed":
                    self.take(self.coordinator.store_failed(checkpoint, "no", self.now))
        else:
            self.take(self.coordinator.time_passed(self.now))

    def restart(self) -> None:
        self.restarts += 1
        self.take(self.coordinator.interrupted("a task was lost", self.now))
        while not self.coordinator.is_settled:
            self.step()
        self.take(self.coordinator.running(TASKS, self.now))


@pytest.mark.parametrize("seed", range(30))
def test_random_histories_keep_the_invariants(seed: int) -> None:
    """Words that come late, twice or never, failing storage and restarts: numbers only grow, and it goes on."""
    history = _History(seed)
    for _ in range(600):
        history.step()
        if history.random.random() < 0.01:
            history.restart()
    assert history.completed
    assert history.coordinator.latest_completed == history.completed[-1]


def test_ten_thousand_checkpoints_and_a_hundred_restarts_hold_no_more_memory() -> None:
    """The coordinator's memory after months is what it was after the first hundred checkpoints."""
    history = _History(7)

    def run_to(checkpoint: int) -> int:
        while not history.completed or history.completed[-1] < checkpoint:
            history.step()
            del history.words[:-40]
            if history.completed and history.completed[-1] // 100 > history.restarts:
                history.restart()
        return len(pickle.dumps(history.coordinator))

    early, late = run_to(100), run_to(10_000)
    assert history.restarts >= 99
    assert late < 2 * early, f"{late} bytes, {early} at first"
