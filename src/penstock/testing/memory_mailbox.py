# SPDX-License-Identifier: Apache-2.0
"""The mailbox of a streaming task in the `memory` shuffle service; the test is the JobMaster at its other end."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.shuffle.actions import Action
from penstock.testing.memory_host import MemoryHost


class Acknowledged(NamedTuple):
    """The word of a task about its part of a checkpoint."""

    checkpoint: int
    handle: bytes
    figures: dict[str, float]


class MemoryMailbox:
    """A `Mailbox` of the task that has this host.

    The test acts by `act` and `refuse`, from any thread, and reads what the task has said: `acknowledged`,
    `declined`, `has_ended` and `metrics`.
    """

    def __init__(self, host: MemoryHost) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.declined: list[tuple[int, str]] = []
        self.has_ended = False
        self.metrics: dict[str, float] = {}
        self._host = host
        self._actions: deque[Action] = deque()
        self._refused: deque[PenstockError] = deque()
        self._seen = 0

    def act(self, action: Action) -> None:
        """Have the JobMaster say this to the task. Any thread."""
        self._actions.append(action)
        self._host.wake()

    def refuse(self, error: PenstockError) -> None:
        """Have something that the task said be answered with this. Any thread."""
        self._refused.append(error)
        self._host.wake()

    def wait(self, seconds: float | None) -> None:
        """Return when anything has come for this task since the last call returned, or after so many seconds."""
        self._host.wait(self._seen, seconds)
        self._seen = self._host.arrivals
        if self._refused:
            raise self._refused.popleft()

    def take_actions(self) -> list[Action]:
        """The words of the JobMaster since the last call, in order."""
        found = []
        while self._actions:
            found.append(self._actions.popleft())
        return found

    def acknowledge(self, checkpoint: int, handle: bytes, figures: Mapping[str, float]) -> None:
        """Note it for the test."""
        self.acknowledged.append(Acknowledged(checkpoint, bytes(handle), dict(figures)))

    def decline(self, checkpoint: int, cause: str) -> None:
        """Note it for the test."""
        self.declined.append((checkpoint, cause))

    def data_ended(self) -> None:
        """Note it for the test."""
        self.has_ended = True

    def report(self, metrics: Mapping[str, float]) -> None:
        """Note it for the test."""
        self.metrics = dict(metrics)
