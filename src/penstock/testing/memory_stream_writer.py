# SPDX-License-Identifier: Apache-2.0
"""The writer of a streaming query in the `memory` shuffle service: bounded room, and nothing is seen before a flush.

Room is counted in messages of at most `message_rows` rows, for all subpartitions together. Rows that were taken are
stored at once and shown to readers by `flush`, by an event, or if there is no more room.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.lifecycle.endpoints import WriterState
from penstock.shuffle import EpochEnd, Event, PartitionId
from penstock.shuffle.errors import PenstockError, SchemaError
from penstock.shuffle.streaming import EventKind, Overtaken
from penstock.testing.memory_partition import Stored
from penstock.testing.memory_writing import Writing


class MemoryStreamWriter:
    """A `StreamPartitionWriter` into the registry. `has_pending` is never true: a row always fits a message."""

    def __init__(self, writing: Writing, schema: pa.Schema, message_rows: int) -> None:
        self._writing = writing
        self._partition = writing.partition
        self._registry = writing.registry
        self._schema = schema
        self._message_rows = message_rows
        self._hidden: list[tuple[Stored, range]] = []
        self._positions = [0] * len(writing.partition.subpartitions)
        self._overtaken: list[Overtaken] | None = None

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._partition.id

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return len(self._partition.subpartitions)

    @property
    def has_pending(self) -> bool:
        """False: no row spans."""
        return False

    @property
    def positions(self) -> list[int]:
        """The number of messages that were put into each subpartition so far."""
        return list(self._positions)

    def setup(self) -> None:
        """Make the partition known to readers."""
        self._registry.stream_writers[self.partition] = self._writing.owner.attempt
        self._writing.set_up()

    def offer(self, batch: pa.RecordBatch, subpartition: int) -> int:
        """Take rows from the batch's front, as many as there is room for; their number."""
        return self._take(batch, range(subpartition, subpartition + 1))

    def broadcast(self, batch: pa.RecordBatch) -> int:
        """The same for all subpartitions, stored once."""
        return self._take(batch, range(self.subpartitions))

    def end_epoch(self, payload: bytes, kind: EventKind) -> None:
        """Send an EpochEnd after all that was taken, each subpartition's with its sums and its place."""
        overtakes = kind is EventKind.PRIORITY
        with self._registry.changing():
            self._writing.check()
            self._show()
            if overtakes:
                self._overtaken = [list(self._partition.waiting(index)) for index in range(self.subpartitions)]
            for index, end in enumerate(self._partition.ends()):
                event = EpochEnd(payload, end.rows, end.bytes, end.checksum, self._positions[index], overtakes)
                self._partition.append(Stored.of_event(event, kind), range(index, index + 1))
            self._registry.tell_readers(self.partition)

    def overtaken(self) -> list[Overtaken] | None:
        """The rows that the last EpochEnd with PRIORITY has overtaken, of each subpartition."""
        overtaken, self._overtaken = self._overtaken, None
        return overtaken

    def drop_overtaken(self) -> None:
        """Nobody wants it."""
        self._overtaken = None

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Send an event to all subpartitions: after all that was taken, or ahead of it for PRIORITY."""
        with self._registry.changing():
            self._writing.check()
            if kind is not EventKind.PRIORITY:
                self._show()
            self._partition.append(Stored.of_event(event, kind), range(self.subpartitions))
            self._registry.tell_readers(self.partition)

    def flush(self) -> None:
        """Make what was taken visible to readers."""
        with self._registry.changing():
            if self._writing.state is WriterState.WRITING:
                self._show()

    def finish(self) -> None:
        """Send EndOfPartition with the sums of all; nothing may follow."""
        with self._registry.changing():
            self._writing.check()
            self._show()
            self._writing.finish(end_of_data=False)
            self._registry.tell_readers(self.partition)

    def fail(self, cause: BaseException) -> None:
        """Give the partition up: readers get ProducerFailedError with this cause."""
        with self._registry.changing():
            self._writing.fail(cause)
            self._registry.tell_readers(self.partition)

    def close(self) -> None:
        """End the writing; a partition that was not finished has failed."""
        self.fail(PenstockError(f"the writer of {self.partition} was closed before it was finished"))
        self._writing.close()

    def _take(self, batch: pa.RecordBatch, targets: range) -> int:
        if not batch.schema.equals(self._schema):
            raise SchemaError(f"the writer of {self.partition} takes {self._schema}, not {batch.schema}")
        with self._registry.changing():
            self._writing.check()
            taken = 0
            while taken < batch.num_rows:
                if self._partition.in_flight + len(self._hidden) >= self._partition.budget:
                    self._show()  # what nobody reads any more is room at once
                    if not self._partition.has_room():
                        break
                part = batch.slice(taken, self._message_rows)
                self._hidden.append((Stored.of_batch(part), targets))
                taken += part.num_rows
                for index in targets:
                    self._positions[index] += 1
            if taken:
                self._writing.owner.metrics.add("rows_out", taken)
            return taken

    def _show(self) -> None:
        hidden, self._hidden = self._hidden, []
        for stored, targets in hidden:
            self._partition.append(stored, targets)
        if hidden:
            self._registry.tell_readers(self.partition)
