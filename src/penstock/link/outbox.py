# SPDX-License-Identifier: Apache-2.0
"""The words of one side of the control plane to the other: numbered, in order, each kept until the other side has it.

A word over a connection that broke is told again over the next one, under the same number; the other side's `Inbox`
drops those that it has had. So nothing is lost while a process pauses or a connection is mended, and nothing counts
twice. Sans-I/O. Limit: what waits is not bounded here. It goes with its environment, which is lost at the end of its
lease at the latest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.errors import ProtocolError

T = TypeVar("T")


class Outbox(Generic[T]):
    """The things to tell. `wake` is called when something is put."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = _nothing
        self._last = 0
        self._waiting: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> tuple[int, T] | None:
        """The first that the other side has not taken, with its number."""
        return self.after(self._last - len(self._waiting))

    def put(self, thing: T) -> None:
        """Tell this, after everything else."""
        self._last += 1
        self._waiting.append(thing)
        self.wake()

    def after(self, number: int) -> tuple[int, T] | None:
        """The next one after this number that the other side has not taken, with its own; None if there is none.

        Raises ProtocolError for a number that is still to come.
        """
        if number > self._last:
            raise ProtocolError(f"number {number} is asked for, but {self._last} is the last that was told")
        taken = self._last - len(self._waiting)
        number = max(number, taken)
        return None if number == self._last else (number + 1, self._waiting[number - taken])

    def taken(self, number: int) -> None:
        """The other side has this one, and what was before it; idempotent. ProtocolError for one to come."""
        if number > self._last:
            raise ProtocolError(f"number {number} is taken, but {self._last} is the last that was told")
        for _ in range(number - (self._last - len(self._waiting))):
            self._waiting.popleft()


class Inbox:
    """The things that the other side has told: up to `last`."""

    def __init__(self) -> None:
        self.last = 0

    def take(self, number: int) -> bool:
        """Take a number; True if it is new, and its thing is to be carried out now. False where it came before.

        The other side tells in order; what it left out it has given up.
        """
        if number <= self.last:
            return False
        self.last = number
        return True


def _nothing() -> None:
    pass
