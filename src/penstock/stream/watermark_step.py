# SPDX-License-Identifier: Apache-2.0
"""`withWatermark` in a streaming query: rows pass as they are, and a task's watermark follows their times.

The watermark is the greatest time that this task has seen less the delay, also where it reads several partitions: a
row of a slow one that is older is late for what comes after it. Watermarks of the inputs end here, the end of all
data does not. A snapshot holds the greatest time. If the number of tasks has changed, each begins with the least of
those, so that no row is late only because a partition has another task now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.intervals import interval_text
from penstock.operators.times import greatest
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.watermarks import LEAST, MOST, EventTimeProgress, RowTimes, least_watermark, stored_watermark

_GREATEST = "greatest"


@dataclass(frozen=True, slots=True)
class AssignWatermark:
    """A watermark for the rows of a stream: the greatest time of `column` less `delay`, in microseconds."""

    column: str
    delay: int
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"withWatermark({self.column}, {interval_text(self.delay)})"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows: a batch job has no watermarks."""
        return batches

    def step(self) -> WatermarkStep:
        """The step of one subtask."""
        return WatermarkStep(self)


class WatermarkStep(PlainStep):
    """One subtask's watermark."""

    makes_time = True

    def __init__(self, operator: AssignWatermark) -> None:
        self._operator = operator
        self._times = RowTimes(operator.delay, 0.0)

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Begin where the snapshot was."""
        self._times = RowTimes(self._operator.delay, context.idle_after)
        self._times.restore(least_watermark(state.get(_GREATEST) for state in restored))

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The batch as it is."""
        self._times.rows_came(greatest(batch.column(self._operator.column)))
        return (batch,)

    def progress(self, incoming: EventTimeProgress, waited: float) -> EventTimeProgress:
        """Its own, but for the end of all data."""
        return EventTimeProgress(MOST) if incoming.watermark == MOST else self._times.progress(waited)

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The greatest time, where there was one."""
        if self._times.greatest == LEAST:
            return []
        stored = stored_watermark(self._times.greatest)
        return [(_GREATEST, lambda: stored)]
