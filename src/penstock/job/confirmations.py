# SPDX-License-Identifier: Apache-2.0
"""Consumers that have read their inputs to the end and ask whether that end is real.

A cancelled `mapInArrow` sees a clean end of its input in mid-data, so whoever consumes a DataFrame's rows ends only
after that DataFrame's Spark job has returned well.
"""

from __future__ import annotations

from penstock.job import events
from penstock.job import instructions as do
from penstock.job.job_scope import JobScope
from penstock.shuffle import AttemptId
from penstock.shuffle.errors import PenstockError


class Confirmations:
    """The open questions of one job, by attempt."""

    def __init__(self, scope: JobScope) -> None:
        self._scope = scope
        self._open: dict[AttemptId, list[int]] = {}

    def ask(self, event: events.ProducersAwaited) -> None:
        """A consumer asks; it is answered now or when its producers are confirmed."""
        subtask = self._scope.tasks.current(event.attempt)
        if subtask is None or subtask.is_ended or not self._scope.lifecycle.is_active:
            self._scope.emit(do.AnswerProducers(event.call, event.attempt, self._scope.over(event.attempt)))
        elif self._are_confirmed(event.attempt):
            self._scope.emit(do.AnswerProducers(event.call, event.attempt))
        else:
            self._open.setdefault(event.attempt, []).append(event.call)

    def answer(self) -> None:
        """A DataFrame was read to its end: answer those who need no other."""
        for attempt in [attempt for attempt in self._open if self._are_confirmed(attempt)]:
            self._close(attempt, None)

    def drop(self, attempt: AttemptId, error: PenstockError) -> None:
        """An attempt is run again: what it asked is answered with the error."""
        self._close(attempt, error)

    def drop_all(self) -> None:
        """The job is over for all who ask."""
        for attempt in list(self._open):
            self._close(attempt, self._scope.over(attempt))

    def _are_confirmed(self, attempt: AttemptId) -> bool:
        graph, parts = self._scope.graph, self._scope.parts
        producers = (graph.vertex(edge.producer) for edge in graph.inputs_of(attempt.vertex))
        return all(parts.is_confirmed(vertex.id) for vertex in producers if vertex.is_bound)

    def _close(self, attempt: AttemptId, error: PenstockError | None) -> None:
        for call in self._open.pop(attempt, ()):
            self._scope.emit(do.AnswerProducers(call, attempt, error))
