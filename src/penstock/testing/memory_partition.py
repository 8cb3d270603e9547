# SPDX-License-Identifier: Apache-2.0
"""One result partition kept in this process's memory: the core of the `memory` shuffle service.

Rules: a batch is encoded once, at the write, so writer and readers share no memory; a broadcast batch is stored once
and counted once. The behaviour of a kind follows from its flags: back-pressured kinds have a budget of batches,
pipelined ones are readable while they are written, and reconnectable ones that are not back-pressured keep their data
for any number of readers. All others are consumed once and are released by their last reader.

Limits: the budget counts batches, not bytes. Non-goals: locks and waiting (`memory_registry`), files, networks.
"""

from __future__ import annotations

from collections import deque
from typing import cast

import pyarrow as pa
import xxhash

from penstock.errors import PartitionError, PartitionReleasedError, ProtocolError
from penstock.partition.answers import end_error
from penstock.partition.lifecycle import PartitionEvent, PartitionLifecycle, PartitionState
from penstock.shuffle import EndOfData, EndOfPartition, Event, EventKind, PartitionId, PartitionKind
from penstock.shuffle.sums import Sums

HOLDING_STATES = (PartitionState.WRITING, PartitionState.FINISHED)


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """The batch as an Arrow IPC stream of its own: slices are cut to size, dictionaries travel along."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode(data: pa.Buffer) -> pa.RecordBatch:
    """Inverse of `encode`; the columns point into `data`."""
    return pa.ipc.open_stream(data).read_next_batch()


class Stored:
    """One thing in a subpartition: an encoded batch or an event, and how many subpartitions still hold it."""

    __slots__ = ("checksum", "data", "event", "holders", "kind", "rows")

    def __init__(
        self, data: pa.Buffer | None, rows: int, event: Event | None, kind: EventKind = EventKind.IN_ORDER
    ) -> None:
        self.kind = kind
        self.data = data
        self.rows = rows
        self.event = event
        self.checksum = 0 if data is None else xxhash.xxh3_64_intdigest(data)
        self.holders = 0

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> Stored:
        """The entry of a batch, encoded."""
        return cls(encode(batch), batch.num_rows, None)

    @classmethod
    def of_event(cls, event: Event, kind: EventKind = EventKind.IN_ORDER) -> Stored:
        """An event, which costs no budget."""
        return cls(None, 0, event, kind)

    @property
    def bytes(self) -> int:
        """The encoded size; 0 for an event."""
        return 0 if self.data is None else cast("int", self.data.size)


class Subpartition:
    """The input of one consumer: entries in order of writing, and the writer's figures."""

    __slots__ = ("consumed", "entries", "figures", "is_blocked", "reader")

    def __init__(self) -> None:
        self.entries: deque[Stored] = deque()
        self.figures = Sums()
        self.reader: object | None = None
        self.consumed = self.is_blocked = False

    @property
    def has_priority(self) -> bool:
        """True if the next entry goes ahead of the rows."""
        return bool(self.entries) and self.entries[0].kind is EventKind.PRIORITY

    def put(self, stored: Stored) -> None:
        """Put an entry after the others; one with priority ahead of all but those."""
        if stored.kind is EventKind.PRIORITY:
            self.entries.insert(sum(each.kind is EventKind.PRIORITY for each in self.entries), stored)
        else:
            self.entries.append(stored)


