# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's core with rows, under random orders and failures: every job ends, once, with every row once."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import again_as
from effort import THOROUGH, examples
from job_graphs import (
    BLOCKING,
    HYBRID,
    PIPELINED,
    SELECTIVE,
    chain,
    diamondless,
    mixed,
    open_sink,
    pipeline,
    side_by_side,
    two_stages,
    word_count,
)
from penstock.errors import FailureKind, JobCancelledError
from penstock.graph.job_graph import JobGraph
from penstock.graph.regions import regions, slots_needed
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import DeadlineKind
from penstock.job.core.ids import SparkJobKind, TaskId
from penstock.link.master import TaskEnd, TaskFinished
from penstock.settings import RestartSettings
from row_model import RowCluster, Running

EVER = RestartSettings("fixed", 1_000_000, user_errors=1_000_000)
STARVED = (DeadlineKind.SLOTS, DeadlineKind.DEPLOY, DeadlineKind.LEASED)
HARMLESS = tuple(kind for kind in DeadlineKind if kind not in STARVED)
"""The deadlines of the JobMaster's own patience; those of slots mean that somebody starved."""

SMALL = {
    "blocking": (word_count(BLOCKING), 2),
    "hybrid_full": (word_count(HYBRID), 2),
    "hybrid_selective": (word_count(SELECTIVE), 2),
    "pipelined": (word_count(PIPELINED), 4),
    "mixed": (mixed(), 4),
    "a pipelined pair with hybrid readers": (chain(2, 1, 2, 1, kinds=(PIPELINED, HYBRID, HYBRID)), 3),
    "a DataFrame with hybrid readers": (chain(2, 2, kinds=(HYBRID,), frame=True), 2),
}

GRAPHS: list[JobGraph] = [
    pipeline(result=True),
    pipeline(dataframe=True, result=True),
    pipeline(2, 1, result=True),
    diamondless(),
    two_stages(),
    two_stages(2, 3, result=False),
    open_sink(),
    open_sink(dataframe=True),
    mixed(),
    side_by_side(2, 3),
    chain(2, 2, kinds=(HYBRID,), frame=True),
    chain(3, 2, 4, kinds=(HYBRID, SELECTIVE)),
    chain(2, 1, 2, 1, kinds=(PIPELINED, HYBRID, HYBRID)),
    chain(2, 2, 2, kinds=(BLOCKING, HYBRID), frame=True),
    chain(4, 4, 4, kinds=(PIPELINED, HYBRID), how="rescale"),
    chain(2, 2, 2, kinds=(HYBRID, PIPELINED)),
    chain(1, 2, 2, 1, kinds=(SELECTIVE, BLOCKING, PIPELINED)),
]
SLOTS = 8


