# SPDX-License-Identifier: Apache-2.0
"""`withWatermark` in a streaming query: rows pass as they are, and a task's watermark follows their times.

The watermark is the greatest time that this task has seen less the delay. A task that reads a source's partitions has
one for each of them, and the least counts: a partition that is behind the others is not late for that. Rows count for
the partition whose batch was read last, so a function in front that holds rows back gives them to another one.
Watermarks of the inputs end here, the end of all data does not.

The rows of a run that reads what is available are one batch, as are those of files that are there as a query begins:
until all of them have been read the watermark stays where it was, so that none is late for the order of reading. So
are the rows of one range of a data source, and of one version of a table.

A snapshot holds the time that was reached, also where that is none, and the greatest times where they are others. If
the number of tasks has changed, each begins with the least of those, so that no row is late only because a partition
has another task now. The greatest time of all rows then counts at the end of a run alone, where tasks share it; up to
there a task counts from the least of those that the former tasks had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgpack
import pyarrow as pa

from penstock.operators.intervals import interval_text
from penstock.operators.times import greatest
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.sources import PartitionReader, SourceReader, has_given_all, partitions_of, reads_backlog
from penstock.stream.watermark import LEAST, Watermark, least_stored
from penstock.stream.watermarks import EventTimeProgress, PartitionTimes, RowTimes, Waiting

_GREATEST = "greatest"
_PARTITIONS = "partitions"
_FRESH = "fresh"
_COUNTING = "counting"
_COMING = "coming"
_ROWS = ""
"""The name of the greatest time of all rows among those of partitions."""


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
        self._reader: SourceReader | None = None
        self._partitions: PartitionReader | None = None
        self._is_bounded = self._has_all = False

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Begin where the snapshot was."""
        self._is_bounded = context.is_bounded
        least = least_stored(state.get(_GREATEST) for state in restored)
        found = [msgpack.unpackb(state[_PARTITIONS]) if _PARTITIONS in state else {} for state in restored]
        rows = [Watermark(times.get(_ROWS, LEAST)).stored for times in found]
        counting = [state.get(_COUNTING, known) for state, known in zip(restored, rows, strict=True)]
        greatest: dict[str, int] = {}
        for name, time in (item for times in found for item in times.items()):
            greatest[name] = max(time, greatest.get(name, LEAST))
        self._times = RowTimes(self._operator.delay, context.idle_after)
        self._times.restore(least, greatest.pop(_ROWS, LEAST), least_stored(counting))
        fresh = [name for state in restored if _FRESH in state for name in msgpack.unpackb(state[_FRESH])]
        self._of_partitions = PartitionTimes(self._operator.delay, context.idle_after)
        coming = {name: time for s in restored if _COMING in s for name, time in msgpack.unpackb(s[_COMING]).items()}
        self._of_partitions.restore(least, greatest, fresh, coming)

    def reads(self, reader: SourceReader) -> None:
        """The rows are those of this reader."""
        self._reader, self._partitions = reader, partitions_of(reader)

    def batch_read(self) -> None:
        """A batch of the reader comes, of which filters may leave no row."""
        if self._partitions is not None:
            self._of_partitions.was_read(self._partitions.partition)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The batch as it is."""
        moment = greatest(batch.column(self._operator.column))
        if self._partitions is None:
            self._times.rows_came(moment)
        else:
            name = self._partitions.partition
            self._of_partitions.rows_came(name, moment, self._unit_of(name))
        return (batch,)

    def end_run(self) -> None:
        """All rows of the run have come."""
        self._has_all = True

    def progress(self, incoming: EventTimeProgress, waited: float) -> EventTimeProgress:
        """Its own, but for the end of all data."""
        if incoming.watermark.is_end:
            return EventTimeProgress(incoming.watermark)
        is_held = reads_backlog(self._reader) or (self._is_bounded and not self._has_all)
        if self._partitions is not None:
            waiting = self._waiting(self._partitions)
            return (
                self._of_partitions.held()
                if is_held
                else self._of_partitions.progress(waiting, waited, is_last=self._has_all)
            )
        if is_held:
            return self._times.held(waited)
        is_last = self._has_all and (self._is_bounded or has_given_all(self._reader))
        return self._times.last() if is_last else self._times.progress(waited)

    def _waiting(self, partitions: PartitionReader) -> Waiting:
        """The partitions that may give rows; what was one batch counts for those that are behind it."""
        waiting = partitions.partitions_waiting()
        for name in waiting:
            self._of_partitions.now_in(name, self._unit_of(name))
        return waiting

    def _unit_of(self, partition: str) -> object:
        unit_of = getattr(self._partitions, "unit_of", None)
        return None if unit_of is None else unit_of(partition)

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The time that was reached, and the greatest times of rows that are not that."""
        if self._partitions is not None:
            self._waiting(self._partitions)
        reached = self._times.reached if self._partitions is None else self._of_partitions.reached
        stored = reached.stored
        chunks: list[Chunk] = [(_GREATEST, lambda: stored)]
        if self._times.counting != Watermark(self._times.greatest):
            counting = self._times.counting.stored
            chunks.append((_COUNTING, lambda: counting))
        times = dict(self._of_partitions.greatest)
        if self._times.greatest != LEAST:
            times[_ROWS] = self._times.greatest
        if times:
            packed: bytes = msgpack.packb(times)
            chunks.append((_PARTITIONS, lambda: packed))
        if self._of_partitions.coming:
            coming: bytes = msgpack.packb(self._of_partitions.coming)
            chunks.append((_COMING, lambda: coming))
        if self._of_partitions.fresh and not self._has_all:
            fresh: bytes = msgpack.packb(sorted(self._of_partitions.fresh))
            chunks.append((_FRESH, lambda: fresh))
        return chunks
