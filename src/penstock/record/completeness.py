# SPDX-License-Identifier: Apache-2.0
"""Completeness: the reader of a subpartition counts what its writer counted, and both must agree at the end.

Rules: rows and payload bytes are summed, message checksums are summed modulo 2**64, so order does not matter and
a lost, doubled or swapped message shows. Non-goal: finding out which message it was.
"""

from __future__ import annotations

from penstock.shuffle.errors import IncompleteDataError
from penstock.shuffle.events import EndOfPartition

_MODULUS = (1 << 64) - 1


class CompletenessCounter:
    """Rows, bytes and checksum of one subpartition so far."""

    __slots__ = ("checksum", "nbytes", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self.checksum = 0

    def __repr__(self) -> str:
        return f"CompletenessCounter({_figures(self.rows, self.nbytes, self.checksum)})"

    def add(self, rows: int, nbytes: int, checksum: int) -> None:
        """Count one message."""
        self.rows += rows
        self.nbytes += nbytes
        self.checksum = (self.checksum + checksum) & _MODULUS

    def merged(self, other: CompletenessCounter) -> CompletenessCounter:
        """A new counter of both: what went to one subpartition and what was broadcast to all."""
        both = CompletenessCounter()
        for counter in (self, other):
            both.add(counter.rows, counter.nbytes, counter.checksum)
        return both

    def end_of_partition(self) -> EndOfPartition:
        """What was counted, as the event that ends the subpartition."""
        return EndOfPartition(self.rows, self.nbytes, self.checksum)

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
