# SPDX-License-Identifier: Apache-2.0
"""One result partition kept in this process's memory: the core of the `memory` shuffle service.

Rules: a batch is encoded once, at the write, so writer and readers share no memory; a broadcast batch is stored
once and counted once. What a kind does follows from its flags: back-pressured kinds have a budget of batches,
pipelined ones are readable while they are written, and reconnectable ones that are not back-pressured keep
their data for any number of readers. All others are consumed once and are released by their last reader.

Limits: the budget counts batches, not bytes. Non-goals: locks and waiting (`memory_registry`), files, networks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import cast

import pyarrow as pa
import xxhash

from penstock.shuffle import EndOfData, EndOfPartition, Event, PartitionId, PartitionKind
from penstock.shuffle.errors import (
    PartitionError,
    PartitionLostError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
    ProtocolError,
)

CHECKSUM_MODULUS = 1 << 64


class PartitionState(Enum):
    """Where a partition is in its life; the last three are its tombstones."""

    WRITING = "writing"
    FINISHED = "finished"
    FAILED = "failed"
    RELEASED = "released"
    LOST = "lost"


TRANSITIONS: dict[tuple[PartitionState, str], PartitionState] = {
    (PartitionState.WRITING, "finish"): PartitionState.FINISHED,
    (PartitionState.WRITING, "fail"): PartitionState.FAILED,
    (PartitionState.WRITING, "release"): PartitionState.RELEASED,
    (PartitionState.WRITING, "lose"): PartitionState.LOST,
    (PartitionState.FINISHED, "release"): PartitionState.RELEASED,
    (PartitionState.FINISHED, "lose"): PartitionState.LOST,
    (PartitionState.FAILED, "release"): PartitionState.FAILED,
    (PartitionState.FAILED, "lose"): PartitionState.FAILED,
    (PartitionState.RELEASED, "release"): PartitionState.RELEASED,
    (PartitionState.RELEASED, "lose"): PartitionState.RELEASED,
    (PartitionState.LOST, "release"): PartitionState.LOST,
    (PartitionState.LOST, "lose"): PartitionState.LOST,
}
"""The lifecycle. A tombstone keeps the first reason it was made for."""

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

    __slots__ = ("checksum", "data", "event", "holders", "rows")

    def __init__(self, data: pa.Buffer | None, rows: int, event: Event | None) -> None:
        self.data = data
        self.rows = rows
        self.event = event
        self.checksum = 0 if data is None else xxhash.xxh3_64_intdigest(data)
        self.holders = 0

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> Stored:
        """An encoded batch."""
        return cls(encode(batch), batch.num_rows, None)

    @classmethod
    def of_event(cls, event: Event) -> Stored:
        """An event, which costs no budget."""
        return cls(None, 0, event)

    @property
    def bytes(self) -> int:
        """The encoded size; 0 for an event."""
        return 0 if self.data is None else cast("int", self.data.size)


def sum_of(ends: Iterable[EndOfPartition]) -> EndOfPartition:
    """What several subpartitions, read as one, hold."""
    rows = size = checksum = 0
    for end in ends:
        rows, size, checksum = rows + end.rows, size + end.bytes, (checksum + end.checksum) % CHECKSUM_MODULUS
    return EndOfPartition(rows, size, checksum)


class Figures:
    """What a writer sent or a gate received on one subpartition: rows, bytes, and an order-free checksum."""

    __slots__ = ("bytes", "checksum", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.checksum = 0

    def count(self, stored: Stored) -> None:
        """Add one batch."""
        self.rows += stored.rows
        self.bytes += stored.bytes
        self.checksum = (self.checksum + stored.checksum) % CHECKSUM_MODULUS

    def end(self) -> EndOfPartition:
        """The event that carries these figures."""
        return EndOfPartition(self.rows, self.bytes, self.checksum)


class Subpartition:
    """What one consumer reads: entries in order of writing, and the writer's figures."""

    __slots__ = ("consumed", "entries", "figures", "reader")

    def __init__(self) -> None:
        self.entries: deque[Stored] = deque()
        self.figures = Figures()
        self.reader: object | None = None
        self.consumed = False


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
        self.state = PartitionState.WRITING
        self.cause: BaseException | None = None
        self.in_flight = 0
        self.task_events: deque[tuple[int, bytes]] = deque()

    @property
    def retained(self) -> bool:
        """Whether reading leaves the data in place."""
        return self.kind.reconnectable and not self.kind.back_pressured

    @property
    def holds_resources(self) -> bool:
        """Whether memory is taken for it."""
        return self.state in HOLDING_STATES

    @property
    def is_consumable(self) -> bool:
        """Whether a reader may attach."""
        return self.kind.pipelined or self.state is PartitionState.FINISHED

    def sizes(self) -> tuple[int, ...]:
        """The bytes of each subpartition of a finished blocking or hybrid partition; else empty."""
        if self.kind.runs_together or self.state is not PartitionState.FINISHED:
            return ()
        return tuple(subpartition.figures.bytes for subpartition in self.subpartitions)

    def ends(self) -> tuple[EndOfPartition, ...]:
        """What was written to each subpartition."""
        return tuple(subpartition.figures.end() for subpartition in self.subpartitions)

    def has_room(self) -> bool:
        """Whether another batch fits the budget."""
        return not self.kind.back_pressured or self.in_flight < self.budget

    def append(self, stored: Stored, targets: range) -> None:
        """Put one entry behind all others of these subpartitions; those nobody reads any more drop it."""
        for index in targets:
            subpartition = self.subpartitions[index]
            if stored.event is None:
                subpartition.figures.count(stored)
            if not subpartition.consumed:
                subpartition.entries.append(stored)
                stored.holders += 1
        if stored.event is None and stored.holders:
            self.in_flight += 1

    def finish(self) -> None:
        """Write the two closing events and end the writing."""
        everything = range(len(self.subpartitions))
        self.append(Stored.of_event(EndOfData()), everything)
        for index in everything:
            self.append(Stored.of_event(self.subpartitions[index].figures.end()), range(index, index + 1))
        self._move("finish")
        self._release_when_consumed()

    def end(self, event: str, cause: BaseException | None = None) -> None:
        """`fail`, `release` or `lose` it: the data goes, the reason stays."""
        before = self.state
        self._move(event)
        if self.state is not before:
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
        if self.retained:
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
        """Whether this subpartition exists and no reader has it."""
        return 0 <= index < len(self.subpartitions) and self.subpartitions[index].reader is None

    def take(self, index: int, position: int) -> Stored | None:
        """The entry at a reader's position, or None where it is not written yet."""
        entries = self.subpartitions[index].entries
        if self.retained:
            return entries[position] if position < len(entries) else None
        if not entries:
            return None
        stored = entries.popleft()
        self._let_go(stored)
        return stored

    def end_reading(self, index: int) -> None:
        """The reader of a subpartition is gone: what is left for it and all that follows is dropped."""
        if self.retained:
            return
        subpartition = self.subpartitions[index]
        subpartition.consumed = True
        while subpartition.entries:
            self._let_go(subpartition.entries.popleft())
        self._release_when_consumed()

    def check_readable(self) -> None:
        """Raise the PartitionError of a tombstone."""
        where = f"partition {self.id} on environment {self.environment}"
        if self.state is PartitionState.FAILED:
            raise ProducerFailedError(f"the producer of {where} failed: {self.cause!r}") from self.cause
        if self.state is PartitionState.RELEASED:
            raise PartitionReleasedError(f"{where} was released: re-run its producer")
        if self.state is PartitionState.LOST:
            raise PartitionLostError(f"{where} is lost: {self.cause}; re-run its producer")

    def _move(self, event: str) -> None:
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise PenstockError(f"partition {self.id} is {self.state.value}: it cannot {event}") from None

    def _let_go(self, stored: Stored) -> None:
        stored.holders -= 1
        if stored.event is None and stored.holders == 0:
            self.in_flight -= 1

    def _release_when_consumed(self) -> None:
        finished = self.state is PartitionState.FINISHED and not self.retained
        if finished and all(subpartition.consumed for subpartition in self.subpartitions):
            self.end("release")

    def _drop_everything(self) -> None:
        for subpartition in self.subpartitions:
            subpartition.entries.clear()
        self.in_flight = 0
