# SPDX-License-Identifier: Apache-2.0
"""The budget of each user at a service: no user takes what is there for all. Pure.

Rules: a user is who the kernel says, over a Unix socket, or whose application it is, over a port; all of a user's
applications share. The service has so many descriptors: a user's connections are fewer than what is left for others,
so that one user gets half at the most, two of them a third each, and there is always something left. Their
memory is bounded beside: a connection costs `CONNECTION_BYTES`, and of questions that have come in part, or whose
answers are not read, a user has a quarter of the memory. The service reads no more questions of a user who is over,
until it is less; a connection beyond the budget is closed.

Limit: users that are one for the kernel, such as pods that all run as 185, share one budget.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

CONNECTION_BYTES: Final = 16 << 10
"""The least that a connection costs: its objects, its buffer, and a piece of an answer."""
MOST_QUESTIONS: Final = 16_384
"""Questions of one user under way."""
_SPARE: Final = 64
"""Descriptors for files, the index and listeners."""


@dataclass(slots=True)
class UserShare:
    """One user's part of what there is: connections, bytes of questions that have come in part, unread answers."""

    most_bytes: int
    user: Hashable = None
    connections: int = 0
    questions: int = 0
    half: int = 0
    unread: int = 0
    _waiting: dict[Callable[[], None], None] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True if no more of this user's questions are to be read for now."""
        return self.questions >= MOST_QUESTIONS or self.unread > self.most_bytes

    def take_half(self, size: int) -> bool:
        """Have memory for a question of this size that has come in part; False where that would be too much."""
        if self.half + size > self.most_bytes:
            return False
        self.half += size
        return True

    def wait(self, wake: Callable[[], None]) -> None:
        """Call this, once, when the user is not over any more."""
        self._waiting[wake] = None

    def leave(self, wake: Callable[[], None]) -> None:
        """Do not call this any more; idempotent."""
        self._waiting.pop(wake, None)

    def less(self, *, questions: int = 0, unread: int = 0) -> None:
        """A question was answered, or an answer was read."""
        self.questions -= questions
        self.unread -= unread
        if self._waiting and not self.is_over:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting:
                wake()


class UserBudgets:
    """The shares of all users, of so many descriptors, with so many bytes of memory each."""

    def __init__(self, memory: int, descriptors: int) -> None:
        self._descriptors = max(1, descriptors - _SPARE)
        self._most = max(64, memory // CONNECTION_BYTES)
        self._bytes = max(1 << 20, memory // 4)
        self._shares: dict[Hashable, UserShare] = {}
        self._connections = 0

    def __contains__(self, user: Hashable) -> bool:
        return user in self._shares

    @property
    def of_one(self) -> int:
        """The connections that one user may have, if there is no other."""
        return min(self._most, self._descriptors // 2)

    def enter(self, user: Hashable) -> UserShare | None:
        """A connection of this user has come: its share, or None where it is one too many."""
        share = self._shares.get(user)
        has = 0 if share is None else share.connections
        if has >= min(self._most, self._descriptors - self._connections):
            return None
        if share is None:
            share = self._shares[user] = UserShare(self._bytes, user)
        share.connections += 1
        self._connections += 1
        return share

    def leave(self, user: Hashable) -> None:
        """A connection of this user has ended."""
        share = self._shares[user]
        share.connections -= 1
        self._connections -= 1
        if not share.connections:
            del self._shares[user]
