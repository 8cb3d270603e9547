# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's core under random interleavings: jobs always end, calls are answered once, nothing leaks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from job_graphs import diamondless, open_sink, pipeline, two_stages

from penstock.graph.deployment import TaskDeployment
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.master_core import MasterCore
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor

GRAPHS = [pipeline(), pipeline(dataframe=True, result=True), pipeline(2, 1, result=True), diamondless()]
GRAPHS += [two_stages(), two_stages(2, 3, result=False), open_sink(), open_sink(dataframe=True)]
SLOTS = 8


class World:
    """Tasks, environments and Spark as random actors around a core."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.core = MasterCore("results")
        self.now = 0.0
        self.registrations: list[do.RegisterPartition] = []
        self.parts: set[tuple[str, int]] = set()
        self.tasks: set[tuple[str, int, int]] = set()
        self.deployed: set[AttemptId] = set()
        self.deadlines: set[tuple[str, str]] = set()
        self.asked: set[int] = set()
        self.answers: Counter[int] = Counter()
        self.ended: Counter[str] = Counter()
        self.kept: dict[str, tuple[ShuffleDescriptor, ...]] = {}
        self.known: dict[PartitionId, str] = {}
        self.lost: set[PartitionId] = set()
        self.started: set[AttemptId] = set()
        self.released: Counter[PartitionId] = Counter()
        self.graphs = {f"j{i + 1}": data.draw(st.sampled_from(GRAPHS)) for i in range(data.draw(st.integers(1, 3)))}
        self.attempts = 0

    def send(self, event: events.Event) -> None:
        """Handle an event and note what it led to."""
        self.now += 1
        for instruction in self.core.handle(event, self.now):
            self.note(instruction)

    def note(self, instruction: do.Instruction) -> None:
        """Keep the books."""
        match instruction:
            case do.LaunchSparkJobs(job, _, parts):
                self.parts |= {(job, part.part) for part in parts}
                self.tasks |= {(job, *place) for part in parts for place in part.subtasks}
            case do.RegisterPartition():
                self.registrations.append(instruction)
            case do.AnswerRegistration(call, attempt, answer):
                self.answers[call] += 1
                if isinstance(answer, TaskDeployment):
                    self.deployed.add(attempt)
            case do.AnswerProducers(call):
                self.answers[call] += 1
            case do.StartDeadline(job, what):
                self.deadlines.add((job, what))
            case do.ReleasePartitions(_, descriptors):
                self.released.update(item.partition for item in descriptors)
            case do.CompleteJob(job, _, partitions):
                self.ended[job] += 1
                self.kept[job] = tuple(item for item in partitions if not item.empty)
            case do.FailJob(job) | do.RefuseJob(job):
                self.ended[job] += 1
            case _:
                pass

    def step(self) -> None:
        """One random thing happens."""
        actions = [self.register, self.duplicate, self.answer_registration, self.finish, self.consumable, self.spark]
        actions += [self.register, self.answer_registration, self.finish, self.await_producers, self.trouble]
        self.data.draw(st.sampled_from(actions))()

    def call(self) -> int:
        """A new call."""
        self.asked.add(len(self.asked) + 1)
        return len(self.asked)

    def register(self) -> None:
        """A task starts."""
        if self.tasks:
            job, vertex, subtask = self.data.draw(st.sampled_from(sorted(self.tasks)))
            self.attempts += 1
            attempt = AttemptId(job, vertex, subtask, self.attempts)
            environment = self.data.draw(st.sampled_from(["a", "b"]))
            self.started.add(attempt)
            self.send(events.TaskRegistered(self.call(), attempt, environment, "tcp://x:1"))

    def duplicate(self) -> None:
        """A registration comes twice."""
        if self.deployed:
            attempt = self.data.draw(st.sampled_from(sorted(self.deployed)))
            self.send(events.TaskRegistered(self.call(), attempt, "a", "tcp://x:1"))

    def answer_registration(self) -> None:
        """A ShuffleMaster answers, in any order; sometimes with an error."""
        if not self.registrations:
            return
        index = self.data.draw(st.integers(0, len(self.registrations) - 1))
        item = self.registrations.pop(index)
        attempt = item.producer.attempt
        if self.data.draw(st.integers(0, 19)) == 0:
            self.send(events.PartitionRefused(attempt, "no room"))
            return
        identity = PartitionId(item.partition.dataset, item.partition.index, attempt.attempt)
        self.known[identity] = item.producer.environment
        descriptor = ShuffleDescriptor(identity, item.service, item.partition.kind, item.producer.environment)
        self.send(events.PartitionRegistered(attempt, item.edge, descriptor))

    def finish(self) -> None:
        """A task ends, mostly well and mostly after it was deployed."""
        candidates = self.deployed if self.data.draw(st.integers(0, 9)) else self.started
        if candidates:
            attempt = self.data.draw(st.sampled_from(sorted(candidates)))
            state = self.data.draw(st.sampled_from(["FINISHED"] * 8 + ["FAILED", "CANCELED"]))
            self.send(events.TaskFinished(attempt, state, {}, "boom", "ValueError", self.sizes(attempt)))

    def sizes(self, attempt: AttemptId) -> dict[int, list[int]]:
        """The bytes of the subpartitions of what it wrote."""
        graph = self.graphs.get(attempt.job)
        if graph is None or attempt.vertex != 0 or graph.name != "open sink":
            return {}
        return {0: [self.data.draw(st.integers(0, 1 << 26)) for _ in range(16)]}

    def consumable(self) -> None:
        """A partition's first buffer is there."""
        if self.known:
            self.send(events.PartitionConsumable(self.data.draw(st.sampled_from(sorted(self.known)))))

    def await_producers(self) -> None:
        """A consumer asks for confirmation."""
        if self.deployed:
            attempt = self.data.draw(st.sampled_from(sorted(self.deployed)))
            self.send(events.ProducersAwaited(self.call(), attempt))

    def spark(self) -> None:
        """A Spark job returns, mostly well."""
        if self.parts:
            job, part = self.data.draw(st.sampled_from(sorted(self.parts)))
            self.parts.discard((job, part))
            how = self.data.draw(st.sampled_from(["ok"] * 6 + ["error", "cancelled"]))
            error = None if how == "ok" else how
            self.send(events.SparkJobReturned(job, part, error, how == "cancelled"))

    def trouble(self) -> None:
        """Something bad happens, not too often."""
        job = self.data.draw(st.sampled_from(sorted(self.graphs)))
        kind = self.data.draw(st.integers(0, 9))
        if kind == 0:
            self.send(events.CancelRequested(job, "no longer wanted"))
        elif kind == 1:
            environment = self.data.draw(st.sampled_from(["a", "b"]))
            self.lost |= {partition for partition, holder in self.known.items() if holder == environment}
            self.send(events.EnvironmentLost(environment, "gone"))
        elif kind == 2 and self.started:
            self.send(events.TaskLost(self.data.draw(st.sampled_from(sorted(self.started))), "killed"))
        elif kind == 3 and self.known:
            partition = self.data.draw(st.sampled_from(sorted(self.known)))
            self.lost.add(partition)
            self.send(events.PartitionsLost((partition,), "disk gone"))
        elif kind == 4 and self.deadlines:
            self.send(events.DeadlinePassed(*self.data.draw(st.sampled_from(sorted(self.deadlines)))))

    def drain(self) -> None:
        """Time passes: every ShuffleMaster answers, every Spark job returns, every deadline goes by."""
        for _ in range(20):
            for item in self.registrations:
                self.send(events.PartitionRefused(item.producer.attempt, "too late"))
            self.registrations.clear()
            for job, what in sorted(self.deadlines):
                self.deadlines.discard((job, what))
                self.send(events.DeadlinePassed(job, what))
            for job in self.core.jobs:
                self.send(events.CancelRequested(job, "the test is over"))
            if not self.core.jobs:
                return


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_job_ends_and_nothing_leaks(data: st.DataObject) -> None:
    """Whatever happens in whatever order: one end per job, one answer per call, every partition accounted for."""
    world = World(data)
    for job, graph in world.graphs.items():
        world.send(events.JobSubmitted(job, graph, SLOTS, 60))
    for _ in range(data.draw(st.integers(0, 60))):
        world.step()
        assert world.core.slots_in_use <= SLOTS
    world.drain()
    assert world.core.jobs == []
    assert world.ended == Counter(dict.fromkeys(world.graphs, 1))
    assert world.answers == Counter(dict.fromkeys(world.asked, 1))
    for job in world.kept:
        world.send(events.ResultReleased(job))
    assert len(world.core.tracker) == 0
    assert max(world.released.values(), default=0) <= 1
    assert set(world.released) <= set(world.known)
    assert set(world.known) - set(world.released) <= world.lost


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(range(len(GRAPHS))))
def test_undisturbed_job_finishes(data: st.DataObject, number: int) -> None:
    """In any order of registrations, first buffers, ends and returns, an undisturbed job finishes well."""
    world = World(data)
    world.graphs = {"j1": GRAPHS[number]}
    world.send(events.JobSubmitted("j1", GRAPHS[number], SLOTS, 60))
    while not world.ended:
        _run_region(world)
    assert list(world.kept) == ["j1"]
    assert world.answers == Counter(dict.fromkeys(world.asked, 1))
    left = {item.partition for item in world.kept["j1"]}
    assert set(world.known) - set(world.released) == left


