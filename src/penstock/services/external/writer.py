# SPDX-License-Identifier: Apache-2.0
"""The files of a partition that the host service keeps: the task writes into files that the service has made.

Rules: the files are one for all rows, and an index. The service grants room before it is used, in large steps, so a
quota and a disk's reserve hold for all writers together. A partition is the service's when its commit is answered;
before that the end of the connection gives it up.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import PenstockError, StorageError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import (
    PIECE_ENDS,
    BeginPartition,
    BegunPartition,
    CommitPartition,
    GiveUpPartition,
    GrowPartition,
)
from penstock.partition.extent_writer import ExtentWriter, one_file_writer
from penstock.partition.extents import DATA, INDEX_NAME, data_name
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.plugin.writer import RowStore
from penstock.services.external.host_line import HostLine, HostSocket
from penstock.settings import Settings
from penstock.shuffle import EndOfPartition, ResultPartitionDescriptor, TaskHost


class ExternalFiles(RowStore):
    """The store of one partition, in files of this host's service."""

    def __init__(
        self, host: TaskHost, descriptor: ResultPartitionDescriptor, settings: Settings, key: ApplicationKey
    ) -> None:
        self._host = host
        self._descriptor = descriptor
        self._settings = settings
        self._key = key
        self._line: HostLine | None = None
        self._begun = BegunPartition(0, 0)
        self._room = 0
        self._lent: tuple[int, ...] = ()
        self._files: ExtentWriter | SortMergeWriter | None = None
        self._partition = descriptor.shuffle.partition

    @property
    def nbytes(self) -> int:
        """The bytes of what is finished."""
        return 0 if self._files is None else self._files.bytes_on_disk

    def register(self) -> None:
        """Have this host's service make the files; NoStorageError where there is none, QuotaError, StorageError."""
        external = self._settings.external
        self._line = HostLine(
            HostSocket(external.socket, external.user), self._key, external.retry_timeout, self._host.check_cancelled
        )
        wanted = BeginPartition(self._partition, self._descriptor.partition.subpartitions)
        self._begun, *lent = self._line.begin(wanted)
        self._lent = tuple(lent)
        self._room = self._begun.room

    def open(self) -> ExtentWriter | SortMergeWriter:
        """Begin one file for all subpartitions."""
        blocking = self._settings.blocking
        opened = dict(zip((data_name(DATA), INDEX_NAME), self._lent, strict=True))
        options = FileOptions(blocking.compression, blocking.sort_buffer, self._asking().introduced.reserve, opened)
        folder = Path(f"the host service's partition {self._begun.number}")
        count, schema = self._descriptor.partition.subpartitions, self._descriptor.schema
        self._files = one_file_writer(folder, schema, self._partition, count, options)
        return self._files

    def written(self) -> None:
        """Ask for more room where what was granted is used."""
        if self.nbytes > self._room:
            self._room = self._asking().ask(GrowPartition(self._begun.number, self.nbytes)).room

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Complete the files, and hand them to the service."""
        assert self._files is not None  # noqa: S101 - what has not begun is not finished
        ends = self._files.finish()
        self._give_back()  # the service has to copy files that are still open for writing
        for at in range(0, max(1, len(ends)), PIECE_ENDS):
            has_more = at + PIECE_ENDS < len(ends)
            self._asking().ask(CommitPartition(self._begun.number, ends[at : at + PIECE_ENDS], has_more))
        return ends

    def abort(self, cause: BaseException) -> None:
        """Give the files up, and let the service tell readers."""
        if self._files is not None:
            self._files.abort()
        self._give_back()
        try:
            self._asking().tell(GiveUpPartition(self._begun.number, f"{type(cause).__name__}: {cause}"))
        except PenstockError as error:
            cause.add_note(f"the host service was not told: {error}")  # the end of the connection says it

    def explained(self, error: StorageError) -> StorageError:
        """An error of a file says what to do about the service's disk."""
        what, is_file, _ = str(error).partition(". Free space ")
        if not is_file or "--dir" in str(error):
            return error
        return StorageError(
            f"{what}. Free space on the disk of this host's service, give it more folders (--dir), or a lower"
            " --reserve"
        )

    def close(self) -> None:
        """Close the files, and leave the service."""
        self._give_back()
        if self._line is not None:
            self._line.close()

    def _give_back(self) -> None:
        lent, self._lent = self._lent, ()
        for descriptor in lent:
            os.close(descriptor)

    def _asking(self) -> HostLine:
        if self._line is None:
            raise PenstockError(f"{self._partition}: the writer was not set up")
        return self._line
