# SPDX-License-Identifier: Apache-2.0
"""The questions of a task to its host's environment, each with its answer.

A writer or gate has opened its port before it asks: what the environment says to the port may come before the answer.
Errors travel in place of the answer (`control.error_message`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.link.wire import Done
from penstock.shuffle import AttemptId, ChannelDescriptor, EndOfPartition, PartitionId, PartitionKind
from penstock.shuffle.requests import Request

STREAM_BUILDERS = 16
"""A streaming writer with more subpartitions does not need an open segment for each: it gives some up for others."""


@dataclass(frozen=True, slots=True)
class WriterOpened:
    """The partition is known to readers. A packed writer keeps one open segment for all subpartitions.

    One that stores everything is told the folder of its files, and the bytes that it may collect in memory.
    """

    packed: bool
    folder: str = ""
    buffer: int = 0


@dataclass(frozen=True, slots=True)
class OpenWriter(Request[WriterOpened]):
    """Register a partition; segments of a pipelined or hybrid one come to the port as grants.

    A writer that `streams` never waits in the middle of a message, so it needs few segments, however many
    subpartitions there are. That of a blocking partition has port 0, and `buffer` is what it would like to collect,
    in bytes. Raises InsufficientBuffersError, StaleError, ProtocolError, or PenstockError where no directory can be
    used.
    """

    port: int
    attempt: AttemptId
    partition: PartitionId
    subpartitions: int
    broadcast: bool
    kind: PartitionKind
    streams: bool = False
    buffer: int = 0


@dataclass(frozen=True, slots=True)
class FinishWriter(Request[Done]):
    """The partition is complete; its port is closed. `ends` of one whose writer has stored everything."""

    partition: PartitionId
    ends: tuple[EndOfPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class FailWriter(Request[Done]):
    """The producer gives the partition up; its port is closed. `is_storage`: its files took no more."""

    partition: PartitionId
    cause: str
    is_storage: bool = False


@dataclass(frozen=True, slots=True)
class OpenGate(Request[Done]):
    """Open a gate of this attempt, and request what is known of its channels, which have this flow control."""

    port: int
    attempt: AttemptId
    channels: tuple[ChannelDescriptor, ...]
    flow_control: str = "credit"


@dataclass(frozen=True, slots=True)
class CloseGate(Request[Done]):
    """Close a gate; its channels are cancelled."""

    port: int


@dataclass(frozen=True, slots=True)
class ShareCounts(Request[Done]):
    """The task counts its rows in memory that it has open under this descriptor; they are read when it has died."""

    attempt: AttemptId
    descriptor: int


@dataclass(frozen=True, slots=True)
class ShareWork(Request[Done]):
    """The task says what it works on in memory that it has open under this descriptor; read when it has died."""

    descriptor: int


@dataclass(frozen=True, slots=True)
class ReportMissingFile(Request[Done]):
    """A reader found that a file of a finished partition is gone; the answer is the error that says why."""

    partition: PartitionId
    cause: str


@dataclass(frozen=True, slots=True)
class Occupying:
    """The partitions that hold memory or files."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class ListOccupying(Request[Occupying]):
    """Which partitions hold memory or files here."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of an environment, by name."""

    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class GetStatistics(Request[Statistics]):
    """The environment's figures."""


@dataclass(frozen=True, slots=True)
class ShareFiles(Request[Done]):
    """From now on this attempt says of each checkpoint of the query what becomes of its part.

    `location` is where the query's checkpoints lie, `owner` is its owner.
    """

    attempt: AttemptId
    location: str
    owner: str


@dataclass(frozen=True, slots=True)
class LeaveFiles(Request[Done]):
    """The attempt takes part in no further checkpoint."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The part is stored, and the JobMaster knows; or why it is not: `cause`."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class HandOverPart(Request[HandedOver]):
    """Store a task's part of a checkpoint in a file with those of other tasks, and acknowledge it for the task.

    Its bytes lie in a memory of the task (descriptor, device, inode), which stays open until the answer has come.
    `handle` is that of a part of which nothing else is known yet: its size, and its chunks as they lie in the memory.
    """

    attempt: AttemptId
    location: str
    owner: str
    checkpoint: int
    memory: tuple[int, int, int]
    handle: bytes
    figures: dict[str, float]


CALLS: dict[str, type[Request[Any]]] = {
    kind.METHOD: kind
    for kind in (
        OpenWriter,
        FinishWriter,
        FailWriter,
        OpenGate,
        CloseGate,
        ReportMissingFile,
        ListOccupying,
        GetStatistics,
        ShareFiles,
        LeaveFiles,
        HandOverPart,
        ShareCounts,
        ShareWork,
    )
}
"""Every call, by its name on the wire."""
