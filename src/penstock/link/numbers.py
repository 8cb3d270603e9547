# SPDX-License-Identifier: Apache-2.0
"""Numbers of 32 bits for things that come and go: none is given twice while the first who has it lives."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.errors import ProtocolError

LIMIT = 1 << 32
"""One more than the largest number. 0 is never given."""

T = TypeVar("T")


class Numbered(Generic[T]):
    """The things that have a number now.

    Numbers rise, and begin anew at their end. One thread, or its caller's lock.
    """

    __slots__ = ("_last", "_limit", "_wrapped", "live")

    def __init__(self, limit: int = LIMIT) -> None:
        self.live: dict[int, T] = {}
        """By number; to be read only, where a lookup for each slice counts. `get` tells the rest."""
        self._last = 0
        self._limit = limit
        self._wrapped = False

    def add(self, thing: T) -> int:
        """Its number; ProtocolError where all are in use."""
        if len(self.live) >= self._limit - 1:
            raise ProtocolError(f"all {self._limit - 1} numbers of this connection are in use")
        number = self._last + 1
        while number >= self._limit or number in self.live:
            self._wrapped = self._wrapped or number >= self._limit
            number = 1 if number >= self._limit else number + 1
        self._last = number
        self.live[number] = thing
        return number

    def get(self, number: int) -> T | None:
        """The holder of the number; None if it was given back. ProtocolError for one that was never given out."""
        found = self.live.get(number)
        if found is None and not self._wrapped and not 0 < number <= self._last:
            raise ProtocolError(f"number {number} is used, but {self._last} is the last that was given out")
        return found

    def remove(self, number: int) -> None:
        """The number is free; idempotent."""
        self.live.pop(number, None)

    def clear(self) -> None:
        """All numbers are free."""
        self.live.clear()
