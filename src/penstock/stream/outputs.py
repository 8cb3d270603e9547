# SPDX-License-Identifier: Apache-2.0
"""The outputs of a stream task: rows find their subpartitions, and those without room wait here.

Nothing here waits. Rows of a step that no segment has room for are pending, those of one step at most, because the
task takes no input until they are gone; then, and not before, events may follow. Rows of a subpartition keep their
order. Written rows become visible `buffer_timeout` seconds after the first of them: 0 at once, negative when a
segment is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelKey
from penstock.record import Partitioner
from penstock.shuffle import EventKind, ResultPartitionWriter
from penstock.shuffle.endpoints import Overtaken
from penstock.shuffle.events import Event
from penstock.shuffle.splits import Split
from penstock.stream.in_flight import InFlight, SavedChannel, rows_of
from penstock.stream.persisting import AtCheckpoint, Persisting
from penstock.stream.row_counts import RowCounts, Uncounted


@dataclass(frozen=True, slots=True)
class OutputChannels:
    """The names of an output's channels in checkpoints, and whether barriers may overtake rows in them."""

    edge: str
    subtask: int
    allows_overtaking: bool

    def key(self, consumer: int) -> ChannelKey:
        """The channel to one consumer."""
        return ChannelKey("out", self.edge, self.subtask, consumer)


class StreamOutput:
    """One result partition. Without `channels` no barrier overtakes its rows."""

    def __init__(
        self,
        writer: ResultPartitionWriter,
        partitioner: Partitioner,
        channels: OutputChannels | None = None,
        persisting: Persisting | None = None,
        given: Callable[[int, int], None] | None = None,
    ) -> None:
        self.writer = writer
        self._given = given
        """Hears of rows that are dealt out: to which subpartition, negative for all, and how many."""
        self.channels = channels
        self._partitioner = partitioner
        self._pending: deque[tuple[int, InFlight]] = deque()
        self._saved: list[tuple[int, InFlight]] = []
        self._overtaken: Sequence[Overtaken] | None = None
        self._persisting = persisting or AtCheckpoint()

    @property
    def allows_overtaking(self) -> bool:
        """True if barriers may overtake rows."""
        return self.channels is not None and self.channels.allows_overtaking

    @property
    def is_empty(self) -> bool:
        """True if all rows were taken."""
        return not self._pending and not self.writer.has_pending

    def put(self, batch: pa.RecordBatch) -> None:
        """Take a batch's rows for their subpartitions."""
        if self._given is not None:
            split = list(self._partitioner.split(batch))
            for number, rows in split:
                self._given(number, rows.num_rows)
                self._log_for_readers(number, rows)
            self._pending.extend(split)
            return
        if self.channels is None or not self.allows_overtaking:
            self._pending.extend(self._partitioner.split(batch))
            return
        for number, rows in self._partitioner.split(batch):
            self._pending.append((number, rows))
            self._persisting.dealt_out(self.channels.key(number), rows)

    def _log_for_readers(self, number: int, rows: pa.RecordBatch) -> None:
        """Log rows for readers that may begin anew alone: each channel's, also of rows that go to all."""
        if self.channels is not None:
            for consumer in range(self._partitioner.subpartitions) if number < 0 else (number,):
                self._persisting.dealt_out(self.channels.key(consumer), rows)

    def restore(self, rows: Mapping[ChannelKey, Sequence[InFlight]]) -> set[ChannelKey]:
        """Begin with these; returns the channels that are here."""
        if self.channels is None:
            return set()
        keys = [self.channels.key(consumer) for consumer in range(self._partitioner.subpartitions)]
        self._pending.extend((key.consumer, batch) for key in keys for batch in rows.get(key, ()))
        return {key for key in keys if key in rows}

    def overtake(self, payload: bytes) -> None:
        """Send a barrier ahead of all rows that wait, here and in the partition; these are the snapshot's."""
        self._overtaken = None
        wanted = self._persisting.needs_overtaken
        self.writer.end_epoch(payload, EventKind.PRIORITY, keep_overtaken=wanted)
        if wanted:
            self._saved = list(self._pending)

    def saved(self, schema: pa.Schema) -> list[SavedChannel] | None:
        """The rows that the barrier overtook, when they are known."""
        if self.channels is None or not self._persisting.needs_overtaken:
            return []
        if self._overtaken is None:
            self._overtaken = self.writer.overtaken()
        if self._overtaken is None:
            return None
        of_consumer: dict[int, list[bytes | InFlight]] = {
            number: list(rows) for number, rows in enumerate(self._overtaken) if rows
        }
        for number, waiting in self._saved:
            of_consumer.setdefault(number, []).append(waiting)
        return [SavedChannel(self.channels.key(number), schema, rows) for number, rows in of_consumer.items()]

    def forget(self) -> None:
        """Drop what the barrier overtook."""
        self._saved = []
        self._overtaken = None

    def drain(self, empty: pa.RecordBatch) -> bool:
        """Give the writer what it has room for; whether any of it was taken."""
        moved = False
        if not self._pending and self.writer.has_pending:
            self._offer(empty, 0)  # only the rest of a large row is left: an offer of nothing gives it out
        full: set[int] = set()
        for _ in range(len(self._pending)):
            number, waiting = self._pending.popleft()
            batch = rows_of(waiting)
            taken = 0 if number in full else self._offer(batch, number)
            moved |= taken > 0
            if taken < batch.num_rows:
                full.add(number)
                self._pending.append((number, batch.slice(taken) if taken else waiting))
        return moved

    def _offer(self, batch: pa.RecordBatch, number: int) -> int:
        return self.writer.offer(Split.whole(batch, number))


