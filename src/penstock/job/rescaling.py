# SPDX-License-Identifier: Apache-2.0
"""A user asks a running query for other numbers of tasks: it stops well and begins again by another plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import PenstockError
from penstock.graph.job_graph import JobGraph

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class WayToRescale(Generic[S]):
    """How a query goes on: `planned` takes the number of tasks and the slots that it holds, and may refuse.

    `started` starts that plan when the query has stopped.
    """

    planned: Callable[[int, int], JobGraph]
    started: Callable[[JobGraph], S]


class Rescaling:
    """One at a time; any thread may ask, and the query's own answers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: JobGraph | None = None
        self._error: PenstockError | None = None
        self._is_over = False

    def ask(self, graph: JobGraph, query: str) -> None:
        """The query is to go on by this plan; raises CheckpointError where it will not go on at all."""
        with self._changed:
            if self._is_over or self._asked is not None:
                why = "it has ended, or is told to stop" if self._is_over else "somebody else rescales it"
                raise CheckpointError(f"query {query} is not rescaled: {why}")
            self._asked, self._error = graph, None

    def wait(self, query: str, seconds: float) -> None:
        """Return when it has gone on; raises why it has not, or TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._asked is None, seconds):
                raise TimeoutError(
                    f"query {query} has not stopped within {seconds:g} s: it goes on with other tasks when it has"
                )
            if self._error is not None:
                raise self._error

    def take(self) -> JobGraph | None:
        """The query's job has ended: the plan by which it is to go on, if any."""
        with self._changed:
            return None if self._is_over else self._asked

    def gone_on(self) -> None:
        """It has."""
        with self._changed:
            self._asked = None
            self._changed.notify_all()

    def end(self, error: PenstockError | None = None) -> None:
        """It is told to stop, or has ended: it goes on no more. Who waits is told when it has ended: idempotent."""
        with self._changed:
            self._is_over = True
            if error is not None and self._asked is not None:
                self._asked, self._error = None, error
            self._changed.notify_all()
