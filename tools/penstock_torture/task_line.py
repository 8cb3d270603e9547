# SPDX-License-Identifier: Apache-2.0
"""The line of a task of a query in this process: what it says goes to a queue of the driver's."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.shuffle.actions import Action
from penstock.testing.memory_mailbox import MemoryMailbox
from penstock_torture.local_host import LocalHostStore

Task = tuple[int, int]
"""Vertex and subtask."""


class Said(NamedTuple):
    """The word of a task: `acknowledged`, `declined`, `data ended`, `finished` or `failed`."""

    attempt: int
    task: Task
    word: str
    checkpoint: int = 0
    value: Any = None


class TaskLine:
    """One task's: `who` is its attempt, and the task."""

    def __init__(self, inner: MemoryMailbox, said: queue.SimpleQueue[Said], attempt: int, task: Task) -> None:
        self._inner = inner
        self._said = said
        self._who = (attempt, task)
        self.metrics: Mapping[str, float] = {}
        self.figures: dict[int, Mapping[str, float]] = {}
        """The figures of each checkpoint, by its number."""
        self.host: LocalHostStore | None = None

    def act(self, action: Action) -> None:
        """A word to the task."""
        self._inner.act(action)

    def wait(self, seconds: float | None) -> None:
        """Wait for a reason to go on."""
        self._inner.wait(seconds)

    def take_actions(self) -> list[Action]:
        """The words that have come."""
        return self._inner.take_actions()

    def acknowledge(self, checkpoint: int, handle: bytes, figures: Mapping[str, float]) -> None:
        """A snapshot is stored, in a file of its own."""
        if self.host is not None:
            self.host.settled(checkpoint)
        self.stored(checkpoint, handle, figures)

    def stored(self, checkpoint: int, handle: bytes, figures: Mapping[str, float]) -> None:
        """A snapshot is stored, wherever."""
        self.figures[checkpoint] = dict(figures)
        self._said.put(Said(*self._who, "acknowledged", checkpoint, handle))

    def decline(self, checkpoint: int, cause: str) -> None:
        """The task takes no snapshot."""
        if self.host is not None:
            self.host.settled(checkpoint)
        self._said.put(Said(*self._who, "declined", checkpoint, cause))

    def data_ended(self) -> None:
        """All data is handled, or for now all that was there."""
        self._said.put(Said(*self._who, "data ended"))

    def report(self, metrics: Mapping[str, float]) -> None:
        """The figures so far."""
        self.metrics = metrics