class World(RowCluster):
    """A cluster in which anything may happen next."""

    def __init__(self, seed: int, slots: int, hosts: int = 2) -> None:
        dice = Random(seed)
        unsteady = frozenset({0, 1, 2}) if seed % 2 else frozenset[int]()
        super().__init__(dice, slots, [f"e{number}" for number in range(hosts)], unsteady)
        self.hosts = hosts
        self.pace = dice.choice([0.01, 0.4, 2.0])

    def add(self, job: str, graph: JobGraph, restart: RestartSettings = EVER) -> None:
        """Submit a job, and do nothing yet of what follows."""
        self.note_graph(job, graph)
        self.send(events.JobSubmitted(job, graph, self.slots, 60, 1 << 20, restart))

    def go_on(self) -> bool:
        """One undisturbed thing happens, whatever comes to hand; False when there is none."""
        able = self.able()
        steps = len(self.todo) + self.may_begin
        if not able and not steps:
            return False
        number = self.dice.randrange(len(able) + steps)
        if number < len(able):
            self.act(*able[number])
        else:
            self.step(self.dice.randrange)
        return True

    def finish_undisturbed(self) -> None:
        """No more failures: all that is under way comes to its end. Deadlines pass only when all else rests."""
        for _ in range(20_000):
            if self.go_on():
                continue
            if not self.core.jobs:
                return
            patient = sorted(entry for entry in self.deadlines if entry[2].kind in HARMLESS)
            assert patient, f"nothing moves: {self.describe()}"
            self.deadlines.remove(patient[0])
            self.now = max(self.now, patient[0][0])
            self.send(events.DeadlinePassed(*patient[0][1:]))
        raise AssertionError(f"it never ends: {self.describe()}")

    def describe(self) -> str:
        """The state of everything, for a message."""
        jobs = {job: self.working(job) for job in self.core.jobs}
        last = {job: [entry[1:] for entry in self.core.trace(job)[-8:]] for job in self.core.jobs}
        return f"working {jobs}, held {self.core.slots_in_use} of {self.slots}, queue {list(self.queue)}, last {last}"

    # --- failures

    def trouble(self) -> None:
        """Something breaks that the job must survive."""
        kinds = [self.die, self.die, self.lose_host, self.lose_file, self.stop, self.crash, self.stumble]
        kinds += [self.die_unseen, self.die_reporting, self.cut_off, self.lose_host_unseen, self.change_slots]
        self.dice.choice(kinds)()

    def die(self) -> None:
        """A process dies."""
        if self.tasks:
            self.lose(self.dice.choice(self.tasks), retried=self.dice.random() < 0.7)

    def lose_host(self) -> None:
        """An environment is gone; another one takes its place."""
        if self.dice.random() < 0.4:
            self.hosts += 1
            self.lose_environment(self.dice.choice(self.environments), f"e{self.hosts}")

    def die_unseen(self) -> None:
        """A process dies, and Spark's next attempt of its task may be there before anybody says so."""
        if self.tasks:
            task = self.dice.choice(self.tasks)
            lost = task.attempt or task.identity
            self._drop(task)
            self._retry(task)
            self._plan("lost", lambda: self._say_lost(lost))

    def die_reporting(self) -> None:
        """A process dies while its report is under way: its environment names the attempt, then the worker."""
        found = [running for running in self.at_work() if running.written]
        if not found:
            return
        running = self.dice.choice(found)
        task, attempt = self._task_of(running.attempt), running.attempt
        del self.running[attempt]
        self._drop(task)
        self._retry(task)

        def reported() -> None:
            sizes = {edge: tuple(size) for edge, size in running.sizes.items()}
            self.send(TaskFinished(attempt, TaskEnd.FINISHED, {}, sizes, running.fingerprints, left=running.left))
            if task.identity != attempt:
                self._plan("lost", lambda: self._say_lost(task.identity))

        self._plan("lost", lambda: self._say_lost(attempt))
        self._plan("reported", reported)

    def cut_off(self) -> None:
        """Spark ends a DataFrame's task in mid-data, which reports a good end, and runs it again."""
        found = [running for running in self.at_work() if running.spark_job.kind is SparkJobKind.DATAFRAME]
        found = [running for running in found if not running.written]
        if found:
            self.dice.choice(found).cut_off = True

    def lose_host_unseen(self) -> None:
        """An environment is gone, which is seen later. Its tasks are tried again; some only ask elsewhere."""
        if self.dice.random() < 0.4:
            self.hosts += 1
            name, other = self.dice.choice(self.environments), f"e{self.hosts}"
            self.environments = [other if known == name else known for known in self.environments]
            gone = {item for item, descriptor in self.known.items() if descriptor.environment == name}
            self.unseen |= gone - self.lost
            self.lost |= gone
            for task in [task for task in self.tasks if task.environment == name]:
                if task.call is not None and self.dice.random() < 0.5:
                    self.hung_up.add(task.call)
                    task.environment, task.call = other, None
                    self._plan("ask", lambda task=task: self._ask(task), task)
                else:
                    self._drop(task)
                    self._retry(task)

            def seen() -> None:
                self.unseen -= {item for item in self.unseen if self.known[item].environment == name}
                self.send(events.EnvironmentLost(name, "no heartbeat"))

            self._plan("host", seen)

    def change_slots(self) -> None:
        """Slots go or come, as many as each job can run with are left; those who ran there are tried again.

        Producers without an end would keep those that their readers need.
        """
        if not self.endless and self.dice.random() < 0.4:
            total = self.dice.randint(max(map(_fewest_slots, self.graphs.values())), self.slots)
            self.gone = self.slots - total
            while len(self.tasks) > total:
                self.lose(self.dice.choice(self.tasks))
            self._plan("slots", lambda: self._tell_slots(total))

    def _tell_slots(self, total: int) -> None:
        if total == self.slots - self.gone:
            self.send(events.SlotsChanged(total))

    def lose_file(self) -> None:
        """A partition is gone."""
        there = [item for item in sorted(self.known) if item not in self.lost and item not in self.released]
        if there:
            partition = self.dice.choice(there)
            self.lost.add(partition)
            self.send(events.PartitionsLost((partition,), "disk gone"))

    def stop(self) -> None:
        """Spark stops a task, which says so."""
        running = self.pick()
        if running is not None:
            self._die(self.running.pop(running.attempt))
            self.report(self._task_of(running.attempt), state=TaskEnd.CANCELED, error="the worker is being stopped")

    def stumble(self) -> None:
        """User code raises."""
        running = self.pick()
        if running is not None:
            self._die(self.running.pop(running.attempt))
            self.report(self._task_of(running.attempt), state=TaskEnd.FAILED, error="boom", failure=FailureKind.CAUSE)

    def crash(self) -> None:
        """A Spark job of workers fails with all its tasks."""
        launched = sorted(key for key in self.open if key[1].kind is SparkJobKind.WORKERS)
        if launched and self.dice.random() < 0.3:
            self.kill_spark_job(*self.dice.choice(launched), "a Python worker exited unexpectedly", cancelled=False)

    def pick(self) -> Running | None:
        """Somebody at work."""
        found = self.at_work()
        return self.dice.choice(found) if found else None

    # --- more than failures

    def chaos(self) -> None:
        """Something happens that may end a job, or that should not happen at all."""
        job = self.dice.choice(sorted(self.graphs))
        match self.dice.randrange(8):
            case 0:
                self.send(events.CancelRequested(job, "no longer wanted"))
            case 1 if self.deadlines:
                entry = self.dice.choice(self.deadlines)
                self.deadlines.remove(entry)
                self.send(events.DeadlinePassed(*entry[1:]))
            case 2 if self.open:
                key = self.dice.choice(sorted(self.open))
                cancelled = self.dice.random() < 0.5
                self.kill_spark_job(*key, "cancelled" if cancelled else "no space left", cancelled=cancelled)
            case 3 if self.tasks:
                self.duplicate()
            case 4 if self.todo and any(step.name == "register" for step in self.todo):
                self.refuse()
            case 5 if self.deployments:
                attempt = self.dice.choice(sorted(self.deployments))
                self.send(events.ProducersAwaited(self.call(), attempt))
            case 6 if self.tasks:
                idle = [task for task in self.tasks if task.call is not None]
                if idle:
                    self._ask(self.dice.choice(idle))
            case _:
                self.stale()

    def duplicate(self) -> None:
        """Spark starts a second attempt of a task; its process dies some day without a word."""
        task = self.dice.choice(self.tasks)
        call = self.call()
        self._attempts += 1
        identity = again_as(task.identity, self._attempts)
        self.hung_up.add(call)
        environment = self.dice.choice(self.environments)
        self.send(events.TaskRegistered(call, identity, environment, "tcp://x:1", task.spark_job))
        self._plan("lost", lambda: self._duplicate_dies(identity))

    def _duplicate_dies(self, identity: TaskId) -> None:
        # It may have got the place of the first attempt and an attempt to work on, of which nobody else knows.
        self.send(events.TaskGone(identity, "killed"))

    def refuse(self) -> None:
        """A ShuffleMaster refuses a partition."""
        pending = [step for step in self.todo if step.name == "register"]
        step = self.dice.choice(pending)
        self.todo.remove(step)
        assert isinstance(step.key, do.RegisterPartition)
        self.send(events.PartitionRefused(step.key.producer.attempt, "no room"))

    def stale(self) -> None:
        """Somebody speaks of an attempt that is no more, or not yet."""
        if self.deployments:
            attempt = self.dice.choice(sorted(self.deployments))
            if attempt not in self.running and all(task.attempt != attempt for task in self.tasks):
                self.send(TaskFinished(attempt, TaskEnd.FINISHED))
                self.send(events.TaskGone(attempt, "late"))

    def check(self, jobs: list[str]) -> None:
        """One end for each job, one answer for each call, every partition accounted for, nothing kept."""
        assert self.core.jobs == []
        assert self.ends == Counter(dict.fromkeys(jobs, 1))
        self.check_answers()
        for job in jobs:
            if self.ended[job].error is None:
                counted, expected = self.counted[job], self.expected_rows(job)
                assert counted <= expected if self.modest else counted == expected
                self.send(events.ResultReleased(job))
        assert len(self.core.tracker) == 0
        assert self.core.slots_in_use == 0
        assert max(self.released.values(), default=0) <= 1
        assert set(self.released) <= set(self.known)
        assert set(self.known) - set(self.released) <= self.lost


