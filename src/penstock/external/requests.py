# SPDX-License-Identifier: Apache-2.0
"""The contract of the host service: what is asked of it, each question with its answer, and how bytes are fetched.

| who | by | asks |
|---|---|---|
| a task that writes | the service's Unix socket | `Introduce` first, then `BeginPartition` to `CommitPartition` |
| a task that reads on the service's own host | the same | `Introduce` first, then `LendFile` |
| a task that reads, the driver | its port, after the handshake | `FindRange` and FETCH, releases, `RenewLease` |

Calls and replies are the frames of `penstock.link.frames`; a FETCH is answered with a CHUNK, or a reply that is an
error. The answer to BeginPartition has two descriptors with it: of the data file and of the index, which the task
writes; that to LendFile has one, of the data file, which the task reads. Every request is about partitions of the
application whose connection it is, and finds no other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from penstock.link.wire import Done
from penstock.shuffle import EndOfPartition, PartitionId
from penstock.shuffle.requests import Request

FETCH, CHUNK = 40, 41
"""Types of frames beside those of the link."""
FETCH_BODY = struct.Struct("<IQQI")
"""Call, number of the partition, offset in its data file, bytes."""
CHUNK_HEAD = struct.Struct("<I")
"""Call; the bytes follow."""
CHUNK_BYTES = 4 << 20
"""The most that one FETCH asks for."""
PIECE_BYTES, PIECE_PARTITIONS, PIECE_ENDS = 128 << 10, 1000, 5000
"""The most of a description, of partitions, and of ends of subpartitions that one question or answer has."""
_EXTENT = struct.Struct("<QQQQ")


class KeptState(StrEnum):
    """The states of a partition at the service."""

    ABSENT = "absent"
    WRITING = "writing"
    THERE = "there"
    FAILED = "failed"
    RELEASED = "released"


class KeptExtent(NamedTuple):
    """An extent of the data file, its xxh3_64, and the times that its rows are meant."""

    offset: int
    length: int
    checksum: int
    times: int


def pack_kept(extents: list[KeptExtent]) -> bytes:
    """Extents as they travel."""
    return b"".join([_EXTENT.pack(*extent) for extent in extents])


def read_kept(data: bytes) -> Iterator[KeptExtent]:
    """Inverse of `pack_kept`; struct.error for bytes of another length."""
    return map(KeptExtent._make, _EXTENT.iter_unpack(data))


@dataclass(frozen=True, slots=True)
class Introduced:
    """The service knows the application. So many bytes stay free on its disks."""

    reserve: int


@dataclass(frozen=True, slots=True)
class Introduce(Request[Introduced]):
    """The first question over the Unix socket: which application this is. AuthenticationError for another user's."""

    title: str
    key: bytes


@dataclass(frozen=True, slots=True)
class BegunPartition:
    """The partition's number, and the bytes that it may have for the time being. Two descriptors come with it."""

    number: int
    room: int


@dataclass(frozen=True, slots=True)
class BeginPartition(Request[BegunPartition]):
    """Make the files of a partition. QuotaError or NoStorageError where there is no room."""

    partition: PartitionId
    subpartitions: int


@dataclass(frozen=True, slots=True)
class PartitionRoom:
    """The bytes that a partition may have."""

    room: int


@dataclass(frozen=True, slots=True)
class GrowPartition(Request[PartitionRoom]):
    """A partition that is being written needs room for so many bytes in all. Errors as of BeginPartition."""

    number: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommitPartition(Request[Done]):
    """Its files are complete: from now on it is the service's, and there for readers."""

    number: int
    ends: tuple[EndOfPartition, ...]
    has_more: bool = False
    """True for a piece of the ends; the rest follows."""


@dataclass(frozen=True, slots=True)
class GiveUpPartition(Request[Done]):
    """Its producer has failed: the files go, and readers hear the cause."""

    number: int
    cause: str


