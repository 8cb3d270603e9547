# SPDX-License-Identifier: Apache-2.0
"""The subtasks of one job, from the opening of their region: who is there, and their figures.

Figures that are asked at every event are kept, per vertex, as a few numbers. Only `attempts` changes anything here;
others read it, most of them through `progress.Roll`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock.graph.execution_state import ExecutionEvent
from penstock.graph.failover import Place
from penstock.graph.job_graph import JobVertex
from penstock.job.core.bottleneck import StageLoad, load_of
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.result import SubtaskStatus, VertexProgress, summed
from penstock.shuffle import AttemptId
from penstock.shuffle.metrics import ROWS_GROUP

Live = Callable[[AttemptId], dict[str, float]]
"""Tells the figures of an attempt in the last heartbeat."""


@dataclass(slots=True)
class Book:
    """One vertex: which subtasks no task has taken, how many have not got so far, and how many stopped on the way."""

    pending: list[int]
    undeployed: int
    unfinished: int
    halted: int = 0


class Subtasks:
    """All subtasks of one job, by vertex and index."""

    def __init__(self, topology: JobTopology) -> None:
        self.live = 0
        """The number that tasks work on."""
        self.confirmed: set[int] = set()
        """The vertices whose DataFrame was read to its end."""
        self.moving: set[int] = set()
        """The regions that run together and whose tasks were all there, so that data has started."""
        self.round = 0
        """The number of restarts."""
        self.has_run = False
        """True if any subtask was ever told what to do."""
        self._topology = topology
        self._by_place: dict[Place, Subtask] = {}
        self._books: dict[int, Book] = {}

    def __iter__(self) -> Iterator[Subtask]:
        return iter(self._by_place.values())

    # --- who is there

    def at(self, vertex: int, index: int) -> Subtask:
        """The subtask at a place; raises KeyError."""
        return self._by_place[vertex, index]

    def find(self, vertex: int, index: int) -> Subtask | None:
        """The subtask at a place, if there is such a place."""
        return self._by_place.get((vertex, index))

    def current(self, attempt: AttemptId) -> Subtask | None:
        """The subtask whose accepted attempt this is."""
        subtask = self._by_place.get((attempt.vertex, attempt.subtask))
        return subtask if subtask is not None and subtask.attempt == attempt else None

    def of(self, vertex: int) -> list[Subtask]:
        """A vertex's subtasks; none before its region is open."""
        if vertex not in self._books:
            return []
        return [self._by_place[vertex, index] for index in range(self._width(vertex))]

    def book(self, vertex: int) -> Book | None:
        """The book of a vertex."""
        return self._books.get(vertex)

    def is_open(self, vertex: int) -> bool:
        """Tell whether the subtasks of a vertex may run, or will when those before them do."""
        return vertex in self._books

    def pending(self, vertex: int) -> int:
        """The number of subtasks of a vertex that no task has taken."""
        return len(self._books[vertex].pending)

    def first_pending(self, vertex: int, count: int) -> list[Subtask]:
        """The first of them."""
        return [self._by_place[vertex, index] for index in self._books[vertex].pending[:count]]

    def undeployed(self, vertex: int) -> int:
        """The number of subtasks of a vertex that neither run nor have ended well."""
        book = self._books.get(vertex)
        return book.undeployed if book is not None else self._width(vertex)

    def is_complete(self, vertex: int) -> bool:
        """Tell whether all subtasks of a vertex ended well."""
        book = self._books.get(vertex)
        return book is not None and book.unfinished == 0

    def is_confirmed(self, vertex: int) -> bool:
        """Tell whether a vertex's DataFrame was read to its end."""
        return vertex in self.confirmed

    def is_deployed(self, vertex: int) -> bool:
        """Tell whether all subtasks of a vertex run or ended well."""
        book = self._books.get(vertex)
        return book is not None and book.undeployed == 0 and book.halted == 0

    def is_taken(self, vertex: int) -> bool:
        """Tell whether any subtask of a vertex waits for its deployment."""
        book = self._books.get(vertex)
        return book is not None and book.undeployed > len(book.pending)

    def is_running(self, vertex: int) -> bool:
        """Tell whether any subtask of a vertex runs."""
        book = self._books.get(vertex)
        return book is not None and book.unfinished > book.undeployed

    # --- what happens to them

    def open(self, vertex: JobVertex) -> None:
        """The subtasks of a vertex are there."""
        count = vertex.parallelism
        self._books[vertex.id] = Book(list(range(count)), count, count)
        for index in range(count):
            self._by_place[vertex.id, index] = Subtask.of(self._topology.job, vertex, index)

    def begin(self, subtask: Subtask, attempt: AttemptId, call: int, environment: str) -> None:
        """A task will run it and waits for its deployment."""
        self._take(subtask)
        subtask.begin(attempt, call, environment)
        self.live += 1

    def deploy(self, subtask: Subtask) -> None:
        """It is told what to do."""
        subtask.call = None
        subtask.deployed = self.has_run = True
        self._books[subtask.vertex.id].undeployed -= 1
        subtask.round = self.round
        self.step(subtask, ExecutionEvent.RUN)

    def step(self, subtask: Subtask, event: ExecutionEvent) -> None:
        """Its attempt takes one step of its life."""
        was_live = subtask.is_live
        subtask.lifecycle.move(event)
        self.live += subtask.is_live - was_live

    def stop(self, subtask: Subtask) -> None:
        """It has stopped, asked or not."""
        self.step(subtask, ExecutionEvent.CANCEL)
        if not subtask.state.is_terminal:
            self.step(subtask, ExecutionEvent.CONFIRM_CANCEL)

    def halt(self, subtask: Subtask) -> None:
        """It was stopped unasked, and what follows is not known yet."""
        subtask.halted = True
        self._books[subtask.vertex.id].halted += 1

    def finish(self, subtask: Subtask) -> None:
        """It ended well."""
        self._books[subtask.vertex.id].unfinished -= 1

    def skip(self, subtask: Subtask) -> None:
        """It has nothing to do: there are no rows for it."""
        subtask.empty = subtask.deployed = True
        self._take(subtask)
        book = self._books[subtask.vertex.id]
        book.undeployed -= 1
        book.unfinished -= 1

    def reset(self, subtask: Subtask) -> Subtask:
        """It is to be run again, from its beginning: the next attempt, which has not started."""
        book = self._books[subtask.vertex.id]
        book.halted -= subtask.halted
        book.undeployed += subtask.deployed
        book.unfinished += subtask.is_finished
        self.live -= subtask.is_live
        self._take(subtask)
        insort(book.pending, subtask.index)
        self.confirmed.discard(subtask.vertex.id)
        fresh = self._by_place[subtask.place] = subtask.again(self._topology.job, self.round)
        return fresh

    def _take(self, subtask: Subtask) -> None:
        pending = self._books[subtask.vertex.id].pending
        position = bisect_left(pending, subtask.index)
        if position < len(pending) and pending[position] == subtask.index:
            del pending[position]

    def _width(self, vertex: int) -> int:
        return self._topology.graph.vertex(vertex).parallelism

    # --- figures

    def sums(self, vertex: int, live: Live | None = None) -> dict[str, float]:
        """The sums over a vertex's subtasks; `live` gives what heartbeats said of those that still run."""
        return summed(self.each(vertex, live))

    def each(self, vertex: int, live: Live | None = None) -> tuple[Mapping[str, float], ...]:
        """The figures of each of a vertex's subtasks, in order; none of those that have told none."""
        return tuple(_figures(subtask, live) for subtask in self.of(vertex))

    def statuses(self, vertex: int) -> tuple[SubtaskStatus, ...]:
        """The state of each of a vertex's subtasks, in order."""
        return tuple(subtask.status for subtask in self.of(vertex))

    def loads(self) -> list[StageLoad]:
        """The work of all subtasks that have ended, by vertex."""
        vertices = self._topology.graph.vertices
        return [
            StageLoad(each.id, each.name, tuple(load_of(told) for told in self.each(each.id))) for each in vertices
        ]

    def progress(self, vertex: int, live: Live) -> VertexProgress:
        """A snapshot of one vertex."""
        subtasks, name = self.of(vertex), self._topology.graph.vertex(vertex).name
        runs = tuple(subtask.is_live and subtask.deployed for subtask in subtasks)
        ended = sum(1 for subtask in subtasks if subtask.is_ended)
        each = self.each(vertex, live)
        width, statuses = self._width(vertex), self.statuses(vertex)
        return VertexProgress(vertex, name, width, sum(runs), ended, summed(each), each, runs, statuses)


def _figures(subtask: Subtask, live: Live | None) -> Mapping[str, float]:
    if subtask.metrics or live is None or subtask.attempt is None:
        return subtask.metrics
    return {name: value for name, value in live(subtask.attempt).items() if not name.startswith(ROWS_GROUP)}
