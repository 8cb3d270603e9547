# SPDX-License-Identifier: Apache-2.0
"""Operators that turn each batch into others, and are through with it when they are asked for the next one.

Any number of them that follow each other run as one loop, so that a chain of hundreds nests no calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

EachBatch = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]
"""The batches that come of one; all work is done when they are asked for."""


class BatchByBatch:
    """An operator that says what comes of one batch."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        raise NotImplementedError

    def each(self) -> EachBatch:
        """The function for one task, which may remember how large results were."""
        raise NotImplementedError

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All batches, by themselves."""
        each = self.each()
        for batch in batches:
            yield from each(batch)
