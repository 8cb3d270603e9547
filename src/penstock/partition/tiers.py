# SPDX-License-Identifier: Apache-2.0
"""Where runs of buffers go that leave memory: the seam between a hybrid partition and its storage.

Memory is the first tier by nature, as buffers are made there. Behind it stands a list of `StorageTier`s: an order of
the partition goes to the first that accepts it, and its extents say which one that was. The file that the producing
task writes by itself is a tier too (`OWN`, through a `StretchedFile`): the environment only knows where it is. So a
further tier (a remote store behind the disk, say) is another entry of the list. Its readers find it by its number in
`addresses`; what is not a path of this host needs a reader of its own in `extent_reader`.

Limit: an order goes to one tier as a whole, and stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import xxhash

from penstock.partition.file_header import FileHeader, pack_header
from penstock.partition.file_output import FileOutput
from penstock.partition.hybrid_items import Extent
from penstock.shuffle.errors import PenstockError
from penstock.shuffle.ids import PartitionId

DATA_MAGIC = b"PENSTHYB"
"""How a hybrid partition's data files begin."""
DATA, OWN = 0, 1
"""The tiers of a partition of the local service: the environment's file, and the producer's own."""
NAMES = ("data", "own")
"""Their files in the partition's folder."""

Run = Sequence[memoryview]
"""The bytes of one extent."""


class StorageTier(Protocol):
    """A place for runs of buffers, of one partition. Its methods wait for it, one call at a time: not on a loop."""

    @property
    def address(self) -> str:
        """Where readers find it; empty as long as there is nothing in it."""

    @property
    def size(self) -> int:
        """Bytes in it."""

    def accepts(self, size: int) -> bool:
        """Whether so many bytes more may go there."""

    def write(self, runs: Sequence[Run], tier: int) -> list[Extent]:
        """Store the runs; an extent of tier number `tier` for each. PenstockError where they can't be stored."""

    def close(self) -> None:
        """Nothing more is written; what is there stays readable. Idempotent."""

    def remove(self) -> None:
        """Remove what is there; idempotent."""


class DiskTier:
    """One file of this host, made with the first run, in the folder that `folder` gives then."""

    def __init__(
        self,
        partition: PartitionId,
        subpartitions: int,
        folder: Callable[[], Path],
        reserve: int = 0,
        name: str = NAMES[DATA],
    ) -> None:
        self._header = FileHeader(partition, None, subpartitions)
        self._folder = folder
        self._reserve = reserve
        self._name = name
        self._output: FileOutput | None = None
        self.address = ""
        self.size = 0

    def accepts(self, size: int) -> bool:
        """Always: a full disk is an error that says what to do, as there is no tier behind this one."""
        return size >= 0

    @property
    def output(self) -> FileOutput:
        """The file, which is made if it is not there; PenstockError where there can't be one."""
        if self._output is None:
            path = self._folder() / self._name
            self._output = FileOutput(path, self._header.partition, self._reserve, is_read_meanwhile=True)
            self._output.append([pack_header(DATA_MAGIC, self._header)])
            self.address = str(path)
        return self._output

    def write(self, runs: Sequence[Run], tier: int) -> list[Extent]:
        """Append the runs to the file; see the protocol."""
        output = self.output
        position = output.size
        extents = []
        for run in runs:
            length = sum(map(len, run))
            extents.append(Extent(tier, position, length, checksum_of(run)))
            position += length
        output.append([part for run in runs for part in run])
        self.size = output.size
        return extents

    def close(self) -> None:
        """Close the file."""
        if self._output is not None:
            self._output.seal()

    def remove(self) -> None:
        """Close the file; its folder goes with the partition."""
        if self._output is not None:
            self._output.abort()


def store(tiers: Sequence[StorageTier], runs: Sequence[Run]) -> list[Extent]:
    """The runs' extents, in the first tier that accepts them; PenstockError where none does. Waits for storage."""
    size = sum(len(part) for run in runs for part in run)
    for number, tier in enumerate(tiers):
        if tier.accepts(size):
            return tier.write(runs, number)
    raise PenstockError(f"no storage tier accepts {size} bytes: {', '.join(tier.address for tier in tiers)}")


def checksum_of(run: Run) -> int:
    """The xxh3_64 of the parts one after the other."""
    if len(run) == 1:
        return int(xxhash.xxh3_64_intdigest(run[0]))
    digest = xxhash.xxh3_64()
    for part in run:
        digest.update(part)
    return int(digest.intdigest())