@dataclass(frozen=True, slots=True)
class FoundRange:
    """The place of a range's rows: number of the partition, extents in order (`pack_kept`), and the sums."""

    state: KeptState
    number: int = 0
    extents: bytes = b""
    end: EndOfPartition | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class FindRange(Request[FoundRange]):
    """Find so many subpartitions of a partition. IncompleteDataError, PartitionLostError as of its index."""

    partition: PartitionId
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LendFile(Request[Done]):
    """Lend the data file of the partition with this number, of which the task will read so many bytes.

    Its descriptor comes with the answer. PartitionReleasedError where this service has no such partition, or not any
    more, PartitionLostError where its file is gone. A file that is removed later is cut to nothing first.
    """

    partition: PartitionId
    number: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReleaseKept(Request[Done]):
    """Remove partitions; readers hear that they were released, until their job is over."""

    partitions: tuple[PartitionId, ...]


def releases(partitions: Iterable[PartitionId]) -> Iterator[ReleaseKept]:
    """The questions that release so many."""
    left = iter(partitions)
    while piece := tuple(islice(left, PIECE_PARTITIONS)):
        yield ReleaseKept(piece)


@dataclass(frozen=True, slots=True)
class ForgetJob(Request[Done]):
    """A job is over: all its partitions go, also what attempts that were killed have left."""

    job: str


@dataclass(frozen=True, slots=True)
class HeldPartitions:
    """Partitions whose files are there, and the number after which there may be more, or 0."""

    partitions: tuple[PartitionId, ...]
    last: int = 0


@dataclass(frozen=True, slots=True)
class ListHeld(Request[HeldPartitions]):
    """List the application's partitions here, a page of those after a number."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class RenewLease(Request[Done]):
    """The application is there still."""


@dataclass(frozen=True, slots=True)
class EndApplication(Request[Done]):
    """The application is over: all of it goes."""


@dataclass(frozen=True, slots=True)
class PrepareKept(Request[Done]):
    """Take partitions out of this application, for a result with this key that is to have a name of its user's.

    It comes in pieces, each with some of the partitions, or with a piece of the description and where that begins. A
    driver that finds the result gets the description. It can't be found yet. PartitionLostError where one of the
    partitions is not there, QuotaError.
    """

    name: str
    key: bytes
    description: bytes = b""
    offset: int = 0
    partitions: tuple[PartitionId, ...] = ()


@dataclass(frozen=True, slots=True)
class SwitchKept(Request[Done]):
    """A prepared result has its name from now on. The former one is not found any more, and can be read."""

    name: str
    key: bytes


@dataclass(frozen=True, slots=True)
class ForgetFormer(Request[Done]):
    """All services have switched to this result: what its name meant before goes."""

    name: str
    key: bytes


@dataclass(frozen=True, slots=True)
class SwitchBack(Request[Done]):
    """A service could not switch: the name means what it meant before, and the result is prepared, as it was."""

    name: str
    key: bytes


@dataclass(frozen=True, slots=True)
class UndoKept(Request[Done]):
    """No service has switched to this result: the application has its partitions again."""

    name: str
    key: bytes


@dataclass(frozen=True, slots=True)
class FoundByName:
    """A result that was kept: the key that reads it, and a piece of its description; nothing where there is none."""

    key: bytes = b""
    description: bytes = b""


@dataclass(frozen=True, slots=True)
class FindByName(Request[FoundByName]):
    """Find what the user of this application has under a name; the description from there on, up to its end."""

    name: str
    offset: int = 0


REQUESTS: tuple[type[Request[object]], ...] = (
    Introduce,
    BeginPartition,
    GrowPartition,
    CommitPartition,
    GiveUpPartition,
    FindRange,
    LendFile,
    ReleaseKept,
    ForgetJob,
    ListHeld,
    RenewLease,
    EndApplication,
    PrepareKept,
    SwitchKept,
    ForgetFormer,
    SwitchBack,
    UndoKept,
    FindByName,
)  # type: ignore[assignment]
