# SPDX-License-Identifier: Apache-2.0
"""The requests to a manager and to a worker, as types: a request travels by the name of its class (`link.wire`).

No request names its application: the connection has proved that. A dataset is named by its text, a writer by a number
of 63 bits that it draws for itself. Places and sums of many files are packed numbers, not lists.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from penstock.link.wire import Done
from penstock.shuffle import DatasetId, PartitionId
from penstock.shuffle.requests import Request

MOST_ASKED: Final = 4_000
"""Partitions in one question, or answer: so many are within `wire.MOST_VALUES`. So are as many files and writers."""
MOST_FILES: Final = 65_536
"""The most files of one partition."""
MOST_READ: Final = 65_536
"""The most of one question to a worker: files times writers."""
T = TypeVar("T")
_PLACE: Final = struct.Struct("<IQ")
"""Index and attempt."""


def packed_partitions(partitions: Iterable[PartitionId]) -> dict[str, bytes]:
    """Many partitions of few datasets, by dataset."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for each in partitions:
        found[str(each.dataset)].append(_PLACE.pack(each.index, each.attempt))
    return {dataset: b"".join(places) for dataset, places in found.items()}


def unpacked_partitions(packed: Mapping[str, bytes]) -> Iterator[tuple[str, int, int]]:
    """Inverse of `packed_partitions`: dataset, index and attempt; struct.error or ValueError for what is none."""
    for dataset, places in packed.items():
        DatasetId.of(dataset)
        for index, attempt in _PLACE.iter_unpack(places):
            yield dataset, index, attempt


def number_of(packed: Mapping[str, bytes]) -> int:
    """The number of partitions in `packed_partitions`."""
    return sum(map(len, packed.values())) // _PLACE.size


