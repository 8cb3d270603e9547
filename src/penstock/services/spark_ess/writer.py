# SPDX-License-Identifier: Apache-2.0
"""The files of a partition that Spark's external shuffle service will serve: the task itself writes them."""

from __future__ import annotations

from penstock.errors import NoStorageError, StorageError
from penstock.partition.extent_writer import ExtentWriter
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.plugin.writer import RowStore
from penstock.services.spark_ess.client import Access, ServiceRefusedError, address_of, registered
from penstock.services.spark_ess.files import FilesOfPartition, PartitionFiles
from penstock.services.spark_ess.places import Place, folders_for, make_folders
from penstock.settings import Settings
from penstock.shuffle import EndOfPartition, ResultPartitionDescriptor, TaskHost


class EssFiles(RowStore):
    """The store of one partition, in folders that this host's service knows."""

    def __init__(
        self, host: TaskHost, descriptor: ResultPartitionDescriptor, settings: Settings, access: Access
    ) -> None:
        self._host = host
        self._descriptor = descriptor
        self._settings = settings
        self._access = access
        self._address = address_of(descriptor.shuffle.address)
        self._place = Place.from_text(descriptor.shuffle.location)
        self._folders: tuple[str, ...] = ()
        self._files: PartitionFiles | None = None
        self._partition = descriptor.shuffle.partition

    @property
    def nbytes(self) -> int:
        """The bytes of what is finished."""
        return 0 if self._files is None else self._files.writer.bytes_on_disk

    def register(self) -> None:
        """Make the folders known to this host's service; NoStorageError where there is no service."""
        self._folders = self._registered()
        make_folders(self._folders)

    def open(self) -> ExtentWriter | SortMergeWriter:
        """Begin one file for all subpartitions."""
        settings = self._settings.blocking
        count, schema = self._descriptor.partition.subpartitions, self._descriptor.schema
        wanted = FilesOfPartition(self._partition, self._place, self._folders, schema, count)
        options = FileOptions(settings.compression, settings.sort_buffer, settings.reserve)
        self._files = PartitionFiles(wanted, options)
        return self._files.writer

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Complete the files; the service gives them to readers."""
        assert self._files is not None  # noqa: S101 - what has not begun is not finished
        return self._files.finish()

    def publish(self, ends: tuple[EndOfPartition, ...]) -> None:
        """Raise StorageError where the service does not look for the files where they are any more."""
        if self._registered() != self._folders:
            raise StorageError(
                f"{self._partition}: another task of this host has made other folders known to the shuffle service"
                f" than {', '.join(self._folders)}; the partition must be produced again"
            )

    def abort(self, cause: BaseException) -> None:
        """Remove the files, and leave the cause to readers."""
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
                f" must hold {', '.join(own)}. A local session has no such service: set"
                " spark.penstock.shuffle.service=local there"
            ) from error
