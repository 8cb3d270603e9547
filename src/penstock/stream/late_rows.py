# SPDX-License-Identifier: Apache-2.0
"""Rows by their lateness: those that are older than the watermark where they come, or those that are not.

Two streams of one stream behind `withWatermark`, its late rows and its rows on time, are all of its rows: both see
the same rows and watermarks in the same order, because one task sends them to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.group_merges import boolean_array
from penstock.operators.times import microseconds_of
from penstock.stream.chain import PlainStep
from penstock.stream.watermark import Watermark


@dataclass(frozen=True, slots=True)
class ByLateness:
    """The rows whose time in `column` is older than the watermark, or with `is_late` false the others."""

    column: str
    is_late: bool
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"{'late rows' if self.is_late else 'rows on time'} by {self.column}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, as in a batch job: none is late."""
        for batch in batches:
            if not self.is_late:
                yield batch

    def step(self) -> LatenessStep:
        """The step of one subtask."""
        return LatenessStep(self)


class LatenessStep(PlainStep):
    """One subtask's judge: it needs no state, for a task begins with its restored watermark."""

    def __init__(self, operator: ByLateness) -> None:
        self._operator = operator
        self._watermark = Watermark()

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows of its kind."""
        times, missing = microseconds_of(batch.column(self._operator.column))
        is_late = self._watermark.is_late(times)
        if missing is not None:
            is_late &= ~missing
        chosen = is_late if self._operator.is_late else ~is_late
        if np.all(chosen):
            return (batch,)
        return (batch.filter(boolean_array(chosen)),)

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """Judge by it from here on."""
        self._watermark = watermark
        return ()
