# SPDX-License-Identifier: Apache-2.0
"""The part of a shuffle service for streaming tasks: writers and gates that never wait, and one place that does.

A streaming task is a loop around `Mailbox.wait`. All that may let it go on ends that wait: input of any gate, room
in any output, an action of the JobMaster. Writers take what they have room for, gates give what is there. All calls
are those of one thread, except where said.

Events have a kind. In-order events stay behind the data in front of them, blocking ones stop their subpartition
behind them, at the sender, until its reader resumes it, and priority events overtake data. No event costs credit or
room.

Between two `EpochEnd`s, and after the last, lies an epoch. Its end carries what its subpartition has had by then, and
its place among the messages. The reader compares the sums at that place, wherever the end itself came, so a message
that was lost or doubled is found by the next checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import pyarrow as pa

from penstock.shuffle.actions import Action
from penstock.shuffle.descriptors import InputGateDescriptor, ResultPartitionDescriptor
from penstock.shuffle.events import Event
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.service import OwnerContext, Received


class EventKind(Enum):
    """The place of an event among the data of its subpartition."""

    IN_ORDER = "in order"
    BLOCKING = "blocking"
    """In order; the subpartition stands still behind it, at the sender, until `resume_consumption`."""
    PRIORITY = "priority"
    """It overtakes the data that is queued, wherever that lies."""


Overtaken = list[bytes | pa.RecordBatch]
"""Rows in order: whole messages as they are framed on the wire, or batches."""


class StreamPartitionWriter(Protocol):
    """Writes one pipelined result partition, and never waits. Life: `setup`, offers and events, `finish`, `close`."""

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""

    @property
    def has_pending(self) -> bool:
        """True if a part of a row larger than a segment still waits in here; the next offers give it out first."""

    @property
    def positions(self) -> Sequence[int]:
        """The number of messages that were put into each subpartition so far."""

    def setup(self) -> None:
        """Make the partition known. Room comes later, and is announced by the task's mailbox."""

    def offer(self, batch: pa.RecordBatch, subpartition: int) -> int:
        """Take rows from the batch's front, as many as there is room for; their number, 0 to `batch.num_rows`.

        A row that is taken is the writer's: it comes before every event that is given later. Raises SchemaError.
        """

    def broadcast(self, batch: pa.RecordBatch) -> int:
        """The same for all subpartitions, stored once; rows taken for one are taken for all."""

    def end_epoch(self, payload: bytes, kind: EventKind) -> None:
        """Send an EpochEnd after all that was taken, each subpartition's with its sums and its place.

        With PRIORITY it overtakes what waits in the subpartitions; `overtaken` then says what that was. Not while
        `has_pending`: raises ProtocolError.
        """

    def overtaken(self) -> Sequence[Overtaken] | None:
        """The rows that the last EpochEnd with PRIORITY has overtaken, of each subpartition; None while unknown.

        The rows are copies: they are still delivered, after that event. To be asked for once: None from then on. The
        mailbox wakes when it is known.
        """

    def drop_overtaken(self) -> None:
        """Nobody will ask what the last EpochEnd with PRIORITY has overtaken."""

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Send an event to all subpartitions: after all that was taken, or ahead of it for PRIORITY."""

    def flush(self) -> None:
        """Make what was taken visible to readers."""

    def finish(self) -> None:
        """Send EndOfPartition with the sums of all. EndOfData was sent before; not while `has_pending`."""

    def fail(self, cause: BaseException) -> None:
        """Give the partition up: readers get ProducerFailedError with this cause."""

    def close(self) -> None:
        """Give back what the writer holds; idempotent. A partition that was not finished is failed."""


class StreamInputGate(Protocol):
    """Reads one input of a task over all its channels, fairly, and never waits. Life: `setup`, `poll`, `close`."""

    @property
    def descriptor(self) -> InputGateDescriptor:
        """The descriptor that this gate was made from."""

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""

    @property
    def positions(self) -> Sequence[int]:
        """The number of messages of each channel that were given so far."""

    def setup(self) -> None:
        """Take resources and request the partitions that are known already."""

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """Take what is there now: a batch that its holder may keep, or an event; None if nothing is there.

        With `channels` only of these, but for priority events, and fetched ahead of need: what they occupy is not
        free for new rows before a poll without `channels`. An EpochEnd and an EndOfPartition are compared with
        what was received before they are given (IncompleteDataError). One that overtook rows is announced ahead of
        all that waits (EpochAhead), comes where it stands among its channel's rows, and is compared when those that
        it overtook have come, those of older epochs too. A channel that can't be read raises the PartitionError that
        says why.
        """

    def poll_ahead(self) -> Received | None:
        """The next priority event or EpochAhead that is there now; never anything in order."""

    def resume_consumption(self, channel: int) -> None:
        """Let a channel that a blocking event stopped at its sender go on."""

    def close(self) -> None:
        """Cancel what is still open and give back all buffers; idempotent."""


@runtime_checkable
class StreamEnvironment(Protocol):
    """The further methods of a `ShuffleEnvironment` whose service can stream; ask by `isinstance`."""

    def create_stream_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[StreamPartitionWriter]:
        """Writers in the order of the descriptors; they take no resources before their `setup`."""

    def create_stream_gates(
        self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]
    ) -> list[StreamInputGate]:
        """Gates in the order of the descriptors; they take no resources before their `setup`."""


@dataclass(frozen=True, slots=True)
class HandedPart:
    """A task's part of a checkpoint that another process of its host is to store.

    `location` is where the query's checkpoints lie, `owner` is its owner. The bytes are in memory that this
    process has open (descriptor, device, inode); `handle` says which chunks they are.
    """

    location: str
    owner: str
    checkpoint: int
    memory: tuple[int, int, int]
    handle: bytes
    figures: Mapping[str, float]


class HostStore(Protocol):
    """Stores parts of checkpoints for the tasks of a host, several of them in one file. Any thread."""

    def share_files(self, location: str, owner: str) -> None:
        """The task will say of each checkpoint of the query what becomes of its part: of all, until it leaves."""

    def hand_over(self, part: HandedPart, done: Callable[[str], None]) -> None:
        """Have a part stored and acknowledged. `done` gets why that could not be, or nothing; then the memory may go.

        It is called where the task waits. It is not called where the mailbox is broken, and where the
        acknowledgement is refused: that is raised as for `Mailbox.acknowledge`.
        """

    def leave_files(self) -> None:
        """The task takes part in no further checkpoint."""


class Mailbox(Protocol):
    """The one place where a streaming task waits, and the way to the JobMaster. The engine makes it.

    Any thread may speak to the JobMaster; that raises nothing, and the answer is not waited for. If the answer is an
    error, or the mailbox is broken, the next `wait` raises it.
    """

    def wait(self, seconds: float | None) -> None:
        """Return when anything has come for this task since the last call returned, or after so many seconds.

        That is input of any gate, room in any output, or an action. None: no limit; 0: only look. Raises
        TaskCancelledError, EnvironmentLostError, and what a call without an answer was answered with.
        """

    def take_actions(self) -> list[Action]:
        """The words of the JobMaster since the last call, in order; never waits."""

    def acknowledge(self, checkpoint: int, handle: bytes, figures: Mapping[str, float]) -> None:
        """This task's part of a checkpoint is stored: how it is found again, and what it took."""

    def decline(self, checkpoint: int, cause: str) -> None:
        """This task takes no part in a checkpoint."""

    def data_ended(self) -> None:
        """All of the task's data is processed."""

    def report(self, metrics: Mapping[str, float]) -> None:
        """Report the progress of the task."""
