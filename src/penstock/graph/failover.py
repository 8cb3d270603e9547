# SPDX-License-Identifier: Apache-2.0
"""The subtasks that run again after a failure: the failed ones, those they need, and those that read from them. Pure.

Rules, to the fixpoint:
1. what failed runs again;
2. subtasks that run together share their fate: those joined by edges whose producer waits for its readers (finished
   ones too: such rows exist once), and all subtasks of a vertex that reads a DataFrame, because Spark promises no
   stable partitions. Pointwise edges join a subtask with its own partners only, so a region may fall into parts;
3. a stored partition that a restarted subtask reads and that is not available is made again by its producer;
4. a started consumer that knows a partition which is made again starts again. A finished one stays: its output
   stands, unless rule 3 asks for it;
5. subtasks that have not started are left out: they will read what is there then.

An edge is held as blocks, in each of which every producer is read by every consumer: one for an all-to-all edge. So
the cost is that of the subtasks and partitions, never that of the channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.graph.execution_graph import ExecutionGraph
from penstock.graph.job_graph import JobEdge, JobGraph

Place = tuple[int, int]
"""A subtask: the vertex' id and the number in it."""


class JobView(Protocol):
    """The JobMaster's knowledge of the job at this moment."""

    def has_started(self, place: Place) -> bool:
        """Tell whether the current attempt was deployed, or has finished."""

    def has_finished(self, place: Place) -> bool:
        """Tell whether the current attempt has finished."""

    def was_announced(self, edge: int, producer: int) -> bool:
        """Tell whether consumers were told of the current attempt's partition."""

    def is_available(self, edge: int, producer: int) -> bool:
        """Tell whether the current attempt's partition can be read from its beginning."""


def restart_set(graph: JobGraph, failed: Iterable[Place], view: JobView) -> frozenset[Place]:
    """The subtasks that run again: the failed ones, and of the others the fewest that the rules allow."""
    return _Restart(_Wiring(graph), view).after(failed)