def pieces(asked: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """So many as one question may be about, again and again."""
    left = iter(asked)
    while piece := tuple(islice(left, MOST_ASKED)):
        yield piece


@dataclass(frozen=True, slots=True)
class Located:
    """The places of a dataset's files: addresses of workers by name, and for each file the names, newest last.

    Of a result that is kept, the application that wrote it, and the manager's word that this user may read.
    """

    addresses: dict[str, str]
    places: tuple[tuple[str, ...], ...]
    owner: str = ""
    grant: bytes = b""
    word: bytes = b""
    """The manager's about its log, to a writer that begins."""


@dataclass(frozen=True, slots=True)
class PartitionStory:
    """The state of a partition as a reader is told it; `workers` have rows of it."""

    state: str
    writer: int = 0
    workers: tuple[str, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Stories:
    """The answers to `Find`: a story for each partition, and the places of each dataset."""

    stories: tuple[PartitionStory, ...]
    located: dict[str, Located]


@dataclass(frozen=True, slots=True)
class WrittenThere:
    """A page of the partitions that workers hold of one host, in order; after a full one there may be more."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class Losses:
    """Partitions that were lost, up to number `last`."""

    last: int
    partitions: tuple[PartitionId, ...] = ()
    cause: str = ""


# --- of a driver and its tasks, to the manager


@dataclass(frozen=True, slots=True)
class NamePartition(Request[Done]):
    """A partition will be written: room for so many files."""

    partition: PartitionId
    files: int


@dataclass(frozen=True, slots=True)
class StartPartition(Request[Located]):
    """A writer begins."""

    partition: PartitionId
    environment: str
    writer: int


@dataclass(frozen=True, slots=True)
class MoveFiles(Request[Located]):
    """A worker takes no more of these files: they go on elsewhere. Files that have moved already stay."""

    partition: PartitionId
    files: tuple[int, ...]
    worker: str
    cause: str


@dataclass(frozen=True, slots=True)
class FinishPartition(Request[Done]):
    """A writer has committed at the workers that have rows of it."""

    partition: PartitionId
    writer: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FailPartition(Request[Done]):
    """A writer gives up."""

    partition: PartitionId
    writer: int
    cause: str


@dataclass(frozen=True, slots=True)
class FindPartitions(Request[Stories]):
    """Say what became of these, of this application, or of a result of the user's with this identity."""

    partitions: tuple[PartitionId, ...]
    kept: str = ""


@dataclass(frozen=True, slots=True)
class KeepResult(Request[Done]):
    """Keep these (`packed_partitions`) under a name of the user's; the identity is drawn at random.

    The description is the reader's, packed (`zlib`).
    """

    name: str
    result: str
    description: bytes
    partitions: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class FoundResult:
    """The identity of a result and its description, packed as it was kept; empty where there is none."""

    result: str = ""
    description: bytes = b""


@dataclass(frozen=True, slots=True)
class FindResult(Request[FoundResult]):
    """Find the result that the user has under a name."""

    name: str


@dataclass(frozen=True, slots=True)
class ListOfHost(Request[WrittenThere]):
    """List what was written on this host, and is held: a page of those after one."""

    environment: str
    after: PartitionId | None = None


@dataclass(frozen=True, slots=True)
class DropPartitions(Request[Done]):
    """Release these partitions."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class EndJob(Request[Done]):
    """A job is over: all goes but the results that are held."""

    job: str


@dataclass(frozen=True, slots=True)
class CloseApplication(Request[Done]):
    """An application is over: all goes."""


@dataclass(frozen=True, slots=True)
class WatchLosses(Request[Losses]):
    """The driver is there, and knows all losses up to this number; answered when there is another, or soon."""

    last: int


@dataclass(frozen=True, slots=True)
class Suspect(Request[Done]):
    """A worker can't be reached from here: look whether it is gone, and give this application files elsewhere."""

    worker: str
    cause: str


# --- of a worker, to the manager


@dataclass(frozen=True, slots=True)
class Enroll(Request[Done]):
    """A worker is there; with the tokens of its folder's starts since the last one that the manager knows.

    `words` of managers about their log it has heard (`log_history`).
    """

    worker: str
    address: str
    lineage: tuple[str, ...]
    words: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders to a worker: of each application and dataset the writers to drop; and whether it may leave."""

    drops: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    forget: tuple[tuple[str, str], ...] = ()
    may_leave: bool = False
    word: bytes = b""
    """The manager's about its log."""


@dataclass(frozen=True, slots=True)
class Beat(Request[Orders]):
    """A worker lives: bytes that are free beyond its reserve, its load from 0 to 1, the datasets that it holds."""

    free: int
    load: float
    is_leaving: bool
    held: tuple[tuple[str, str, tuple[int, ...]], ...]


# --- of a task, to a worker


@dataclass(frozen=True, slots=True)
class Opened:
    """The number of a writer on this connection."""

    handle: int


@dataclass(frozen=True, slots=True)
class EnterWriter(Request[Opened]):
    """A writer pushes from now on over this connection; packed, the first numbers of files that are not 0.

    `word` is that of the manager (`Located`).
    """

    partition: PartitionId
    writer: int
    begins: bytes = b""
    word: bytes = b""


@dataclass(frozen=True, slots=True)
class CommitPushed(Request[Done]):
    """All was pushed: packed sums by file (`SUM`), and the number after the last block of each."""

    partition: PartitionId
    writer: int
    sums: bytes
    ends: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """The sums of a stream's writers over all its files, packed (`READ_SUM`), and the bytes that will come."""

    sums: bytes
    size: int


@dataclass(frozen=True, slots=True)
class OpenReader(Request[Reading]):
    """Read files of a dataset (packed numbers), of these writers; blocks come under `stream`, in credit.

    A reader of more than `MOST_READ` asks again, when all has come. That of another application of the user's comes
    with its name, and the manager's word.
    """

    stream: int
    dataset: str
    writers: tuple[int, ...]
    files: bytes
    credit: int
    owner: str = ""
    grant: bytes = b""
