# SPDX-License-Identifier: Apache-2.0
"""The sums of a subpartition, made by its writer and by its reader: rows, bytes, and a sum of checksums.

Rules: checksums are summed modulo 2**64, so the order does not matter, and a lost, doubled or swapped message shows.
Sums of several subpartitions are the sums of what was read as one.

A stream's sums are compared at the end of each epoch too. They go on from there, so an end says all that stands in
front of it, and ends may come in another order than their places have.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from penstock.errors import IncompleteDataError
from penstock.shuffle.events import EndOfPartition, EpochEnd

_MASK = (1 << 64) - 1


class Sums:
    """Rows, payload bytes and checksums so far."""

    __slots__ = ("checksum", "nbytes", "rows")

    def __init__(self) -> None:
        self.rows = self.nbytes = self.checksum = 0

    def add(self, rows: int, nbytes: int, checksum: int) -> None:
        """Count one batch, message or block."""
        self.rows += rows
        self.nbytes += nbytes
        self.checksum = (self.checksum + checksum) & _MASK

    def end_of_partition(self) -> EndOfPartition:
        """The sums, as the event that ends a subpartition."""
        return EndOfPartition(self.rows, self.nbytes, self.checksum)


def sum_of(ends: Iterable[EndOfPartition]) -> EndOfPartition:
    """The sums of several subpartitions read as one."""
    sums = Sums()
    for end in ends:
        sums.add(end.rows, end.bytes, end.checksum)
    return sums.end_of_partition()


class EpochEnds:
    """The ends of one channel's epochs that have come and whose places among its messages were not reached yet."""

    __slots__ = ("_due", "_where")

    def __init__(self, where: str) -> None:
        self._where = where
        self._due: list[EpochEnd] = []

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self._due)

    def came(self, end: EpochEnd, messages: int) -> list[EpochEnd]:
        """An end has come after so many messages; returns those whose sums are compared now.

        Raises IncompleteDataError where it comes at its place, and other messages than it says stand in front of it.
        """
        bisect.insort(self._due, end, key=_place)
        reached = self.reached(messages)
        if not end.overtakes:
            self._refuse_behind(messages, end.messages)
        return reached

    def reached(self, messages: int) -> list[EpochEnd]:
        """The ends after the message that came last; raises IncompleteDataError for one that stands before it."""
        reached = self._due[: bisect.bisect_right(self._due, messages, key=_place)]
        del self._due[: len(reached)]
        if reached and reached[0].messages < messages:
            raise IncompleteDataError(
                f"{self._where}: an epoch ends after {reached[0].messages} messages, which is inside of a slice, or"
                f" one came twice; {messages} have come; the producer must run again"
            )
        return reached

    def finish(self, messages: int) -> None:
        """No message follows; raises IncompleteDataError if an end stands after one that did not come."""
        if self._due:
            self._refuse_behind(messages, self._due[0].messages)

    def _refuse_behind(self, messages: int, place: int) -> None:
        if place > messages:
            raise IncompleteDataError(
                f"{self._where}: {messages} messages came, and an epoch ends after {place} messages;"
                " the producer must run again"
            )


def _place(end: EpochEnd) -> int:
    return end.messages