def _run_region(world: World) -> None:
    """What was launched last runs to its end."""
    data, before = world.data, set(world.deployed)
    steps, world.tasks = sorted(world.tasks), set()
    for job, vertex, subtask in data.draw(st.permutations(steps)):
        world.attempts += 1
        attempt = AttemptId(job, vertex, subtask, world.attempts)
        world.send(events.TaskRegistered(world.call(), attempt, "a", "tcp://x:1"))
        while world.registrations and data.draw(st.booleans()):
            _answer(world)
    while world.registrations:
        _answer(world)
    deployed = world.deployed - before
    assert len(deployed) == len(steps)
    for attempt in data.draw(st.permutations(sorted(deployed))):
        world.send(events.TaskFinished(attempt, "FINISHED", sizes=world.sizes(attempt)))
    assert not world.ended
    parts, world.parts = sorted(world.parts), set()
    for job, part in data.draw(st.permutations(parts)):
        world.send(events.SparkJobReturned(job, part))


def _answer(world: World) -> None:
    item = world.registrations.pop()
    attempt = item.producer.attempt
    identity = PartitionId(item.partition.dataset, item.partition.index, attempt.attempt)
    world.known[identity] = "a"
    descriptor = ShuffleDescriptor(identity, item.service, item.partition.kind, "a")
    world.send(events.PartitionRegistered(attempt, item.edge, descriptor))
