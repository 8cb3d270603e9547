# SPDX-License-Identifier: Apache-2.0
"""The outputs of a stream task: rows find their subpartitions, and those without room wait here.

Nothing here waits. What a step gave and no segment has room for is pending, at most one step of it, because the task
takes no input until it is gone; then, and not before, events may follow. Rows of a subpartition keep their order.
What was written becomes visible `buffer_timeout` seconds after the first of it: 0 at once, negative when a segment is
full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from penstock.record import Partitioner
from penstock.shuffle.events import Event
from penstock.shuffle.streaming import EventKind, StreamPartitionWriter


class StreamOutput:
    """One result partition."""

    def __init__(self, writer: StreamPartitionWriter, partitioner: Partitioner) -> None:
        self.writer = writer
        self._partitioner = partitioner
        self._pending: deque[tuple[int, pa.RecordBatch]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether all rows were taken."""
        return not self._pending and not self.writer.has_pending

    def put(self, batch: pa.RecordBatch) -> None:
        """Take a batch's rows for their subpartitions."""
        self._pending.extend(self._partitioner.split(batch))

    def drain(self, empty: pa.RecordBatch) -> bool:
        """Give the writer what it has room for; whether any of it was taken."""
        moved = False
        if not self._pending and self.writer.has_pending:
            # Only the rest of a large row is left: offers of nothing give it out.
            self._pending.extend((number, empty) for number in range(self._width))
        full: set[int] = set()
        for _ in range(len(self._pending)):
            number, batch = self._pending.popleft()
            taken = 0 if number in full else self._offer(batch, number)
            moved |= taken > 0
            if taken < batch.num_rows:
                full.add(number)
                self._pending.append((number, batch.slice(taken) if taken else batch))
        return moved

    @property
    def _width(self) -> int:
        return 1 if self._partitioner.broadcasts else self.writer.subpartitions

    def _offer(self, batch: pa.RecordBatch, number: int) -> int:
        return self.writer.broadcast(batch) if self._partitioner.broadcasts else self.writer.offer(batch, number)


class StreamOutputs:
    """All outputs of one task, of one schema."""

    def __init__(self, outputs: Sequence[StreamOutput], schema: pa.Schema, buffer_timeout: float) -> None:
        self._outputs = tuple(outputs)
        self._empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        self._timeout = buffer_timeout
        self._unseen_since: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether all rows were taken, so that events may follow."""
        return all(output.is_empty for output in self._outputs)

    @property
    def flush_at(self) -> float | None:
        """When what was written is to become visible, or None."""
        return None if self._unseen_since is None or self._timeout < 0 else self._unseen_since + self._timeout

    def put(self, batches: Sequence[pa.RecordBatch], now: float) -> None:
        """Take a step's rows, and write those for which there is room."""
        for output in self._outputs:
            for batch in batches:
                output.put(batch)
        if batches:
            self.drain(now)

    def drain(self, now: float) -> bool:
        """Write pending rows as far as there is room; whether any were."""
        moved = False
        for output in self._outputs:
            if not output.is_empty:
                moved |= output.drain(self._empty)
        if moved and self._unseen_since is None:
            self._unseen_since = now
        return moved

    def flush(self) -> None:
        """Make all that was written visible."""
        self._unseen_since = None
        for output in self._outputs:
            output.writer.flush()

    def flush_in_time(self, now: float) -> None:
        """Flush, where it is time."""
        deadline = self.flush_at
        if deadline is not None and now >= deadline:
            self.flush()

    def end_epoch(self, payload: bytes, kind: EventKind) -> None:
        """Pass a barrier on, behind all rows; only when `is_empty`."""
        for output in self._outputs:
            output.writer.end_epoch(payload, kind)
        self.flush()

    def emit(self, event: Event) -> None:
        """Pass an event on, behind all rows; only when `is_empty`."""
        for output in self._outputs:
            output.writer.emit(event)
        self.flush()

    def finish(self) -> None:
        """End all; only when `is_empty`."""
        for output in self._outputs:
            output.writer.finish()

    def fail(self, cause: BaseException) -> None:
        """Give all up."""
        for output in self._outputs:
            # The cause is what the caller must see, not that a broken output could not be told.
            with suppress(Exception):
                output.writer.fail(cause)
