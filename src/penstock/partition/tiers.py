# SPDX-License-Identifier: Apache-2.0
"""The place for runs of buffers that leave memory: files of this host.

A hybrid partition's data lies in two *tiers* behind its memory: the environment's file (`DATA`), and the file that
the producing task writes by itself (`OWN`, through a `StretchedFile`), of which the environment only knows where it
is. An extent says which tier it is in; readers find a tier by its number in the partition's `addresses`. A tier that
is not a path of this host needs a reader of its own in `extent_reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from penstock.partition.file_header import FileHeader, pack_header
from penstock.partition.file_output import FileOutput
from penstock.partition.hybrid_items import Extent
from penstock.shuffle.ids import PartitionId

DATA_MAGIC = b"PENSTHYB"
"""The first bytes of a hybrid partition's data files."""
DATA, OWN = 0, 1
"""The tiers of a partition of the local service: the environment's file, and the producer's own."""
NAMES = ("data", "own")
"""Their files in the partition's folder."""

Run = Sequence[memoryview]
"""The bytes of one extent."""


class DiskTier:
    """One file of this host, made with the first run, in the folder that `folder` gives then.

    Its methods wait for the disk, one call at a time: not on a loop. `address` is where readers find the file, empty
    as long as there is none; `size` are the bytes in it.
    """

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
        """Append the runs; an extent of tier number `tier` for each. PenstockError where they can't be stored."""
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
        """Nothing more is written; what is there stays readable. Idempotent."""
        if self._output is not None:
            self._output.seal()

    def remove(self) -> None:
        """Give the file up; idempotent. Its folder goes with the partition."""
        if self._output is not None:
            self._output.abort()


def checksum_of(run: Run) -> int:
    """The xxh3_64 of the parts one after the other."""
    if len(run) == 1:
        return int(xxhash.xxh3_64_intdigest(run[0]))
    digest = xxhash.xxh3_64()
    for part in run:
        digest.update(part)
    return int(digest.intdigest())
