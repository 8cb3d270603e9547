# SPDX-License-Identifier: Apache-2.0
"""The rows that a writer is offered: those of one batch, by subpartition, in runs.

A split says which rows go where; its parts are made when it is gone through, and may be kept: their memory is never
used again. A writer that stores rows by column takes the source and the order instead, and gathers into memory of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ALL: Final = -1
"""Stands for all subpartitions: the run is the batch, which goes to each of them."""

Gather = Callable[[pa.RecordBatch, pa.Array], pa.RecordBatch]
"""The rows at these positions, as a batch."""


class Split:
    """A batch's rows by subpartition, in runs: in `order`, its rows are `counts[0]` for `numbers[0]`, and so on."""

    __slots__ = ("_gather", "counts", "numbers", "order", "source")

    def __init__(
        self,
        source: pa.RecordBatch,
        numbers: npt.ArrayLike,
        counts: npt.ArrayLike,
        order: pa.Array | None = None,
        gather: Gather = pa.RecordBatch.take,
    ) -> None:
        self.source = source
        self.order = order
        """The rows' positions in the source, as integers of 64 bits; None where they stay as they are."""
        self.numbers: npt.NDArray[np.int64] = np.asarray(numbers, np.int64)
        self.counts: npt.NDArray[np.int64] = np.asarray(counts, np.int64)
        self._gather = gather

    @classmethod
    def whole(cls, batch: pa.RecordBatch, subpartition: int) -> Split:
        """All rows of a batch for one subpartition, or for `ALL`."""
        return cls(batch, (subpartition,), (batch.num_rows,))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.source.num_rows)

    @property
    def is_for_all(self) -> bool:
        """True if it is one run that goes to all subpartitions."""
        return len(self.numbers) == 1 and int(self.numbers[0]) == ALL

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The parts, each with its subpartition; rows are gathered once."""
        if self.order is not None:
            self.source, self.order = self._gather(self.source, self.order), None
        if len(self.numbers) == 1:
            yield int(self.numbers[0]), self.source
            return
        position = 0
        for number, count in zip(self.numbers.tolist(), self.counts.tolist(), strict=True):
            yield number, self.source.slice(position, count)
            position += count

    def rest(self, taken: int) -> Split:
        """The rows that are left when so many were taken from the front."""
        if not taken:
            return self
        ends = np.cumsum(self.counts)
        first = int(np.searchsorted(ends, taken, "right"))
        counts = self.counts[first:].copy()
        if len(counts):
            counts[0] = int(ends[first]) - taken
        if self.order is not None:
            return Split(self.source, self.numbers[first:], counts, self.order.slice(taken), self._gather)
        return Split(self.source.slice(taken), self.numbers[first:], counts)