def downstream_of(graph: JobGraph, places: Iterable[Place], view: JobView) -> frozenset[Place]:
    """All started or finished subtasks that read, directly or through others, what these places write.

    The way may lead through subtasks that have not started (again): those downstream of them have read older rows.
    """
    wiring = _Wiring(graph)
    reached: set[Place] = set()
    passed: set[_Block] = set()
    waiting = list(places)
    while waiting:
        for block in wiring.written_by(waiting.pop()):
            if block not in passed:
                passed.add(block)
                fresh = [(block.edge.consumer, subtask) for subtask in block.consumers]
                waiting.extend(place for place in fresh if place not in reached)
                reached.update(fresh)
    return frozenset(place for place in reached if view.has_started(place))


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Subtasks of both ends of an edge: each of the consumers reads each of the producers."""

    edge: JobEdge
    producers: Sequence[int]
    consumers: Sequence[int]


class _Wiring:
    """Which blocks each subtask is in, and which subtasks share their fate."""

    def __init__(self, graph: JobGraph) -> None:
        self._read: dict[Place, list[_Block]] = {}
        self._written: dict[Place, list[_Block]] = {}
        self._leader: dict[Place, Place] = {}
        execution = ExecutionGraph(graph)
        for edge in graph.edges:
            for block in _blocks(execution, edge):
                self._add(block)
        for vertex in graph.vertices:
            if vertex.is_bound:
                self._join([(vertex.id, subtask) for subtask in range(vertex.parallelism)])
        self._fellows: dict[Place, list[Place]] = {}
        for place in self._leader:
            self._fellows.setdefault(self._root(place), []).append(place)

    def read_by(self, place: Place) -> Sequence[_Block]:
        """The blocks in which it is a consumer."""
        return self._read.get(place, ())

    def written_by(self, place: Place) -> Sequence[_Block]:
        """The blocks in which it is a producer."""
        return self._written.get(place, ())

    def fellows_of(self, place: Place) -> Sequence[Place]:
        """All that shares its fate, itself included."""
        return self._fellows[self._root(place)] if place in self._leader else (place,)

    def group_of(self, place: Place) -> Place:
        """A name for all that shares its fate: the same for each of them."""
        return self._root(place) if place in self._leader else place

    def _add(self, block: _Block) -> None:
        producers = [(block.edge.producer, subtask) for subtask in block.producers]
        consumers = [(block.edge.consumer, subtask) for subtask in block.consumers]
        for place in producers:
            self._written.setdefault(place, []).append(block)
        for place in consumers:
            self._read.setdefault(place, []).append(block)
        if block.edge.kind.runs_together:
            self._join([*producers, *consumers])

    def _join(self, places: Sequence[Place]) -> None:
        for place in places:
            self._leader.setdefault(place, place)
            self._leader[self._root(place)] = self._root(places[0])

    def _root(self, place: Place) -> Place:
        while self._leader[place] != place:
            self._leader[place] = self._leader[self._leader[place]]
            place = self._leader[place]
        return place


def _blocks(execution: ExecutionGraph, edge: JobEdge) -> Iterator[_Block]:
    producers = range(execution.graph.vertex(edge.producer).parallelism)
    consumer = execution.graph.vertex(edge.consumer)
    consumers = range(consumer.parallelism)
    if edge.is_pointwise:
        for subtask in consumers:
            yield _Block(edge, [index for index, _, _ in execution.channels_of(edge.id, subtask)], (subtask,))
    elif edge.is_broadcast or consumer.subpartitions is None or all(share.parts == 1 for share in consumer.shares):
        yield _Block(edge, producers, consumers)
    else:
        # A large subpartition is read by several consumers, each of which has its own part of the producers.
        alike: dict[tuple[int, int], list[int]] = {}
        for subtask, share in enumerate(consumer.shares):
            is_part = share.parts > 1 and share.side == edge.side
            alike.setdefault((share.part, share.parts) if is_part else (0, 1), []).append(subtask)
        for (part, parts), subtasks in alike.items():
            yield _Block(edge, producers[part::parts], subtasks)


class _Restart:
    """One computation: what is in, and what is still to be looked at."""

    def __init__(self, wiring: _Wiring, view: JobView) -> None:
        self._wiring = wiring
        self._view = view
        self._found: set[Place] = set()
        self._waiting: list[Place] = []
        self._groups: set[Place] = set()
        self._needed: set[_Block] = set()
        self._remade: set[_Block] = set()

    def after(self, failed: Iterable[Place]) -> frozenset[Place]:
        """Everything that follows from these."""
        # A caller who says that a subtask failed knows that there was an attempt, so the state is not asked
        # whether it started.
        self._found.update(failed)
        self._waiting.extend(self._found)
        while self._waiting:
            place = self._waiting.pop()
            self._take_fellows(place)
            for block in self._wiring.read_by(place):
                self._take_producers(block)
            for block in self._wiring.written_by(place):
                self._take_consumers(block, place[1])
        return frozenset(self._found)

    def _take_fellows(self, place: Place) -> None:
        group = self._wiring.group_of(place)
        if group in self._groups:
            return
        self._groups.add(group)
        for fellow in self._wiring.fellows_of(place):
            self._take(fellow)

    def _take_producers(self, block: _Block) -> None:
        if block.edge.kind.runs_together or block in self._needed:
            return
        self._needed.add(block)
        for subtask in block.producers:
            if not self._view.is_available(block.edge.id, subtask):
                self._take((block.edge.producer, subtask))

    def _take_consumers(self, block: _Block, producer: int) -> None:
        if block in self._remade or not self._view.was_announced(block.edge.id, producer):
            return
        self._remade.add(block)
        for subtask in block.consumers:
            if not self._view.has_finished((block.edge.consumer, subtask)):
                self._take((block.edge.consumer, subtask))

    def _take(self, place: Place) -> None:
        if place not in self._found and self._view.has_started(place):
            self._found.add(place)
            self._waiting.append(place)
