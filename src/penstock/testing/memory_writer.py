# SPDX-License-Identifier: Apache-2.0
"""The writer of the `memory` shuffle service: bounded room where readers make it, and nothing is seen before a flush.

Room is counted in batches, for all subpartitions together. Rows that were taken are stored at once and shown to
readers by `flush`, by an event, or if there is no more room. A stream's batches are cut.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import EnvironmentLostError, PenstockError, SchemaError, TaskCancelledError
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.partition.lifecycle import PartitionEvent, PartitionState
from penstock.shuffle import EndOfData, EpochEnd, Event, EventKind, Intake, OwnerContext, PartitionEnd
from penstock.shuffle.endpoints import Overtaken
from penstock.shuffle.splits import ALL, Split
from penstock.testing.memory_partition import HOLDING_STATES, MemoryPartition, Stored
from penstock.testing.memory_registry import MemoryRegistry


class MemoryWriter:
    """A `ResultPartitionWriter` into the registry. Nothing is ever pending: what is taken has room."""

    has_pending = False

    def __init__(
        self,
        registry: MemoryRegistry,
        owner: OwnerContext,
        partition: MemoryPartition,
        schema: pa.Schema,
        message_rows: int | None,
    ) -> None:
        self._registry = registry
        self._owner = owner
        self._partition = partition
        self._schema = schema
        self._message_rows = message_rows
        self._all = range(len(partition.subpartitions))
        self._hidden: list[tuple[Stored, range]] = []
        self._messages = [0 for _ in self._all]
        self._overtaken: list[Overtaken] | None = None
        self._end_of_data: EndOfData | None = None
        self._lifecycle = WriterLifecycle(f"writer of {partition.id} of {owner.name}")

    def setup(self) -> Intake:
        """Make the partition known to readers."""
        self._lifecycle.move(WriterEvent.SET_UP)
        self._registry.add(self._partition)
        return Intake()

    def offer(self, split: Split) -> int:
        """Take rows from the split's front, as many as there is room for; their number."""
        with self._registry.lock:
            self._check()
            taken = 0
            for subpartition, batch in split:
                count = self._take(batch, self._targets(subpartition))
                taken += count
                if count < batch.num_rows:
                    break
            self._owner.metrics.add("rows_out", taken)
            return taken

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Send an event to all subpartitions: after all that was taken, or ahead of it for PRIORITY."""
        with self._registry.changing():
            self._check()
            if kind is not EventKind.PRIORITY:
                self._show()
            if isinstance(event, EndOfData):
                self._end_of_data = event
            self._partition.append(Stored.of_event(event, kind), self._all)

    def end_epoch(self, payload: bytes, kind: EventKind, *, keep_overtaken: bool = False) -> None:
        """Send an EpochEnd after all that was taken, each subpartition's with its sums and its place."""
        overtakes = kind is EventKind.PRIORITY
        with self._registry.changing():
            self._check()
            self._show()
            if overtakes:
                waiting = [list(self._partition.waiting(index)) for index in self._all]
                self._overtaken = waiting if keep_overtaken else None
            for index, end in enumerate(self._partition.ends()):
                event = EpochEnd(payload, end.rows, end.bytes, end.checksum, self._messages[index], overtakes)
                self._partition.append(Stored.of_event(event, kind), range(index, index + 1))

    def overtaken(self) -> list[Overtaken] | None:
        """The rows that the last EpochEnd with PRIORITY has overtaken, of each subpartition."""
        overtaken, self._overtaken = self._overtaken, None
        return overtaken

    def flush(self) -> None:
        """Make what was taken visible to readers."""
        with self._registry.lock:
            if self._lifecycle.state is WriterState.WRITING:
                self._show()

    def finish(self) -> PartitionEnd:
        """Send the closing events; blocking partitions become readable."""
        with self._registry.changing():
            self._check()
            self._show()
            self._partition.finish(end_of_data=self._end_of_data is None)
            self._lifecycle.move(WriterEvent.FINISH)
            return PartitionEnd(self._partition.ends())

    def close(self, cause: BaseException | None = None) -> None:
        """End the writing; a partition that was not finished has failed. Any thread."""
        cause = cause or PenstockError(f"{self._lifecycle.name} was closed before it was finished")
        with self._registry.changing():
            if self._partition.state is PartitionState.WRITING and self._lifecycle.state is WriterState.WRITING:
                self._partition.end(PartitionEvent.FAIL, cause)
            self._lifecycle.move(WriterEvent.CLOSE)

    def _targets(self, subpartition: int) -> range:
        if subpartition == ALL:
            return self._all
        if subpartition not in self._all:
            raise IndexError(f"{self._lifecycle.name} has no subpartition {subpartition}: it has {len(self._all)}")
        return range(subpartition, subpartition + 1)

    def _take(self, batch: pa.RecordBatch, targets: range) -> int:
        if not batch.schema.equals(self._schema):
            raise SchemaError(f"{self._lifecycle.name} takes {self._schema}, not {batch.schema}")
        taken = 0
        while taken < batch.num_rows:
            if len(self._hidden) + self._partition.in_flight >= self._partition.budget:
                self._show()  # what will not be read is room at once
                if not self._partition.has_room():
                    break
            part = batch.slice(taken, self._message_rows)
            self._hidden.append((Stored.of_batch(part), targets))
            taken += part.num_rows
            for index in targets:
                self._messages[index] += 1
        return taken

    def _show(self) -> None:
        hidden, self._hidden = self._hidden, []
        for stored, targets in hidden:
            self._partition.append(stored, targets)
        if hidden:
            self._registry.wake_all()

    def _check(self) -> None:
        """Raise what ends the writing, where that has come."""
        name, state, partition = self._lifecycle.name, self._lifecycle.state, self._partition
        if self._owner.attempt in self._registry.cancelled:
            raise TaskCancelledError(f"{name}: the task was told to stop")
        if state is not WriterState.WRITING and partition.state in (PartitionState.WRITING, PartitionState.FINISHED):
            raise PenstockError(f"{name} is {state.value}: it takes data between setup and finish")
        if partition.state is PartitionState.LOST:
            raise EnvironmentLostError(f"{name}: environment {partition.environment} is gone")
        if partition.state not in HOLDING_STATES:
            raise TaskCancelledError(f"{name}: the partition is {partition.state.value}, nobody can read it")