def _fewest_slots(graph: JobGraph) -> int:
    return max(slots_needed(graph, region) for region in regions(graph))


ORDERS = 1000 if THOROUGH else 40
"""Of each shape, so that a run sees a thousand."""


@pytest.mark.parametrize("name", SMALL)
def test_two_and_two_tasks_on_few_slots_in_seeded_orders(name: str) -> None:
    """Random orders of completion and failures: no deadlock, no starvation, every row once."""
    graph, slots = SMALL[name]
    restarts = 0
    for seed in range(ORDERS):
        world = World(seed, slots)
        world.add("j1", graph)
        try:
            calm = world.dice.choice([0.85, 0.94])
            for _ in range(world.dice.randrange(70)):
                world.go_on() if world.dice.random() < calm else world.trouble()
            world.finish_undisturbed()
            assert world.ended["j1"].error is None
            restarts += len(world.trace("restart"))
            world.check(["j1"])
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert restarts > ORDERS / 2, "the failures were none"


MODEST = {
    "a limit": (chain(2, 2, 1, kinds=(PIPELINED, PIPELINED)), {2}, {0}),
    "a limit behind hybrid exchanges": (chain(2, 2, 1, kinds=(HYBRID, SELECTIVE)), {2}, {0}),
    "a limit in the middle": (chain(2, 2, 2, 1, kinds=(HYBRID, PIPELINED, HYBRID)), {1}, {0}),
    "a limit over a DataFrame": (chain(2, 2, 1, kinds=(PIPELINED, HYBRID), frame=True), {1, 2}, {0}),
    "a limit that may have all": (chain(2, 2, 2, 1, kinds=(HYBRID, BLOCKING, PIPELINED)), {1, 3}, set[int]()),
    "a limit beside one that reads all": (mixed(), {4}, set[int]()),
}
"""Graphs, the vertices that may have enough, and those without an end."""


