# SPDX-License-Identifier: Apache-2.0
"""Questions that may wait long for their answers, and are asked again over each new connection.

Each has a number. The answering side keeps the answer, or the work on it, by that number: a question that comes again
gets the same answer and is not carried out again. A question whose answer the asker has got is forgotten; it says so
with each heartbeat. A copy that comes later still, out of a connection that was given up, is refused. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.errors import StaleError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """The state of an asker: the numbers up to `last` are given out, and of these some have no answer yet."""

    last: int = 0
    unanswered: tuple[int, ...] = ()


class Questions:
    """The asker's side."""

    def __init__(self) -> None:
        self._last = 0
        self._unanswered: dict[int, None] = {}

    @property
    def asked(self) -> Asked:
        """The state that the other side is to be told now and then."""
        return Asked(self._last, tuple(self._unanswered))

    def ask(self) -> int:
        """The number of a new question, under which it is asked until it has its answer."""
        self._last += 1
        self._unanswered[self._last] = None
        return self._last

    def answered(self, number: int) -> None:
        """It has its answer, or its caller has given up: it is not asked again."""
        self._unanswered.pop(number, None)


class Answers(Generic[T]):
    """The other side, for one asker; a `T` is an answer, or the work on one."""

    def __init__(self) -> None:
        self.kept: dict[int, T] = {}
        self._asked = Asked()

    def get(self, number: int, begin: Callable[[], T]) -> T:
        """The answer to this question; `begin` makes it where the question is new.

        Raises StaleError where the asker has had the answer.
        """
        if number in self.kept:
            return self.kept[number]
        if number <= self._asked.last and number not in self._asked.unanswered:
            raise StaleError(f"question {number} was answered before, and that answer has come")
        return self.kept.setdefault(number, begin())

    def settle(self, asked: Asked) -> None:
        """Forget what the asker has. Words that overtook each other on their way do no harm."""
        if asked.last < self._asked.last:
            return
        unanswered = set(asked.unanswered)
        if asked.last == self._asked.last:
            unanswered &= set(self._asked.unanswered)
        self._asked = Asked(asked.last, tuple(sorted(unanswered)))
        for number in [number for number in self.kept if number <= asked.last and number not in unanswered]:
            del self.kept[number]
