# SPDX-License-Identifier: Apache-2.0
"""The writer of a partition that Spark's external shuffle service will serve: the task itself writes the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.errors import NoStorageError, PenstockError, ProtocolError, StorageError, TaskCancelledError
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.partition.file_output import FileOptions
from penstock.services.file_rows import FileRows
from penstock.services.spark_ess.client import Access, ServiceRefusedError, address_of, registered
from penstock.services.spark_ess.files import FilesOfPartition, PartitionFiles
from penstock.services.spark_ess.places import Place, folders_for, make_folders
from penstock.settings import Settings
from penstock.shuffle import (
    EndOfData,
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


class EssWriter:
    """A `ResultPartitionWriter`. An offer that fails fails the partition, files and all."""

    has_pending = False

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        settings: Settings,
        access: Access,
    ) -> None:
        self._host = host
        self._metrics = owner.metrics
        self._descriptor = descriptor
        self._settings = settings
        self._access = access
        self._address = address_of(descriptor.shuffle.address)
        self._place = Place.from_text(descriptor.shuffle.location)
        self._folders: tuple[str, ...] = ()
        self._files: PartitionFiles | None = None
        self._rows = FileRows(descriptor)
        self._partition = descriptor.shuffle.partition
        self._lifecycle = WriterLifecycle(f"writer of partition {self._partition}")

    def setup(self) -> Intake:
        """Make the folders known to this host's service, and begin; NoStorageError where there is no service."""
        settings = self._settings.blocking
        self._folders = self._registered()
        make_folders(self._folders)
        count, schema = self._descriptor.partition.subpartitions, self._descriptor.schema
        wanted = FilesOfPartition(self._partition, self._place, self._folders, schema, count)
        options = FileOptions(settings.compression, settings.sort_buffer, settings.reserve)
        self._files = PartitionFiles(wanted, options)
        self._lifecycle.move(WriterEvent.SET_UP)
        return self._rows.intake(self._files.writer)

    def offer(self, split: Split) -> int:
        """Append all rows; PenstockError, and the partition has failed, when they can't be stored."""
        files = self._writable()
        self._guarded(lambda: self._rows.append(files.writer, split))
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
        """Do nothing: a blocking partition is visible when it is finished."""

    def finish(self) -> PartitionEnd:
        """Complete the files. The service must still look for them where they are."""
        files = self._writable()
        ends = self._guarded(files.finish)
        self._lifecycle.move(WriterEvent.FINISH)
        if self._registered() != self._folders:
            raise StorageError(
                f"{self._partition}: another task of this host has made other folders known to the shuffle service"
                f" than {', '.join(self._folders)}; the partition must be produced again"
            )
        end = PartitionEnd(ends)
        self._metrics.add("rows_out", sum(each.rows for each in ends))
        self._metrics.add("bytes_out", sum(end.sizes))
        self._metrics.add("bytes_stored", files.writer.bytes_on_disk)
        return end

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what was not finished, files and all; idempotent."""
        self._fail(cause or TaskCancelledError("the writer was closed before it was finished"))
        self._lifecycle.move(WriterEvent.CLOSE)
        self._files = None

    def _fail(self, cause: BaseException) -> None:
        if self._lifecycle.state is WriterState.WRITING:
            self._lifecycle.move(WriterEvent.FAIL)
            if self._files is not None:
                self._files.abort(f"{type(cause).__name__}: {cause}")

    def _registered(self) -> tuple[str, ...]:
        settings, access = self._settings.ess, self._access
        own = folders_for(access.application, settings.directories)
        try:
            return registered(access, self._address, self._place.executor, own, self._host.check_cancelled)
        except (TimeoutError, ServiceRefusedError) as error:
            raise NoStorageError(
                f"{self._partition} can't be written: {error}. Start Workers or NodeManagers with"
                " spark.shuffle.service.enabled (and see spark.shuffle.service.port); spark.local.dir of the service"
                f" must hold {', '.join(own)}"
            ) from error

    def _writable(self) -> PartitionFiles:
        if self._lifecycle.state is not WriterState.WRITING or self._files is None:
            raise PenstockError(f"{self._partition}: written to while {self._lifecycle.state.value}")
        self._host.check_cancelled()
        return self._files

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (PenstockError, OSError) as error:
            self._fail(error)
            raise
