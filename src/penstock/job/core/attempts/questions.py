# SPDX-License-Identifier: Apache-2.0
"""Consumers that have read their inputs to the end and ask whether that end is real.

A cancelled `mapInArrow` sees a clean end of its input in mid-data, so a consumer of a DataFrame's rows ends only
after that DataFrame's Spark job has returned well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.errors import PenstockError
from penstock.job.core import instructions as do
from penstock.job.core.execution.progress import Roll
from penstock.job.core.execution.topology import JobTopology
from penstock.shuffle import AttemptId


class ProducerQuestions:
    """The open questions of one job, by attempt."""

    def __init__(self, topology: JobTopology, progress: Roll) -> None:
        self._topology = topology
        self._progress = progress
        self._open: dict[AttemptId, list[int]] = {}

    @property
    def calls(self) -> list[int]:
        """The calls that wait for an answer."""
        return [call for calls in self._open.values() for call in calls]

    def ask(self, call: int, attempt: AttemptId) -> Iterator[do.Instruction]:
        """A consumer asks; it is answered now or when its producers are confirmed."""
        if self._are_confirmed(attempt):
            yield do.AnswerProducers(call, attempt)
        else:
            self._open.setdefault(attempt, []).append(call)

    def answer(self) -> Iterator[do.Instruction]:
        """A DataFrame was read to its end: answer those who need no other."""
        for attempt in [attempt for attempt in self._open if self._are_confirmed(attempt)]:
            yield from self.drop(attempt, None)

    def drop(self, attempt: AttemptId, error: PenstockError | None) -> Iterator[do.Instruction]:
        """Answer the questions of an attempt, with this error if there is one."""
        for call in self._open.pop(attempt, ()):
            yield do.AnswerProducers(call, attempt, error)

    def drop_all(self, error_for: Callable[[AttemptId], PenstockError]) -> Iterator[do.Instruction]:
        """The job is over for all who ask."""
        for attempt in list(self._open):
            yield from self.drop(attempt, error_for(attempt))

    def _are_confirmed(self, attempt: AttemptId) -> bool:
        graph = self._topology.graph
        producers = (graph.vertex(edge.producer) for edge in graph.inputs_of(attempt.vertex))
        return all(self._progress.is_confirmed(vertex.id) for vertex in producers if vertex.is_bound)