class MemoryPartition:
    """The partition as a state machine without locks: every method returns at once."""

    def __init__(
        self, partition: PartitionId, kind: PartitionKind, environment: str, subpartitions: int, budget: int
    ) -> None:
        self.id = partition
        self.kind = kind
        self.environment = environment
        self.budget = budget
        self.subpartitions = [Subpartition() for _ in range(subpartitions)]
        self._lifecycle = PartitionLifecycle(partition)
        self._lifecycle.move(PartitionEvent.WRITE)
        self.cause: BaseException | None = None
        self.in_flight = 0

    @property
    def state(self) -> PartitionState:
        """The state of its life."""
        return self._lifecycle.state

    @property
    def holds_resources(self) -> bool:
        """True if memory is taken for it."""
        return self.state in HOLDING_STATES

    @property
    def is_consumable(self) -> bool:
        """True if a reader may attach."""
        return self.kind.pipelined or self.state is PartitionState.FINISHED

    def ends(self) -> tuple[EndOfPartition, ...]:
        """The sums of the rows that were written to each subpartition."""
        return tuple(subpartition.figures.end_of_partition() for subpartition in self.subpartitions)

    def has_room(self) -> bool:
        """True if another batch fits the budget."""
        return not self.kind.back_pressured or self.in_flight < self.budget

    def append(self, stored: Stored, targets: range) -> None:
        """Put one entry into these subpartitions, by its kind; those without a reader drop it."""
        for index in targets:
            subpartition = self.subpartitions[index]
            if stored.event is None:
                subpartition.figures.add(stored.rows, stored.bytes, stored.checksum)
            if not subpartition.consumed:
                subpartition.put(stored)
                stored.holders += 1
        if stored.event is None and stored.holders:
            self.in_flight += 1

    def waiting(self, index: int) -> list[pa.RecordBatch]:
        """Copies of the rows that wait for a reader."""
        return [decode(stored.data) for stored in self.subpartitions[index].entries if stored.data is not None]

    def finish(self, *, end_of_data: bool = True) -> None:
        """Write the closing events and end the writing; raises the error of a partition that has ended."""
        self.check_readable()
        if end_of_data:
            self.append(Stored.of_event(EndOfData()), range(len(self.subpartitions)))
        for index, end in enumerate(self.ends()):
            self.append(Stored.of_event(end), range(index, index + 1))
        self._lifecycle.move(PartitionEvent.FINISH)
        self._release_when_consumed()

    def end(self, event: PartitionEvent, cause: BaseException | None = None) -> None:
        """Fail, release or lose it: the data goes, the reason stays; nothing happens when it has ended before."""
        if not self.state.is_end:
            self._lifecycle.move(event)
            self.cause = cause
            self._drop_everything()

    def attach(self, index: int, reader: object, count: int = 1) -> None:
        """Make `reader` the reader of `count` subpartitions; raises the error that says why it cannot."""
        self.check_readable()
        if not 0 <= index < index + count <= len(self.subpartitions):
            raise PartitionError(
                f"partition {self.id} has no subpartitions {index} to {index + count - 1}: it has "
                f"{len(self.subpartitions)}"
            )
        if count > 1 and self.kind.runs_together:
            raise ProtocolError(f"partition {self.id} is pipelined: a channel reads one subpartition, not {count}")
        if self.kind.is_kept:
            return
        wanted = self.subpartitions[index : index + count]
        if any(subpartition.consumed or subpartition.reader is not None for subpartition in wanted):
            raise PartitionReleasedError(
                f"subpartition {index} of {self.id} was given to another reader: a {self.kind.label} partition is "
                "consumed once; re-run its producer"
            )
        for subpartition in wanted:
            subpartition.reader = reader

    def is_unread(self, index: int) -> bool:
        """Tell whether this subpartition exists and no reader has it."""
        return 0 <= index < len(self.subpartitions) and self.subpartitions[index].reader is None

    def take(self, index: int, position: int) -> Stored | None:
        """The entry at a reader's position, or None where it is not written yet."""
        subpartition = self.subpartitions[index]
        entries = subpartition.entries
        if self.kind.is_kept:
            return entries[position] if position < len(entries) else None
        if not entries or subpartition.is_blocked:
            return None
        stored = entries.popleft()
        subpartition.is_blocked = stored.kind is EventKind.BLOCKING
        self._let_go(stored)
        return stored

    def resume(self, index: int) -> None:
        """Go on after an event that has blocked; without effect if none has."""
        self.subpartitions[index].is_blocked = False

    def end_reading(self, index: int) -> None:
        """The reader of a subpartition is gone: what is left for it and all that follows is dropped."""
        if self.kind.is_kept:
            return
        subpartition = self.subpartitions[index]
        subpartition.consumed = True
        while subpartition.entries:
            self._let_go(subpartition.entries.popleft())
        self._release_when_consumed()

    def check_readable(self) -> None:
        """Raise the PartitionError of a tombstone."""
        if self.state.is_end:
            environment = f"environment {self.environment}"
            raise end_error(self.id, self.state, self.cause or "", environment) from self.cause

    def _let_go(self, stored: Stored) -> None:
        stored.holders -= 1
        if stored.event is None and stored.holders == 0:
            self.in_flight -= 1

    def _release_when_consumed(self) -> None:
        finished = self.state is PartitionState.FINISHED and not self.kind.is_kept
        if finished and all(subpartition.consumed for subpartition in self.subpartitions):
            self.end(PartitionEvent.RELEASE)

    def _drop_everything(self) -> None:
        for subpartition in self.subpartitions:
            subpartition.entries.clear()
        self.in_flight = 0