@pytest.mark.parametrize("name", MODEST)
def test_whoever_is_not_wanted_any_more_ends_in_seeded_orders(name: str) -> None:
    """Readers that had enough, producers without an end, failures in between: the job ends, no row comes twice."""
    graph, modest, endless = MODEST[name]
    told = restarts = 0
    for seed in range(ORDERS):
        world = World(seed, 8)
        world.modest, world.endless = frozenset(modest), frozenset(endless)
        world.add("j1", graph)
        try:
            calm = world.dice.choice([0.85, 0.94, 1.0])
            for _ in range(world.dice.randrange(70)):
                world.go_on() if world.dice.random() < calm else world.trouble()
            world.finish_undisturbed()
            assert world.ended["j1"].error is None
            told += len(world.trace("task_not_wanted"))
            restarts += len(world.trace("restart"))
            world.check(["j1"])
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert told > ORDERS / 4, "nobody was told"
    assert restarts > ORDERS / 3, "the failures were none"


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 1 << 40), st.lists(st.sampled_from(GRAPHS), min_size=1, max_size=3), st.integers(0, 120))
def test_from_any_state_undisturbed_jobs_finish(seed: int, graphs: list[JobGraph], steps: int) -> None:
    """Several jobs beside each other; whatever broke before, when it stops all end well, with every row once."""
    world = World(seed, SLOTS, hosts=3)
    jobs = [f"j{number}" for number in range(len(graphs))]
    for job, graph in zip(jobs, graphs, strict=True):
        world.add(job, graph)
    for _ in range(steps):
        world.go_on() if world.dice.random() < 0.85 else world.trouble()
    world.finish_undisturbed()
    assert {job: world.ended[job].error for job in jobs} == dict.fromkeys(jobs)
    world.check(jobs)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 1 << 40), st.lists(st.sampled_from(GRAPHS), min_size=1, max_size=3), st.integers(0, 150))
def test_whatever_happens_every_job_ends_once(seed: int, graphs: list[JobGraph], steps: int) -> None:
    """Cancels, refusals, deadlines, duplicates and late words, too; nothing leaks; at last all is cancelled."""
    world = World(seed, SLOTS)
    jobs = [f"j{number}" for number in range(len(graphs))]
    for job, graph in zip(jobs, graphs, strict=True):
        world.add(job, graph, world.dice.choice([EVER, RestartSettings(), RestartSettings("none")]))
    for _ in range(steps):
        chance = world.dice.random()
        if chance < 0.8:
            world.go_on()
        elif chance < 0.9:
            world.trouble()
        else:
            world.chaos()
    for job in jobs:
        world.send(events.CancelRequested(job, "the test is over"))
    world.finish_undisturbed()
    world.check(jobs)
    for job in jobs:
        error = world.ended[job].error
        assert error is None or isinstance(error, JobCancelledError) or str(error)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from(GRAPHS))
def test_an_undisturbed_job_runs_every_subtask_once(seed: int, graph: JobGraph) -> None:
    """In any order of what happens: no restart, one attempt for each subtask, the partitions of the result kept."""
    world = World(seed, SLOTS)
    world.add("j1", graph)
    world.finish_undisturbed()
    assert world.ended["j1"].error is None
    assert world.trace("restart") == []
    deployed = list(world.deployments)
    assert len(deployed) == len({(attempt.vertex, attempt.subtask) for attempt in deployed})
    world.check(["j1"])
