# SPDX-License-Identifier: Apache-2.0
"""The writer of a partition that the host service keeps: it writes into files that the service has made and lent it.

Rules: the files are a sort-merge partition's. The service grants room before it is used, in large steps, so a quota
and a disk's reserve hold for all writers together. A partition is the service's when its commit is answered; before
that the end of the connection gives it up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.errors import PenstockError, ProtocolError, StorageError, TaskCancelledError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import BeginPartition, BegunPartition, CommitPartition, GiveUpPartition, GrowPartition
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.partition.extents import DATA, INDEX_NAME, data_name
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.services.external.host_line import HostLine
from penstock.services.file_rows import FileRows
from penstock.settings import Settings
from penstock.shuffle import (
    EndOfData,
    EndOfPartition,
    Event,
    EventKind,
    Intake,
    OwnerContext,
    PartitionEnd,
    ResultPartitionDescriptor,
    TaskHost,
)
from penstock.shuffle.splits import Split

T = TypeVar("T")


class ExternalWriter:
    """A `ResultPartitionWriter`. An offer that fails fails the partition, files and all."""

    has_pending = False

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        settings: Settings,
        key: ApplicationKey,
    ) -> None:
        self._host = host
        self._metrics = owner.metrics
        self._descriptor = descriptor
        self._settings = settings
        self._key = key
        self._line: HostLine | None = None
        self._begun = BegunPartition(0, 0)
        self._room = 0
        self._lent: tuple[int, ...] = ()
        self._files: SortMergeWriter | None = None
        self._rows = FileRows(descriptor)
        self._partition = descriptor.shuffle.partition
        self._lifecycle = WriterLifecycle(f"writer of partition {self._partition}")

    def setup(self) -> Intake:
        """Have this host's service make the files; NoStorageError where there is none, QuotaError, StorageError."""
        external, blocking = self._settings.external, self._settings.blocking
        line = self._line = HostLine(external.socket, self._key, external.retry_timeout, self._host.check_cancelled)
        count, schema = self._descriptor.partition.subpartitions, self._descriptor.schema
        self._begun, data, index = line.begin(BeginPartition(self._partition, count))
        self._room = self._begun.room
        self._lent = (data, index)
        opened = {data_name(DATA): data, INDEX_NAME: index}
        options = FileOptions(blocking.compression, blocking.sort_buffer, line.introduced.reserve, opened)
        folder = Path(f"the host service's partition {self._begun.number}")
        self._files = self._told(lambda: SortMergeWriter(folder, schema, self._partition, count, options))
        self._lifecycle.move(WriterEvent.SET_UP)
        return self._rows.intake(self._files)

    def offer(self, split: Split) -> int:
        """Append all rows; PenstockError, and the partition has failed, when they can't be stored."""
        files = self._writable()
        self._guarded(lambda: self._append(files, split))
        return split.rows

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Refuse all but the end of the data, which needs no word: raises ProtocolError."""
        if not isinstance(event, EndOfData):
            raise ProtocolError(f"{self._partition}: a {type(event).__name__} has no place in a blocking partition")

    def end_epoch(self, payload: bytes, kind: EventKind, *, keep_overtaken: bool = False) -> None:
        """Raise ProtocolError."""
        raise ProtocolError(f"{self._partition}: a blocking partition has no epochs")

    def overtaken(self) -> None:
        """Nothing is overtaken."""

    def flush(self) -> None:
        """Do nothing: a blocking partition is visible when it is committed."""

    def finish(self) -> PartitionEnd:
        """Complete the files, and hand them to the service."""
        files = self._writable()
        ends = self._guarded(lambda: self._committed(files))
        self._lifecycle.move(WriterEvent.FINISH)
        end = PartitionEnd(ends)
        self._metrics.add("rows_out", sum(each.rows for each in ends))
        self._metrics.add("bytes_out", sum(end.sizes))
        self._metrics.add("bytes_stored", files.bytes_on_disk)
        return end

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what was not finished, files and all; idempotent."""
        self._fail(cause or TaskCancelledError("the writer was closed before it was finished"))
        self._lifecycle.move(WriterEvent.CLOSE)
        self._files = None
        lent, self._lent = self._lent, ()
        for descriptor in lent:
            os.close(descriptor)
        if self._line is not None:
            self._line.close()

    def _append(self, files: SortMergeWriter, split: Split) -> None:
        self._rows.append(files, split)
        if files.bytes_on_disk > self._room:
            self._room = self._asking().ask(GrowPartition(self._begun.number, files.bytes_on_disk)).room

    def _committed(self, files: SortMergeWriter) -> tuple[EndOfPartition, ...]:
        ends = files.finish()
        self._asking().ask(CommitPartition(self._begun.number, ends))
        return ends

    def _asking(self) -> HostLine:
        if self._line is None:
            raise PenstockError(f"{self._partition}: the writer was not set up")
        return self._line

    def _fail(self, cause: BaseException) -> None:
        if self._lifecycle.state is not WriterState.WRITING:
            return
        self._lifecycle.move(WriterEvent.FAIL)
        if self._files is not None:
            self._files.abort()
        try:
            if self._line is not None:
                self._line.tell(GiveUpPartition(self._begun.number, f"{type(cause).__name__}: {cause}"))
        except PenstockError as error:
            cause.add_note(f"the host service was not told: {error}")  # the end of the connection says it

    def _writable(self) -> SortMergeWriter:
        if self._lifecycle.state is not WriterState.WRITING or self._files is None:
            raise PenstockError(f"{self._partition}: written to while {self._lifecycle.state.value}")
        self._host.check_cancelled()
        return self._files

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return self._told(action)
        except (PenstockError, OSError) as error:
            self._fail(error)
            raise

    @staticmethod
    def _told(action: Callable[[], T]) -> T:
        """Run this; an error of a file says what to do about the service's disk."""
        try:
            return action()
        except StorageError as error:
            what, is_file, _ = str(error).partition(". Free space in ")
            if not is_file:
                raise
            raise StorageError(
                f"{what}. Free space on the disk of this host's service, give it more folders (--dir), or a lower"
                " --reserve"
            ) from error
