# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a query whose tasks die and begin anew alone: every order of deaths, barriers, readers and answers.

The coordinator, the tasks' conversations and the subpartitions between them are the real ones; words and readers
arrive in any order that a network allows.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.buffer import BufferSlice, DataType
from penstock.checkpoint import decisions as then
from penstock.checkpoint.alignment import Decline, Snapshot
from penstock.checkpoint.barriers import Alignment, CancelCheckpointMarker, CheckpointBarrier, encode
from penstock.checkpoint.coordinator import CheckpointCoordinator, CheckpointOptions
from penstock.partition.reattaching import ReattachableSubpartition
from penstock.partition.subpartition import PipelinedView
from penstock.shuffle.actions import Action, CheckpointCompleted, CheckpointGivenUp, TriggerCheckpoint
from penstock.shuffle.events import EpochEnd, ProducerIs, TaskEvent, decode_event, encode_event
from penstock.stream.conversation import Conversation, Counted, Decision

STAGES = (2, 3, 2)
PLACES = [(stage, number) for stage, parallelism in enumerate(STAGES) for number in range(parallelism)]
Place = tuple[int, int]


class Parent:
    """A partition without buffers."""

    name, host = "j1-e0.0#0", "host-a"

    def on_consumed(self, buffers: list[BufferSlice]) -> None:
        """Nothing waits to be recycled."""

    def on_detached(self, buffers: list[BufferSlice]) -> None:
        """Nothing waits to be recycled."""


@dataclass
class Task:
    """One attempt: its part in checkpoints, its channels, and the subpartitions for its readers."""

    place: Place
    attempt: int
    behind: int
    conversation: Conversation
    outputs: list[ReattachableSubpartition]
    channels: list[PipelinedView | None]
    words: deque[Action] = field(default_factory=deque)
    answers: deque[Callable[[], list[then.Decision]]] = field(default_factory=deque)


