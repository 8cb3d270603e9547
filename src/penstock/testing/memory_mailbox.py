# SPDX-License-Identifier: Apache-2.0
"""The line of a streaming task in the `memory` shuffle service; the test is the JobMaster at its other end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from penstock.shuffle import AttemptId
from penstock.shuffle.actions import Action
from penstock.shuffle.errors import EnvironmentLostError, PenstockError, TaskCancelledError
from penstock.testing.memory_registry import remaining


class Post(Protocol):
    """The state that the lines of an application share; `MemoryRegistry` has it."""

    condition: threading.Condition
    cancelled: set[AttemptId]
    lost: set[str]

    def changing(self) -> AbstractContextManager[None]:
        """Hold the lock, and wake all waiters after the change."""

    def tell(self, attempt: AttemptId) -> None:
        """Something has come for this task."""

    def news_of(self, attempt: AttemptId) -> tuple[int, int]:
        """Other numbers than before when something has come for this task."""


class Acknowledged(NamedTuple):
    """The word of a task about its part of a checkpoint."""

    checkpoint: int
    handle: bytes
    figures: dict[str, float]


class MemoryMailbox:
    """A `Mailbox`; made by `MemoryShuffleEnvironment.create_mailbox`.

    The test acts by `act` and `refuse`, from any thread, and reads what the task has said: `acknowledged`,
    `declined`, `has_ended` and `metrics`.
    """

    def __init__(self, post: Post, environment: str, attempt: AttemptId) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.declined: list[tuple[int, str]] = []
        self.has_ended = False
        self.metrics: dict[str, float] = {}
        self._post = post
        self._environment = environment
        self._attempt = attempt
        self._actions: deque[Action] = deque()
        self._refused: deque[PenstockError] = deque()
        self._seen = (0, 0)

    def act(self, action: Action) -> None:
        """Have the JobMaster say this to the task. Any thread."""
        with self._post.changing():
            self._actions.append(action)
            self._post.tell(self._attempt)

    def refuse(self, error: PenstockError) -> None:
        """Have something that the task said be answered with this. Any thread."""
        with self._post.changing():
            self._refused.append(error)
            self._post.tell(self._attempt)

    def wait(self, seconds: float | None) -> None:
        """Return when anything has come for this task since the last call returned, or after so many seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._post.condition:
            while self._post.news_of(self._attempt) == self._seen:
                self._check()
                left = remaining(deadline)
                if left == 0:
                    break
                self._post.condition.wait(left)
            self._seen = self._post.news_of(self._attempt)
            self._check()
            if self._refused:
                raise self._refused.popleft()

    def take_actions(self) -> list[Action]:
        """The words of the JobMaster since the last call, in order."""
        with self._post.condition:
            found = list(self._actions)
            self._actions.clear()
            return found

    def acknowledge(self, checkpoint: int, handle: bytes, figures: Mapping[str, float]) -> None:
        """Note it for the test."""
        with self._post.changing():
            self.acknowledged.append(Acknowledged(checkpoint, bytes(handle), dict(figures)))

    def decline(self, checkpoint: int, cause: str) -> None:
        """Note it for the test."""
        with self._post.changing():
            self.declined.append((checkpoint, cause))

    def data_ended(self) -> None:
        """Note it for the test."""
        with self._post.changing():
            self.has_ended = True

    def report(self, metrics: Mapping[str, float]) -> None:
        """Note it for the test."""
        with self._post.condition:
            self.metrics = dict(metrics)

    def _check(self) -> None:
        if self._attempt in self._post.cancelled:
            raise TaskCancelledError(f"the task of {self._attempt} was told to stop")
        if self._environment in self._post.lost:
            raise EnvironmentLostError(f"environment {self._environment} is gone")