class StreamOutputs:
    """All outputs of one task, of one schema."""

    def __init__(
        self,
        outputs: Sequence[StreamOutput],
        schema: pa.Schema,
        buffer_timeout: float,
        counts: RowCounts | None = None,
    ) -> None:
        self._counts = counts or Uncounted()
        self._outputs = tuple(outputs)
        self._schema = schema
        self._empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        self._timeout = buffer_timeout
        self._unseen_since: float | None = None

    @property
    def is_empty(self) -> bool:
        """True if all rows were taken, so that events may follow."""
        return all(output.is_empty for output in self._outputs)

    @property
    def flush_at(self) -> float | None:
        """When what was written is to become visible, or None."""
        return None if self._unseen_since is None or self._timeout < 0 else self._unseen_since + self._timeout

    def put(self, batches: Sequence[pa.RecordBatch], now: float, *, waits: bool = False) -> None:
        """Take a step's rows, and write those for which there is room; none yet where it `waits`."""
        for output in self._outputs:
            for batch in batches:
                output.put(batch)
        self._counts.commit()  # ahead of the first of these rows that a reader may see
        if batches and not waits:
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

    @property
    def has_spanning(self) -> bool:
        """True if a row larger than a segment is given out in part: no barrier may come in its middle."""
        return any(output.writer.has_pending for output in self._outputs)

    @property
    def overtakes_everywhere(self) -> bool:
        """True if barriers may overtake rows on every output."""
        return all(output.allows_overtaking for output in self._outputs)

    def restore(self, rows: Mapping[ChannelKey, Sequence[InFlight]]) -> set[ChannelKey]:
        """Begin with these; returns the channels that are here."""
        return {key for output in self._outputs for key in output.restore(rows)}

    def overtake(self, payload: bytes) -> None:
        """Send a barrier ahead of all rows, where that may be; not while `has_spanning`."""
        for output in self._outputs:
            if output.allows_overtaking:
                output.overtake(payload)
        self.flush()

    def saved(self) -> list[SavedChannel] | None:
        """The rows that the last barrier overtook, once known of all outputs; ask until then, and `forget` them."""
        found = [output.saved(self._schema) for output in self._outputs if output.allows_overtaking]
        known = [channels for channels in found if channels is not None]
        return [each for channels in known for each in channels] if len(known) == len(found) else None

    def forget(self) -> None:
        """Drop what the last barrier overtook: it is not needed, or was taken over."""
        for output in self._outputs:
            output.forget()

    def end_epoch(self, payload: bytes, kind: EventKind, *, behind_only: bool = False) -> None:
        """Pass a barrier on, after all rows; only when `is_empty`. `behind_only`: where it did not overtake them."""
        for output in self._outputs:
            if not (behind_only and output.allows_overtaking):
                output.writer.end_epoch(payload, kind)
        self.flush()

    def emit(self, event: Event) -> None:
        """Pass an event on, after all rows; only when `is_empty`."""
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
                output.writer.close(cause)