class World:
    """A query, and all that is under way in it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.reads_again = chance.random() < 0.5
        """True if tasks that begin anew read logs, up to the next barrier of each channel."""
        options = CheckpointOptions(
            alignment=Alignment.AT_LEAST_ONCE,
            max_concurrent=chance.choice((1, 2)),
            tolerable_failures=0,
            retained=2,
            hastens=self.reads_again,
        )
        self.coordinator = CheckpointCoordinator(options, lambda _: [(0, 0), (0, 1)])
        self.attempts = dict.fromkeys(PLACES, 0)
        self.tasks: dict[Place, Task] = {}
        self.unheard: list[Place] = []
        """Tasks that have died, and the coordinator does not know."""
        self.absent: set[Place] = set()
        self.storing: list[int] = []
        self.answered: dict[int, int | None] = {}
        for place in PLACES:
            self.start(place)
        self.follow(self.coordinator.running(PLACES, 0.0))

    def start(self, place: Place) -> None:
        """A task is deployed; nobody reads it yet, and it has come to none of its channels."""
        stage = place[0]
        width = STAGES[stage + 1] if stage + 1 < len(STAGES) else 0
        channels = STAGES[stage - 1] if stage else 0
        behind = self.coordinator.latest_begun
        conversation = Conversation(channels, counted=Counted(behind, reads_again=self.reads_again))
        outputs = [ReattachableSubpartition(number, Parent()) for number in range(width)]
        self.tasks[place] = Task(place, self.attempts[place], behind, conversation, outputs, [None] * channels)

    # --- what may happen next

    def moves(self) -> list[Callable[[], None]]:
        """All that may happen now, but for deaths and wishes."""
        found: list[Callable[[], None]] = []
        for task in self.tasks.values():
            found += self.moves_of(task)
        found += [lambda number=number: self.store(number) for number in self.storing]  # type: ignore[misc]
        if self.unheard:
            found.append(self.hear_of_death)
        elif self.absent and self.coordinator.is_settled:
            found.append(self.deploy)
        return found

    def moves_of(self, task: Task) -> list[Callable[[], None]]:
        """Those of one task."""
        found: list[Callable[[], None]] = []
        if task.words:
            found.append(lambda: self.decided(task, task.conversation.action_came(task.words.popleft(), 0.0)))
        if task.answers:
            found.append(lambda: self.follow(task.answers.popleft()()))
        for number, view in enumerate(task.channels):
            producer = self.tasks.get((task.place[0] - 1, number))
            if view is None and producer is not None:
                found.append(lambda number=number: self.attach(task, number))  # type: ignore[misc]
            elif view is not None and view.is_available:
                found.append(lambda number=number: self.read(task, number))  # type: ignore[misc]
        return found

    def attach(self, task: Task, number: int) -> None:
        """A reader comes to its producer's subpartition, and is told whose it is."""
        producer = self.tasks[task.place[0] - 1, number]
        self.decided(task, task.conversation.event_came(number, ProducerIs(producer.attempt), 0.0))
        task.channels[number] = producer.outputs[task.place[1]].create_view(lambda: None)

    def read(self, task: Task, number: int) -> None:
        """The next event of a channel."""
        view = task.channels[number]
        item = None if view is None else view.poll()
        if item is not None and isinstance(item.payload, bytes):
            self.decided(task, task.conversation.event_came(number, decode_event(item.payload), 0.0))

    def die(self, place: Place) -> None:
        """A task is gone, and what it has written; that its reader has left is noticed elsewhere sooner or later."""
        task = self.tasks[place]
        for _ in range(self.chance.randrange(len(task.answers) + 1)):
            self.follow(task.answers.popleft()())
        del self.tasks[place]
        self.unheard.append(place)
        for view in task.channels:
            if view is not None and self.chance.random() < 0.5:
                view.release()
        for reader in self.tasks.values():
            if reader.place[0] == place[0] + 1:
                reader.channels[place[1]] = None

    def hear_of_death(self) -> None:
        """The coordinator learns of all that are gone."""
        self.absent.update(self.unheard)
        self.unheard.clear()
        self.follow(self.coordinator.fell_short("died", 0.0))

    def deploy(self) -> None:
        """The next attempts of all that are gone begin, at one moment."""
        for place in sorted(self.absent):
            self.attempts[place] += 1
            self.start(place)
        self.absent.clear()
        self.follow(self.coordinator.complete_again(0.0))

    def store(self, number: int) -> None:
        """The metadata of a checkpoint is there."""
        self.storing.remove(number)
        self.follow(self.coordinator.stored(number, 0.0))

    # --- what follows

    def decided(self, task: Task, decisions: list[Decision]) -> None:
        """A task does what its conversation says."""
        task.conversation.check()
        for decision in decisions:
            if isinstance(decision, Snapshot):
                barrier = decision.barrier
                self.emit(task, encode_event(EpochEnd(encode(barrier), 0, 0, 0, 0)))
                self.acknowledge(task, barrier)
            elif isinstance(decision, Decline):
                number = decision.checkpoint
                self.emit(task, encode_event(TaskEvent(encode(CancelCheckpointMarker(number)))))
                self.decline(task, number, decision.cause)

    def acknowledge(self, task: Task, barrier: CheckpointBarrier) -> None:
        """Its snapshot is stored; the word of that is under way."""
        number = barrier.checkpoint
        assert number > task.behind, "a part of a checkpoint from before this attempt would be written once more"
        task.answers.append(lambda: self.coordinator.acknowledged(number, task.place, number, 0.0))

    def decline(self, task: Task, number: int, cause: str) -> None:
        """It takes no snapshot; the word of that is under way."""
        task.answers.append(lambda: self.coordinator.declined(number, task.place, cause, 0.0))

    def emit(self, task: Task, payload: bytes) -> None:
        """An event for all of its readers."""
        for output in task.outputs:
            output.add_event(payload, DataType.EVENT)

    def follow(self, decisions: list[then.Decision]) -> None:
        """The coordinator's decisions go to those tasks that run."""
        self.coordinator.check()
        for decision in decisions:
            match decision:
                case then.Trigger(barrier, heads):
                    self.tell(TriggerCheckpoint(encode(barrier)), set(heads))
                case then.Store(number):
                    self.storing.append(number)
                case then.Complete(number):
                    self.tell(CheckpointCompleted(number))
                case then.GiveUp(number):
                    self.tell(CheckpointGivenUp(number))
                case then.AnswerTrigger(call, found):
                    self.answered[call] = found
                case then.FailQuery(cause):
                    raise AssertionError(cause)

    def tell(self, action: Action, chosen: set[object] | None = None) -> None:
        """A word for these tasks, by default all."""
        for task in self.tasks.values():
            if chosen is None or task.place in chosen:
                task.words.append(action)


def run(world: World, steps: int, deaths: int) -> None:
    """So many things happen, and so many tasks die between them."""
    for _ in range(steps):
        if deaths and world.tasks and world.chance.random() < 0.05:
            deaths -= 1
            world.die(world.chance.choice(sorted(world.tasks)))
        elif (moves := world.moves()) and world.chance.random() < 0.9:
            world.chance.choice(moves)()
        else:
            world.follow(world.coordinator.asked(-1, 0.0))


def settle(world: World) -> None:
    """All that is under way arrives, in any order."""
    while moves := world.moves():
        world.chance.choice(moves)()


@settings(max_examples=examples(60))
@given(st.integers(0, 1 << 48), st.integers(1, 4))
def test_checkpoints_go_on_after_any_deaths(seed: int, deaths: int) -> None:
    """When no more tasks die, a checkpoint that somebody wants is complete; none failed meanwhile.

    Tasks that read logs decline those in whose middle they have come, and the next one follows.
    """
    world = World(random.Random(seed))
    run(world, 300, deaths)
    settle(world)
    world.follow(world.coordinator.asked(7, 0.0))
    settle(world)
    assert world.answered.get(7) is not None
    assert not world.coordinator.pending
