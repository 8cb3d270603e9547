# SPDX-License-Identifier: Apache-2.0
"""The data files of a partition while they are written.

`DataFile` is one file of this host, made with its first bytes. The environment stores runs of buffers in it that
leave memory, the producing task rows that memory does not hold (`stretched_file`). A task that stores all of its rows
has `whole_files`.

"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from penstock.partition.extents import DATA, Extent, data_name
from penstock.partition.file_header import DATA_MAGIC, FileHeader, pack_header
from penstock.partition.file_output import FileOutput
from penstock.shuffle.ids import PartitionId

Run = Sequence[memoryview]
"""The bytes of one extent."""


class DataFile:
    """One file of this host, made with the first run, in the folder that `folder` gives then.

    Its methods wait for the disk, one call at a time: not on a loop. `size` are the bytes in it, 0 as long as there
    is none.
    """

    def __init__(
        self,
        partition: PartitionId,
        subpartitions: int,
        folder: Callable[[], Path],
        reserve: int = 0,
        number: int = DATA,
    ) -> None:
        self._header = FileHeader(partition, subpartitions)
        self._folder = folder
        self._reserve = reserve
        self._number = number
        self._output: FileOutput | None = None

    @property
    def size(self) -> int:
        """The bytes in it."""
        return 0 if self._output is None else self._output.size

    @property
    def output(self) -> FileOutput:
        """The file, which is made if it is not there; PenstockError where there can't be one."""
        if self._output is None:
            path = self._folder() / data_name(self._number)
            self._output = FileOutput(path, self._header.partition, self._reserve, is_read_meanwhile=True)
            self._output.append([pack_header(DATA_MAGIC, self._header)])
        return self._output

    def write(self, runs: Sequence[Run]) -> list[Extent]:
        """Append the runs; an extent for each. PenstockError where they can't be stored."""
        output = self.output
        position = output.size
        extents = []
        for run in runs:
            length = sum(map(len, run))
            extents.append(Extent(self._number, position, length, checksum_of(run)))
            position += length
        output.append([part for run in runs for part in run])
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
