# SPDX-License-Identifier: Apache-2.0
"""Plans that could stand still for ever, and the fewest exchanges that must be stored so that they cannot. Pure.

The waits. A producer waits for room in a full exchange whose kind runs together, until the consumer reads it. A
consumer waits for rows of an empty exchange of any kind, until the producer goes on. A stage without `combine` reads
whatever comes, so a full exchange waits only for what its consumer waits for room in; a combining stage reads its
sides one after the other, so a full exchange of a later side also waits for rows of the earlier ones. A job can
deadlock where such waits form a circle: a self-join, a diamond that meets in a join, two joins over the same stages
in crossed order. A diamond whose branches meet in a union is no circle and stays as it is.

Rules. Circles are broken by storing: an exchange of a circle gets the kind that its service has for that
(`JobEdge.stored`), whose producer never waits, the one that would be full at the join if possible. If no service of a
circle has one, the plan is refused. Regions that wait for each other (a pipelined exchange around a stored
detour) are cut in the same way. An exchange is changed only if the plan without this one change would be wrong; those
that the user asked to be pipelined come last. Storing is enough everywhere, so nothing has to become blocking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.errors import PlanError
from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex
from penstock.graph.regions import stuck_vertices
from penstock.shuffle import PartitionKind


def without_deadlocks(graph: JobGraph, asked: Collection[int] = ()) -> tuple[JobGraph, tuple[str, ...]]:
    """The graph with as few exchanges stored as keep it from standing still, and a sentence for each of them.

    `asked` are the edges whose kind the user wrote: they are changed only where no other would do. Raises PlanError
    where the stages themselves form a circle, which no kind of exchange can mend, and where no exchange that would
    have to be stored has a service that stores.
    """
    _refuse_circle_of_stages(graph)
    kinds = {edge.id: edge.kind for edge in graph.edges}
    changed: list[int] = []
    while (trouble := _trouble(graph)) is not None:
        edge = min(trouble.exchanges, key=lambda edge: (edge.stored is None, edge.id in asked))
        if edge.stored is None:
            raise PlanError(_unstored_text(graph, trouble))
        graph = _with_kind(graph, edge.id, edge.stored)
        changed.append(edge.id)
    # A later change may have made an earlier one needless.
    changed.sort(key=lambda number: number not in asked)
    while (needless := _needless(graph, changed, kinds)) is not None:
        graph = _with_kind(graph, needless, kinds[needless])
        changed.remove(needless)
    return graph, tuple(_sentence(graph, number, kinds[number]) for number in sorted(changed))


def refuse_ordered_sides(graph: JobGraph, flow_control: str) -> None:
    """Raise PlanError for a stage that reads a side to its end first, where sides share one window.

    Rows of the other side would fill the connection, and those that are read first could not come any more. With
    credit each channel has room of its own.
    """
    for vertex in graph.vertices if flow_control != "credit" else ():
        if len({edge.side for edge in graph.inputs_of(vertex.id)}) > 1 and vertex.combine is not None:
            raise PlanError(
                f"the stage {vertex.name!r} reads one input before the other, and under"
                f" spark.penstock.network.flowControl={flow_control} both share one window, so it could stand still:"
                " run this job with credit"
            )


def _needless(graph: JobGraph, changed: Sequence[int], kinds: Mapping[int, PartitionKind]) -> int | None:
    return next((number for number in changed if _trouble(_with_kind(graph, number, kinds[number])) is None), None)


def _refuse_circle_of_stages(graph: JobGraph) -> None:
    stored = tuple(replace(edge, kind=PartitionKind.BLOCKING_SORT_MERGE) for edge in graph.edges)
    circle = set(stuck_vertices(replace(graph, edges=stored)))
    if circle:
        names = ", ".join(repr(vertex.name) for vertex in graph.vertices if vertex.id in circle)
        raise PlanError(f"the stages {names} read each other in a circle: no order and no mode lets them run")


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Exchanges of which one must be stored, the best choice first, and why."""

    exchanges: Sequence[JobEdge]
    reason: str


@dataclass(frozen=True, slots=True)
class _Wait:
    """A producer that waits for room in an exchange, or a consumer that waits for its rows."""

    edge: JobEdge
    for_room: bool

    @property
    def key(self) -> tuple[int, bool]:
        """Edges hold what cannot be hashed; their number can."""
        return self.edge.id, self.for_room


def _trouble(graph: JobGraph) -> _Trouble | None:
    """The first thing that is wrong and can be mended."""
    waits = _Waits(graph)
    for edge in graph.edges:
        for earlier in waits.read_before(edge) if edge.kind.runs_together else ():
            circle = waits.path(earlier, edge)
            if circle is not None:
                full = [wait.edge for wait in circle if wait.for_room]
                return _Trouble([edge, *full], _order_text(graph, edge, earlier))
    stuck = set(stuck_vertices(graph))
    inside = [edge for edge in graph.edges if edge.kind.runs_together and edge.producer in stuck]
    return _Trouble(inside, _detour_text(graph, stuck)) if inside else None


