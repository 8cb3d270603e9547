# SPDX-License-Identifier: Apache-2.0
"""Runs a job graph row by row in any order of events, to see whether it can come to a stop.

It knows nothing of the analysis in `penstock.graph.deadlocks`: channels hold a few rows each, a subtask that writes
into a full pipelined channel waits, a reader of a blocking partition waits for its end, a combining subtask asks one
side after the other, any other subtask takes what is there. The rows that a stage makes of its own, and their ways,
are drawn at random, and so is who takes the next step.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

from penstock.graph import ExecutionGraph, JobEdge, JobGraph, JobVertex

ROOM = 1
Channel = tuple[int, int, int]
"""Edge, producing subtask, subpartition."""


class Subtask:
    """One subtask: what it still has to write, and which side it reads."""

    def __init__(self, simulator: Simulator, vertex: JobVertex, index: int) -> None:
        self.vertex = vertex
        self.index = index
        self.finished = False
        self._simulator = simulator
        self._random = simulator.random
        self._unwritten: deque[Channel] = deque()
        self._inputs = simulator.job.inputs_of(vertex.id)
        self._to_make = self._random.randint(0, 6) if not self._inputs else self._random.randint(0, 2)
        self._keeps = self._random.random() < 0.3
        last = getattr(vertex.combine, "streamed_side", None)
        sides = sorted({edge.side for edge in self._inputs}, key=lambda side: (side == last, side))
        self._sides = sides if vertex.combine is not None else [0] if sides else []

    def step(self) -> bool:
        """Go on a little; False where it has to wait."""
        if self._unwritten:
            return self._write()
        while self._sides:
            channels = list(self._channels(self._sides[0]))
            ready = [channel for channel in channels if self._simulator.can_read(channel)]
            if ready:
                self._simulator.rows[self._random.choice(ready)] -= 1
                self._make(0 if self._keeps else self._random.randint(0, 2))
                return True
            if not all(self._simulator.has_ended(channel) for channel in channels):
                return False
            self._sides.pop(0)
        if self._to_make:
            self._to_make -= 1
            self._make(1)
            return True
        self.finished = True
        return True

    def _channels(self, side: int) -> Iterator[Channel]:
        for edge in self._inputs:
            if self.vertex.combine is None or edge.side == side:
                for producer, first, _ in self._simulator.execution.channels_of(edge.id, self.index):
                    yield edge.id, producer, first

    def _write(self) -> bool:
        channel = self._unwritten[0]
        rows = self._simulator.rows
        if self._simulator.edges[channel[0]].kind.runs_together and rows[channel] >= ROOM:
            return False
        rows[channel] += 1
        self._unwritten.popleft()
        return True

    def _make(self, count: int) -> None:
        for _ in range(count):
            for edge in self._simulator.job.outputs_of(self.vertex.id):
                targets = range(self._simulator.execution.subpartitions_of(edge.id, self.index))
                chosen = targets if edge.is_broadcast else [self._random.choice(targets)]
                self._unwritten.extend((edge.id, self.index, target) for target in chosen)


class Simulator:
    """The whole job, with one stream of random numbers for everything."""

    def __init__(self, job: JobGraph, seed: int) -> None:
        self.job = job
        self.random = random.Random(seed)
        self.execution = ExecutionGraph(job)
        self.edges: dict[int, JobEdge] = {edge.id: edge for edge in job.edges}
        self.rows: dict[Channel, int] = {
            (edge.id, producer, target): 0
            for edge in job.edges
            for producer in range(job.vertex(edge.producer).parallelism)
            for target in range(self.execution.subpartitions_of(edge.id, producer))
        }
        self.subtasks = {
            (vertex.id, index): Subtask(self, vertex, index) for vertex, index in self.execution.subtasks()
        }

    def can_read(self, channel: Channel) -> bool:
        """Tell whether there is a row that a consumer may take."""
        return self.rows[channel] > 0 and (self.edges[channel[0]].kind.pipelined or self._producer(channel).finished)

    def has_ended(self, channel: Channel) -> bool:
        """Tell whether no row will come any more."""
        return self.rows[channel] == 0 and self._producer(channel).finished

    def stands_still(self, vertices: tuple[int, ...]) -> bool:
        """Run the subtasks of these stages to their end; whether they come to a stop before it."""
        left = [subtask for (vertex, _), subtask in self.subtasks.items() if vertex in vertices]
        while left := [subtask for subtask in left if not subtask.finished]:
            self.random.shuffle(left)
            # A few subtasks may be far quicker than the others: that is what fills channels.
            moved = [subtask for subtask in left[: self.random.randint(1, len(left))] if self._run(subtask)]
            if not moved and not any(subtask.step() for subtask in left):
                return True
        return False

    def _run(self, subtask: Subtask) -> bool:
        moved = False
        for _ in range(self.random.choice([1, 3, 100])):
            if subtask.finished or not subtask.step():
                break
            moved = True
        return moved

    def _producer(self, channel: Channel) -> Subtask:
        return self.subtasks[self.edges[channel[0]].producer, channel[1]]


def can_deadlock(job: JobGraph, seeds: range) -> bool:
    """Tell whether the job stops in one of these runs, all its stages at once."""
    everything = tuple(vertex.id for vertex in job.vertices)
    return any(Simulator(job, seed).stands_still(everything) for seed in seeds)
