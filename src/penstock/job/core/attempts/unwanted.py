# SPDX-License-Identifier: Apache-2.0
"""A task whose rows are not wanted any more is told so, and ends early.

The rows of a vertex are not wanted when every vertex that reads them is complete, and some subtask of these has not
read them to their end: it had enough, or was told the same. So a vertex without readers left is told, then those that
it reads. Rows of the result are always wanted, and those of a query that streams. A vertex whose readers have read
all is not told: it is about to end.

The partitions that such an attempt has written are not available from then on, so a subtask that runs again and reads
them has them made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.job.core import decisions as so
from penstock.job.core import instructions as do
from penstock.job.core.execution.progress import Roll
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.states import Phase
from penstock.link.commands import CancelTask

_CAUSE = "nobody wants its rows any more: all who read them have ended, and had enough"


class Unwanted:
    """Of one job; a part of `attempts`."""

    def __init__(self, topology: JobTopology, subtasks: Roll, phase: Phase) -> None:
        self._subtasks = subtasks
        self._phase = phase
        graph = topology.graph
        inner = [] if graph.streaming is not None else [v.id for v in graph.vertices if v.id not in graph.result]
        self._readers = {v: [(edge.id, edge.consumer) for edge in graph.outputs_of(v)] for v in inner}
        """By vertex, who reads it, over which edges."""
        self._left: set[int] = set()
        """Edges that some subtask has not read to their end."""
        self._seen: dict[int, int] = {}
        """Of a vertex whose rows are not wanted: how many subtasks were not deployed when it was looked at."""

    def note(self, left: Iterable[int]) -> None:
        """A subtask has ended well, without having read these edges to their end."""
        self._left.update(left)

    def tell(self) -> Iterator[so.Decision]:
        """Tell those who do not know it yet."""
        if not self._left or not self._phase.is_active:
            return
        for vertex in self._readers:
            if not self._is_unwanted(vertex):
                self._seen.pop(vertex, None)
            elif self._seen.get(vertex) != self._subtasks.undeployed(vertex):
                self._seen[vertex] = self._subtasks.undeployed(vertex)
                yield from self._tell(vertex)

    def _tell(self, vertex: int) -> Iterator[so.Decision]:
        for subtask in self._subtasks.of(vertex):
            if subtask.deployed and subtask.is_live and not subtask.is_unwanted and subtask.attempt is not None:
                subtask.is_unwanted = True
                yield so.Record("task_not_wanted", str(subtask.attempt))
                command = CancelTask(subtask.attempt, _CAUSE, is_unwanted=True)
                yield do.TellEnvironment(subtask.environment, command)

    def _is_unwanted(self, vertex: int) -> bool:
        readers, subtasks = self._readers[vertex], self._subtasks
        is_left = any(edge in self._left for edge, _ in readers)
        return is_left and subtasks.is_running(vertex) and all(subtasks.is_complete(by) for _, by in readers)