class _Waits:
    """The waits that each wait may lead to."""

    def __init__(self, graph: JobGraph) -> None:
        self._inputs: dict[int, list[JobEdge]] = {}
        self._outputs: dict[int, list[JobEdge]] = {}
        self._order = {vertex.id: _reading_order(vertex, graph) for vertex in graph.vertices}
        for edge in graph.edges:
            self._inputs.setdefault(edge.consumer, []).append(edge)
            self._outputs.setdefault(edge.producer, []).append(edge)

    def read_before(self, edge: JobEdge) -> list[JobEdge]:
        """The inputs that the consumer of an edge reads to their end before it."""
        order = self._order[edge.consumer]
        rivals = self._inputs[edge.consumer]
        return [other for other in rivals if order.get(other.side, 0) < order.get(edge.side, 0)]

    def path(self, empty: JobEdge, full: JobEdge) -> list[_Wait] | None:
        """The way from the wait for rows of one edge to that for room in another, the latter left out; or None."""
        start = _Wait(empty, for_room=False)
        came_from: dict[tuple[int, bool], _Wait | None] = {start.key: None}
        waiting = deque([start])
        while waiting:
            current = waiting.popleft()
            for following in self._behind(current):
                if following.for_room and following.edge.id == full.id:
                    return _way(came_from, current)
                if following.key not in came_from:
                    came_from[following.key] = current
                    waiting.append(following)
        return None

    def _behind(self, wait: _Wait) -> list[_Wait]:
        if wait.for_room:
            rows = self.read_before(wait.edge)
            room = self._outputs.get(wait.edge.consumer, [])
        else:
            rows = self._inputs.get(wait.edge.producer, [])
            # The exchange that is empty is not the one that is full. It can be both at once, for different
            # subtasks; but then there is a shorter circle without it, because each subtask reads in the same order.
            room = [edge for edge in self._outputs[wait.edge.producer] if edge.id != wait.edge.id]
        stalled = (_Wait(edge, for_room=True) for edge in room if edge.kind.runs_together)
        return [*stalled, *(_Wait(edge, for_room=False) for edge in rows)]


def _way(came_from: dict[tuple[int, bool], _Wait | None], end: _Wait) -> list[_Wait]:
    way = [end]
    while (before := came_from[way[-1].key]) is not None:
        way.append(before)
    return way[::-1]


def _reading_order(vertex: JobVertex, graph: JobGraph) -> dict[int, int]:
    """The place of each side in the order in which a combining vertex reads them; nothing for other vertices."""
    if vertex.combine is None:
        return {}
    last = getattr(vertex.combine, "streamed_side", None)
    sides = sorted({edge.side for edge in graph.inputs_of(vertex.id)}, key=lambda side: (side == last, side))
    return {side: place for place, side in enumerate(sides)}


def _with_kind(graph: JobGraph, number: int, kind: PartitionKind) -> JobGraph:
    return graph.with_edge(replace(graph.edge(number), kind=kind))


def _sentence(graph: JobGraph, number: int, before: PartitionKind) -> str:
    """Why this exchange is stored: what would be wrong if it alone were not."""
    trouble = _trouble(_with_kind(graph, number, before))
    edge = graph.edge(number)
    return f"{graph.title_of(edge)}: {edge.kind.label}, because {trouble.reason if trouble is not None else ''}"


def _unstored_text(graph: JobGraph, trouble: _Trouble) -> str:
    names = ", ".join(dict.fromkeys(repr(edge.service) for edge in trouble.exchanges))
    return (
        f"{graph.title_of(trouble.exchanges[0])} would have to be stored, because {trouble.reason}; the shuffle "
        f"service {names} stores nothing: give this exchange another service"
    )


def _order_text(graph: JobGraph, late: JobEdge, early: JobEdge) -> str:
    reader, first, second = (graph.vertex(number).name for number in (late.consumer, early.producer, late.producer))
    if early.producer == late.producer:
        return (
            f"{reader!r} reads one of its inputs before the other and both come from {first!r}, which would have to "
            "stop in the middle"
        )
    return (
        f"{reader!r} reads {first!r} before it reads {second!r}, and {first!r} may have to wait until the rows of "
        f"{second!r} are read"
    )


def _detour_text(graph: JobGraph, stuck: set[int]) -> str:
    names = ", ".join(repr(vertex.name) for vertex in graph.vertices if vertex.id in stuck)
    return f"of the stages {names} some need results that the others only give when they have ended"
