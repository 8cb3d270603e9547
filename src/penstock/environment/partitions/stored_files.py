# SPDX-License-Identifier: Apache-2.0
"""The files of one stored partition: work on them in threads, and their removal when it is over.

Orders are carried out one at a time for a partition. Its files go with the first of its ends, but never while a
thread of this process still writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from penstock.environment.partitions.folders import PartitionFolder, remove_folder
from penstock.environment.partitions.storage import Storage
from penstock.partition.data_file import DataFile
from penstock.partition.extents import Extent
from penstock.partition.file_header import FileHeader
from penstock.partition.index import pack_extents, write_index
from penstock.partition.stored_partition import StoredPartition

T = TypeVar("T")


class StoredFiles:
    """Its folder, its data file and its index. Life: any number of works, then `remove`."""

    def __init__(self, core: StoredPartition, storage: Storage) -> None:
        self._core = core
        self._storage = storage
        self._folder = PartitionFolder(storage.folders, core.partition_id)
        self._data = DataFile(core.partition_id, core.subpartitions, self._folder.path, storage.reserve)
        self._working = 0

    @property
    def folder(self) -> str:
        """The folder of the files; empty as long as there is none."""
        return str(self._folder.made or "")

    def make_folder(self) -> Path:
        """The folder, made where there is none; StorageError. It waits for a disk."""
        return self._folder.path()

    def write(self, runs: Sequence[Sequence[memoryview]]) -> list[Extent]:
        """Append runs of buffers to the data file; their extents. It waits for a disk."""
        return self._data.write(runs)

    def write_index(self) -> int:
        """Everything is stored: write the index. It waits for a disk."""
        core = self._core
        self._data.close()
        lists = (pack_extents(core.extents(number)) for number in range(core.subpartitions))
        return write_index(self._folder.path(), FileHeader(core.partition_id, core.subpartitions), lists)

    def note_failure(self) -> None:
        """The folder took no more: the next partitions go elsewhere."""
        folder = self._folder.made
        if folder is not None:
            self._storage.folders.note_failure(folder)

    def work(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        """Do something that waits, in a thread; the files stay until it has ended."""

        def worked(result: Callable[[], None]) -> None:
            result()
            self._working -= 1
            if self._core.state.is_end:
                self.remove()

        self._working += 1
        self._storage.run(
            work, lambda result: worked(lambda: done(result)), lambda error: worked(lambda: failed(error))
        )

    def remove(self) -> None:
        """Remove the files, in a thread, unless one still works on them: then they go after it."""
        if self._working:
            return
        folder = self._folder.made
        self._data.remove()
        if folder is not None:
            self._storage.run(lambda: remove_folder(folder), lambda _: None, lambda _: None)
