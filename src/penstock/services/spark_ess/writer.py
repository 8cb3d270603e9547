# SPDX-License-Identifier: Apache-2.0
"""The writer of a partition that Spark's external shuffle service will serve: the task itself writes the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.partition.file_output import FileOptions
from penstock.partition.region_rows import Split
from penstock.services.spark_ess.client import Access, address_of, registered
from penstock.services.spark_ess.files import FilesOfPartition, PartitionFiles
from penstock.services.spark_ess.places import Place, folders_for, make_folders
from penstock.services.spark_ess.wire import ServiceRefusedError
from penstock.shuffle import OwnerContext, PartitionId, ResultPartitionDescriptor, Settings, TaskHost
from penstock.shuffle.errors import NoStorageError, PenstockError, StorageError, TaskCancelledError
from penstock.shuffle.service import fingerprint_of

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class EssWriter:
    """A `ResultPartitionWriter`. A write that fails fails the partition, files and all."""

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
        self._sizes: tuple[int, ...] = ()
        self._fingerprint = 0
        self._lifecycle = WriterLifecycle(f"writer of partition {self.partition}")

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._descriptor.shuffle.partition

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return self._descriptor.partition.subpartitions

    def setup(self) -> None:
        """Make the folders known to this host's service, and begin; NoStorageError where there is no service."""
        settings = self._settings.blocking
        self._folders = self._registered()
        make_folders(self._folders)
        wanted = FilesOfPartition(
            self.partition, self._place, self._folders, self._descriptor.schema, self.subpartitions
        )
        options = FileOptions(settings.compression, settings.sort_buffer, settings.reserve)
        self._files = PartitionFiles(wanted, options)
        self._lifecycle.move(WriterEvent.SET_UP)

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to a subpartition; PenstockError, and the partition has failed, when it can't be stored."""
        files = self._writable()
        self._guarded(lambda: files.writer.write(batch, subpartition))

    @property
    def gather_bytes(self) -> int:
        """The number of bytes that are best split at once."""
        return self._writable().writer.gather_bytes

    @property
    def holds_batches(self) -> bool:
        """True if a batch's memory is looked at again when the call that brought it has returned."""
        return self._writable().writer.holds_batches

    def write_split(self, split: Split) -> None:
        """Append what one split gives each subpartition; errors as of `write`."""
        files = self._writable()
        self._guarded(lambda: files.writer.write_split(split))

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions, stored once. Errors as of `write`."""
        files = self._writable()
        self._guarded(lambda: files.writer.broadcast(batch))

    def flush(self) -> None:
        """Do nothing: a blocking partition is visible when it is finished."""

    def is_available(self) -> bool:
        """Always: a file takes what it is given."""
        return True

    def finish(self) -> None:
        """Complete the files. The service must still look for them where they are."""
        files = self._writable()
        ends = self._guarded(files.finish)
        self._lifecycle.move(WriterEvent.FINISH)
        if self._registered() != self._folders:
            raise StorageError(
                f"{self.partition}: another task of this host has made other folders known to the shuffle service"
                f" than {', '.join(self._folders)}; the partition must be produced again"
            )
        self._sizes = tuple(end.bytes for end in ends)
        self._fingerprint = fingerprint_of(ends)
        self._metrics.add("rows_out", sum(end.rows for end in ends))
        self._metrics.add("bytes_out", sum(self._sizes))
        self._metrics.add("bytes_stored", files.writer.bytes_on_disk)

    def fail(self, cause: BaseException) -> None:
        """Remove the files; readers get ProducerFailedError."""
        if self._lifecycle.state is WriterState.WRITING:
            self._lifecycle.move(WriterEvent.FAIL)
            if self._files is not None:
                self._files.abort(f"{type(cause).__name__}: {cause}")

    def subpartition_bytes(self) -> Sequence[int]:
        """The payload bytes of each subpartition as stored; empty before `finish`."""
        return self._sizes

    def fingerprint(self) -> int:
        """A number that depends on what was written and on nothing else; 0 before `finish`."""
        return self._fingerprint

    def close(self) -> None:
        """Give up what was not finished; idempotent."""
        self.fail(TaskCancelledError("the writer was closed before it was finished"))
        self._lifecycle.move(WriterEvent.CLOSE)
        self._files = None

    def _registered(self) -> tuple[str, ...]:
        settings, access = self._settings.ess, self._access
        own = folders_for(access.application, settings.directories)
        try:
            return registered(access, self._address, self._place.executor, own, self._host.check_cancelled)
        except (TimeoutError, ServiceRefusedError) as error:
            raise NoStorageError(
                f"{self.partition} can't be written: {error}. Start Workers or NodeManagers with"
                " spark.shuffle.service.enabled (and see spark.shuffle.service.port); spark.local.dir of the service"
                f" must hold {', '.join(own)}"
            ) from error

    def _writable(self) -> PartitionFiles:
        if self._lifecycle.state is not WriterState.WRITING or self._files is None:
            raise PenstockError(f"{self.partition}: written to while {self._lifecycle.state.value}")
        self._host.check_cancelled()
        return self._files

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (PenstockError, OSError) as error:
            self.fail(error)
            raise
