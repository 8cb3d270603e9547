# SPDX-License-Identifier: Apache-2.0
"""Whose memory the rows in a chain lie in.

A function may write into what it gave as soon as it is asked for more: a NumPy array becomes a column without a copy,
whatever flags it has. So its batches are lent until then, and so are slices, columns and filtered rows of them. An
operator that holds rows longer gets rows of their own (`OwnRows`), which stands in front of all that may hold on to
its input. Columns of its input, which are not written into, are not lent when it passes them on. Nor is anything that
Penstock's own operators make. A dictionary inside another type counts as lent, because Arrow hides its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.record.copies import Copies, Places, buffers_of, shows_all_buffers

_WORTH_A_LOOK = 64 << 10
"""To look at each column of less takes longer than to copy them all."""

Keeps = Callable[[pa.RecordBatch], bool]
"""Tells whether a batch is still held when the next one is asked for."""


class Loan:
    """The last batch of one function, which is lent until the function is asked for more."""

    def __init__(self) -> None:
        self._copies = Copies()
        self._passed: pa.RecordBatch | None = None
        self._lent: pa.RecordBatch | None = None
        self._places: Places | None = None

    def passing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function's input, which it may pass on."""
        for batch in batches:
            self._passed = batch
            yield batch
            self._passed = None

    def lending(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches that the function gives."""
        for batch in batches:
            self._lent = batch
            yield batch
            self._lent = self._places = None

    def own(self, batch: pa.RecordBatch, read: frozenset[int] | None = None) -> pa.RecordBatch:
        """The same rows, to be held: columns that lie in lent memory, of those that are `read`, are copied."""
        if self._lent is None:
            return batch
        if batch.get_total_buffer_size() < _WORTH_A_LOOK:  # `nbytes` would take longer than the copy
            return self._copies.of(batch)
        columns = [
            self._copies.of_column(column) if (read is None or at in read) and self._is_lent(column) else column
            for at, column in enumerate(batch.columns)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch

    def _is_lent(self, column: pa.Array) -> bool:
        if not shows_all_buffers(column.type):
            return True
        places = self._places = self._places or self._lent_places()
        return any(places.holds(buffer) for buffer in buffers_of(column))

    def _lent_places(self) -> Places:
        """The memory of what the function gave, without what lies in its input and can't be written into."""
        passed = [] if self._passed is None else self._passed.columns
        fixed = Places(buffer for column in passed for buffer in buffers_of(column) if not buffer.is_mutable)
        given = [] if self._lent is None else self._lent.columns
        return Places(buffer for column in given for buffer in buffers_of(column) if not fixed.holds(buffer))


def passing(loan: Loan | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function's input."""
    return batches if loan is None else loan.passing(batches)


def lending(loan: Loan | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that a function gives: lent, or rows of their own without a loan."""
    return map(Copies().of, batches) if loan is None else loan.lending(batches)


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Gives rows of their own if `keeps` says that they are held; stands after a function."""

    loan: Loan
    keeps: Keeps | None = None
    read: frozenset[int] | None = None
    """The places of the columns that are read after it, if that is known: the others are not copied."""

    @property
    def name(self) -> str:
        """Messages name it."""
        return "rows of their own"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows."""
        for batch in batches:
            yield self.loan.own(batch, self.read) if self.keeps is None or self.keeps(batch) else batch
