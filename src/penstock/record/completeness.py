# SPDX-License-Identifier: Apache-2.0
"""Completeness: the reader of a subpartition counts what its writer counted, and both must agree at the end.

A lost, doubled or swapped message shows. Non-goal: finding out which message it was.
"""

from __future__ import annotations

from penstock.errors import IncompleteDataError
from penstock.shuffle.events import EndOfPartition
from penstock.shuffle.sums import Sums


class CompletenessCounter(Sums):
    """Rows, bytes and checksum of one subpartition so far."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"CompletenessCounter({_figures(self.rows, self.nbytes, self.checksum)})"

    def merged(self, other: CompletenessCounter) -> CompletenessCounter:
        """A new counter of both: what went to one subpartition and what was broadcast to all."""
        both = CompletenessCounter()
        for counter in (self, other):
            both.add(counter.rows, counter.nbytes, counter.checksum)
        return both

    def verify(self, expected: EndOfPartition, where: str) -> None:
        """Raise IncompleteDataError with both figures unless they agree; `where` names partition, attempt, host."""
        if self.end_of_partition() != expected:
            raise IncompleteDataError(
                f"{where}: received {_figures(self.rows, self.nbytes, self.checksum)}, but the writer counted "
                f"{_figures(expected.rows, expected.bytes, expected.checksum)}; the data is damaged or part of it "
                f"was lost, the producer must run again"
            )


def _figures(rows: int, nbytes: int, checksum: int) -> str:
    return f"{rows} rows, {nbytes} bytes, checksum {checksum:016x}"
