# SPDX-License-Identifier: Apache-2.0
"""The two ends of an exchange that a service makes: a writer and an input gate. Neither ever waits.

A batch job is a bounded stream, so there is one of each. A writer takes what it has room for, a gate gives what is
there. Rows that come and room end the one wait of their task (`TaskHost.waker`); a batch task waits by
`penstock.task.blocking`. All calls of a writer or a gate come from one thread at a time.

Events have a kind. In-order events stay behind the data in front of them, blocking ones stop their subpartition
behind them, at the sender, until its reader resumes it, and priority events overtake data. No event costs credit or
room. A partition that is no stream (`ResultPartitionDescriptor.is_stream`) has no events but its end.

Between two `EpochEnd`s, and after the last, lies an epoch. Its end carries what its subpartition has had by then, and
its place among the messages. The reader compares the sums at that place, wherever the end itself came, so a message
that was lost or doubled is found by the next checkpoint.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, Union

from penstock.shuffle.descriptors import InputGateDescriptor
from penstock.shuffle.events import EndOfPartition, Event

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.shuffle.splits import Split

_FINGERPRINTED = struct.Struct("<QQQ")


class EventKind(Enum):
    """The place of an event among the data of its subpartition."""

    IN_ORDER = "in order"
    BLOCKING = "blocking"
    """In order; the subpartition stands still behind it, at the sender, until `resume_consumption`."""
    PRIORITY = "priority"
    """It overtakes the data that is queued, wherever that lies."""


Overtaken = list[Union[bytes, "pa.RecordBatch"]]
"""Rows in order: whole messages as they are framed on the wire, or batches."""


@dataclass(frozen=True, slots=True)
class Intake:
    """The rows that a writer takes best: about so many bytes in one split, or so many rows.

    `holds_batches` says that it looks at the memory of an offered batch again when the offer has returned.
    """

    nbytes: int = 8 << 20
    rows: int = 0
    """0: as many as the number of subpartitions asks for."""
    holds_batches: bool = False


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The sums of a finished partition's subpartitions."""

    sums: tuple[EndOfPartition, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of payload of each subpartition."""
        return tuple(end.bytes for end in self.sums)

    @property
    def fingerprint(self) -> int:
        """A number of 63 bits, 0 only where there is no subpartition.

        It depends on the rows, bytes and checksum of every subpartition, in order, and on nothing else: two attempts
        that wrote the same batches have the same.
        """
        body = b"".join(_FINGERPRINTED.pack(end.rows, end.bytes, end.checksum) for end in self.sums)
        if not body:
            return 0
        return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little") >> 1 or 1


class ResultPartitionWriter(Protocol):
    """Writes one result partition. Life: `setup`, offers and events, `finish`, `close`."""

    @property
    def has_pending(self) -> bool:
        """True if a part of what was taken still waits in here for room; the next offers and flushes give it out."""

    def setup(self) -> Intake:
        """Take resources and make the partition known; raises InsufficientBuffersError when it cannot."""

    def offer(self, split: Split) -> int:
        """Take rows from the split's front, as many as there is room for; their number, 0 to `split.rows`.

        A row that is taken is the writer's: it comes before every event that is given later. Nothing is taken while
        what is pending finds no room. If room is short and readers make it, all that was taken before becomes
        visible. Raises SchemaError.
        """

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Send an event to all subpartitions: after all that was taken, or ahead of it for PRIORITY.

        But for PRIORITY not while `has_pending`: raises ProtocolError, as for an event that is not for this kind of
        partition.
        """

    def end_epoch(self, payload: bytes, kind: EventKind, *, keep_overtaken: bool = False) -> None:
        """Send an EpochEnd after all that was taken, each subpartition's with its sums and its place.

        With PRIORITY it overtakes what waits in the subpartitions; `overtaken` then says what that was, if it is to
        be kept. Raises ProtocolError as `emit`, and for PRIORITY too.
        """

    def overtaken(self) -> Sequence[Overtaken] | None:
        """The rows that the last EpochEnd with PRIORITY has overtaken, of each subpartition; None while unknown.

        The rows are copies: they are still delivered, after that event. To be asked for once: None from then on. The
        task's wait ends when it is known.
        """

    def flush(self) -> None:
        """Make what was taken visible to readers; without effect on one that is not being written."""

    def finish(self) -> PartitionEnd | None:
        """Send EndOfData, where it was not sent before, and EndOfPartition with the sums of all.

        None, and something is pending, where there is no room yet for what was taken: to be asked again.
        """

    def close(self, cause: BaseException | None = None) -> None:
        """Give back what the writer holds; idempotent. Finished data stays readable.

        A partition that was not finished is given up: readers get ProducerFailedError with this cause.
        """


@dataclass(frozen=True, slots=True)
class Received:
    """One thing a gate gives: a batch or an event, and the index of the channel it came from."""

    channel: int
    batch: pa.RecordBatch | None = None
    event: Event | None = None


class InputGate(Protocol):
    """Reads one input of a task over all its channels, fairly. Life: `setup`, polls until `is_ended`, `close`."""

    @property
    def descriptor(self) -> InputGateDescriptor:
        """The descriptor that this gate was made from."""

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""

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
