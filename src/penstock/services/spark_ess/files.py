# SPDX-License-Identifier: Apache-2.0
"""The files of one partition while a task writes them.

Rules:

- They are a sort-merge partition's (`partition/sort_merge_writer.py`): its data file gets the manifest, which holds
  its index, at its end.
- They are written in a folder of their own, and get their names at the end: the data first, the index after it, which
  makes them readable, the mark that it was finished last.
- A lock on a file in that folder is held meanwhile. The next task that begins to write removes the folders whose
  writer is gone: the lock went with it. That works across containers that share a disk, where numbers of processes
  mean nothing.
- A disk that is full or broken is a StorageError, and nothing is left but the mark of the failure.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.partition.extent_writer import one_file_writer
from penstock.partition.extents import DATA, INDEX_NAME, data_name
from penstock.partition.file_header import partition_in
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FULL, FileOptions
from penstock.partition.index import index_in
from penstock.services.spark_ess.manifest import offsets, packed, service_index
from penstock.services.spark_ess.places import (
    FILE_MODE,
    SHUFFLE,
    Place,
    folder_of,
    make_parent,
    names_of,
    path_of,
)
from penstock.shuffle import EndOfPartition, PartitionId

if TYPE_CHECKING:
    import pyarrow as pa

_LOCK = "lock"
_WRITING = "writing-"


@dataclass(frozen=True, slots=True)
class FilesOfPartition:
    """The description of a partition's files: whose they are, where they go, and what they hold."""

    partition: PartitionId
    place: Place
    folders: tuple[str, ...]
    schema: pa.Schema
    subpartitions: int


class PartitionFiles:
    """Writes one partition by `writer`. Life: any number of writes, then `finish` or `abort`."""

    def __init__(self, wanted: FilesOfPartition, options: FileOptions) -> None:
        self._wanted = wanted
        data, _ = names_of(wanted.place.number)
        home = folder_of(wanted.folders, data)
        with self._kept(home):
            sweep(Path(home))
            self._folder, self._lock = _locked(Path(home))
            schema, partition = wanted.schema, wanted.partition
            try:
                self.writer = one_file_writer(self._folder, schema, partition, wanted.subpartitions, options)
            except BaseException:
                self._clear()
                raise

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Complete the partition; from now on the service gives it to readers."""
        try:
            with self._kept(str(self._folder)):
                ends = self.writer.finish()
                self._publish(ends)
                _mark(self._wanted.folders, self._wanted.place.finished.map, b"finished")
        except BaseException:
            remove(self._wanted.folders, self._wanted.place.number)
            raise
        finally:
            self._clear()
        return ends

    def abort(self, cause: str) -> None:
        """Give up, and leave the cause to readers."""
        self.writer.abort()
        self._clear()
        with suppress(OSError):  # a disk that is full or gone: readers wait until their deadline
            _mark(self._wanted.folders, self._wanted.place.failed.map, cause.encode())

    def _publish(self, ends: Sequence[EndOfPartition]) -> None:
        data, path = self._folder / data_name(DATA), self._folder / INDEX_NAME
        index = path.read_bytes()
        manifest = packed(index, ends)
        places = offsets(index_in(memoryview(index), str(path), FileOrigin(self._wanted.partition)))
        size = data.stat().st_size
        with data.open("ab") as file:
            file.write(manifest)
        _publish(self._wanted.folders, self._wanted.place.number, data, service_index(places, size, len(manifest)))

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def _kept(self, folder: str) -> Iterator[None]:
        """Errors of the disk out of this block say what to do about Spark's folders."""
        try:
            yield
        except StorageError as error:
            raise self._failure(str(error).partition(" Free space")[0].rstrip(".")) from error
        except OSError as error:
            what = "the disk is full" if error.errno in FULL else str(error)
            raise self._failure(f"cannot write partition {self._wanted.partition} to {folder}: {what}") from error

    @staticmethod
    def _failure(what: str) -> StorageError:
        return StorageError(
            f"{what}. Free space there, or let Spark have directories with more (spark.local.dir, on YARN those of"
            f" the NodeManager): what the shuffle service is to read must lie there"
        )


def _locked(home: Path) -> tuple[Path, int]:
    """A new folder to write in, and its lock."""
    folder = home / f"{_WRITING}{secrets.token_hex(8)}"
    made = home / f".{folder.name}"
    made.mkdir(mode=0o700)
    lock = os.open(made / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    made.rename(folder)  # `sweep` finds it only once it is locked
    return folder, lock


def sweep(home: Path) -> None:
    """Remove the folders whose writers were killed."""
    for folder in home.glob(f"{_WRITING}*"):
        with suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_WRONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def files_by_partition(folders: Sequence[str]) -> Iterator[tuple[PartitionId, int]]:
    """The finished partitions in these folders, each with its number. For a host's owner: all files are looked at."""
    for folder in map(Path, folders):
        for path in folder.glob(f"??/shuffle_{SHUFFLE}_*_0.data"):
            partition = partition_in(path)
            if partition is not None:
                yield partition, int(path.name.split("_")[2])


def remove(folders: Sequence[str], number: int) -> None:
    """Remove a partition's files; its mark stays, so that readers hear that it was released."""
    for name in reversed(names_of(number)):
        path_of(folders, name).unlink(missing_ok=True)


def _mark(folders: Sequence[str], number: int, text: bytes) -> None:
    """Leave a mark: a block that is nothing but a text."""
    data, _ = names_of(number)
    path = path_of(folders, data)
    made = path.parent.parent / f".{data}"
    made.write_bytes(text)
    _publish(folders, number, made, b"".join(each.to_bytes(8, "big") for each in (0, len(text))))


def _publish(folders: Sequence[str], number: int, data: Path, index: bytes) -> None:
    """Give a block's data its name, then its index."""
    to_data, to_index = (path_of(folders, name) for name in names_of(number))
    for path in (to_data, to_index):
        make_parent(path)
    data.chmod(FILE_MODE)
    data.rename(to_data)
    made = to_index.with_name(f".{to_index.name}")
    made.write_bytes(index)
    made.chmod(FILE_MODE)
    made.rename(to_index)
