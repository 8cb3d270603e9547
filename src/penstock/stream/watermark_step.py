# SPDX-License-Identifier: Apache-2.0
"""`withWatermark` in a streaming query: rows pass as they are, and a task's watermark follows their times.

The watermark is the greatest time that this task has seen less the delay. A task that reads a source's partitions has
one for each of them, and the least counts: a partition that is behind the others is not late for that. Rows count for
the partition whose batch was read last, so a function in front that holds rows back gives them to another one.
Watermarks of the inputs end here, the end of all data does not. A snapshot holds the greatest times. If the number of
tasks has changed, each begins with the least of those, so that no row is late only because a partition has another
task now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgpack
import pyarrow as pa

from penstock.operators.intervals import interval_text
from penstock.operators.times import greatest
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.sources import PartitionReader
from penstock.stream.watermark import least_stored
from penstock.stream.watermarks import EventTimeProgress, PartitionTimes, RowTimes

_GREATEST = "greatest"
_PARTITIONS = "partitions"


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
        self._of_partitions = PartitionTimes(operator.delay, 0.0)
        self._reader: PartitionReader | None = None

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Begin where the snapshot was."""
        self._times = RowTimes(self._operator.delay, context.idle_after)
        least = least_stored(state.get(_GREATEST) for state in restored)
        self._times.restore(least)
        self._of_partitions = PartitionTimes(self._operator.delay, context.idle_after)
        found = [msgpack.unpackb(state[_PARTITIONS]) for state in restored if _PARTITIONS in state]
        self._of_partitions.restore(least, {name: time for times in found for name, time in times.items()})

    def reads(self, reader: PartitionReader) -> None:
        """The rows are those of this reader's partitions."""
        self._reader = reader

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The batch as it is."""
        moment = greatest(batch.column(self._operator.column))
        if self._reader is None:
            self._times.rows_came(moment)
        else:
            self._of_partitions.rows_came(self._reader.partition, moment)
        return (batch,)

    def progress(self, incoming: EventTimeProgress, waited: float) -> EventTimeProgress:
        """Its own, but for the end of all data."""
        if incoming.watermark.is_end:
            return EventTimeProgress(incoming.watermark)
        if self._reader is not None:
            return self._of_partitions.progress(self._reader.partitions_waiting())
        return self._times.progress(waited)

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The greatest time, where there was one, and those of partitions."""
        reached = self._times.greatest if self._reader is None else self._of_partitions.reached
        chunks: list[Chunk] = []
        if not reached.is_none:
            stored = reached.stored
            chunks.append((_GREATEST, lambda: stored))
        if self._of_partitions.greatest:
            packed: bytes = msgpack.packb(self._of_partitions.greatest)
            chunks.append((_PARTITIONS, lambda: packed))
        return chunks
