# SPDX-License-Identifier: Apache-2.0
"""What is counted of a subpartition, by its writer and by whoever reads it: rows, bytes, and a sum of checksums.

Rules: checksums are summed modulo 2**64, so the order does not matter, and a lost, doubled or swapped message shows.
Sums of several subpartitions are the sums of what was read as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.shuffle.events import EndOfPartition

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
        """What was counted, as the event that ends a subpartition."""
        return EndOfPartition(self.rows, self.nbytes, self.checksum)


def sum_of(ends: Iterable[EndOfPartition]) -> EndOfPartition:
    """What several subpartitions read as one hold."""
    sums = Sums()
    for end in ends:
        sums.add(end.rows, end.bytes, end.checksum)
    return sums.end_of_partition()
