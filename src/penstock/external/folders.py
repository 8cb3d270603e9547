# SPDX-License-Identifier: Apache-2.0
"""The folders of a host service: one for each partition, on the disk with the most room.

    <root>/data/<two digits>/<random digits>/  data.0, index, ends

Rules: the names say nothing of partitions, so no identity ever becomes a path. The service makes all files, as its
own user and for nobody else; a task gets descriptors of them. A folder that no row of the catalogue names is swept
when the service starts. Nothing outside the roots is read or removed: a catalogue that was copied, or moved, names
folders that may be another service's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import struct
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from penstock.errors import NoStorageError, StorageError
from penstock.external.requests import KeptExtent
from penstock.machine.disk_work import DISKS
from penstock.partition.directories import Directories, DirectorySpace
from penstock.partition.extents import DATA, INDEX_NAME, data_name
from penstock.partition.file_header import damaged
from penstock.partition.file_input import FileOrigin, open_file, read_at, unreadable
from penstock.partition.index import read_index
from penstock.shuffle import EndOfPartition
from penstock.shuffle.sums import sum_of

_DATA = "data"
_ENDS = "ends"
_END = struct.Struct("<QQQ")
_CHECKSUM = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class MadeFiles:
    """A new folder, and descriptors of its data file and index."""

    folder: str
    data: int
    index: int

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.data)
        os.close(self.index)


class ServiceFolders:
    """The folders below `roots`, of which each file system keeps `reserve` bytes free."""

    def __init__(self, roots: Sequence[Path], reserve: int) -> None:
        self.roots = tuple(roots)
        self.reserve = reserve
        self._directories = Directories([root / _DATA for root in roots], reserve)
        for root in roots:
            (root / _DATA).mkdir(mode=0o700, exist_ok=True)

    @property
    def places(self) -> list[Path]:
        """The folders in which partitions lie, one of each root."""
        return [root / _DATA for root in self.roots]

    def choose(self, spaces: Sequence[DirectorySpace]) -> Path:
        """The place of a new folder, as the disks are; NoStorageError where none has room."""
        try:
            return self._directories.choose(spaces)
        except NoStorageError as error:
            told = str(error).partition(". Free space")[0]
            raise NoStorageError(
                f"this host's shuffle service has no room: {told}. Free space there, give it more folders (--dir),"
                " or a lower --reserve"
            ) from error

    def make(self, place: Path) -> MadeFiles:
        """A new folder there. It waits for a disk. StorageError where that can't be."""
        name = secrets.token_hex(12)
        folder = place / name[:2] / name
        made: list[int] = []
        try:
            folder.mkdir(mode=0o700, parents=True)
            made += [_created(folder / each) for each in (data_name(DATA), INDEX_NAME)]
            self.ensure_room(str(folder), 0)
        except (OSError, StorageError) as error:
            for descriptor in made:
                os.close(descriptor)
            remove(str(folder))
            if isinstance(error, StorageError):
                raise
            self._directories.note_failure(place)
            raise StorageError(f"the shuffle service can't make files in {place}: {error}") from error
        return MadeFiles(str(folder), *made)

    def ensure_room(self, folder: str, more: int) -> None:
        """See that so many bytes more leave the reserve free; NoStorageError if not. It waits for a disk."""
        try:
            system = os.statvfs(folder)
        except OSError as error:
            raise StorageError(f"the shuffle service can't use {folder}: {error}") from error
        free = system.f_bavail * system.f_frsize
        if free - more < self.reserve:
            raise NoStorageError(
                f"the disk of this host's shuffle service at {folder} has {free:,} bytes free, and {more:,} more are"
                f" wanted with {self.reserve:,} kept free: free space there, give it more folders (--dir), or a"
                " lower --reserve"
            )

    def place_of(self, folder: str) -> str:
        """A folder of the catalogue within `roots`, also one that was moved or copied there, or nothing."""
        known = Path(folder)
        if not folder or known.parent.parent in [root / _DATA for root in self.roots]:
            return folder
        moved = (root / _DATA / known.parent.name / known.name for root in self.roots)
        return next((str(each) for each in moved if each.is_dir()), "")

    def sweep(self, known: Collection[str]) -> int:
        """Remove the folders that nobody knows; how many there were."""
        swept = 0
        for root in self.roots:
            for folder in (root / _DATA).glob("??/*"):
                if str(folder) not in known:
                    shutil.rmtree(folder, ignore_errors=True)
                    swept += 1
        return swept


def write_ends(folder: str, ends: Sequence[EndOfPartition]) -> None:
    """Write what each subpartition holds; StorageError where that can't be."""
    body = b"".join([_END.pack(end.rows, end.bytes, end.checksum) for end in ends])
    path = Path(folder, _ENDS)
    try:
        path.write_bytes(_CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)) + body)
    except OSError as error:
        raise StorageError(f"the shuffle service can't write {path}: {error}") from error


def size_of(folder: str) -> int:
    """The bytes of a partition's files."""
    return sum(each.stat().st_size for each in Path(folder).iterdir())


def find_range(folder: str, first: int, count: int, origin: FileOrigin) -> tuple[list[KeptExtent], EndOfPartition]:
    """The extents of a range, in the order of the file, and its sums. It waits for a disk.

    PartitionLostError where a file is gone, IncompleteDataError where one is damaged.
    """
    times: dict[tuple[int, int, int], int] = {}
    for piece in read_index(folder, first, count, origin):
        _, offset, length, checksum = piece.extent
        times[offset, length, checksum] = times.get((offset, length, checksum), 0) + 1
    return [KeptExtent(*extent, many) for extent, many in times.items()], _ends(folder, first, count, origin)


def read_chunk(folder: str, target: memoryview, offset: int, origin: FileOrigin) -> None:
    """Fill the target with bytes of the data file. It waits for a disk. Errors as of `find_range`."""
    path = f"{folder}/{data_name(DATA)}"
    descriptor = open_file(path, origin)
    began = time.perf_counter()
    try:
        count = read_at(descriptor, target, offset)
        DISKS.has_read(path, count, time.perf_counter() - began)
    except OSError as error:
        raise unreadable(origin, path, error) from error
    finally:
        os.close(descriptor)
    if count < len(target):
        raise damaged(origin, path, f"it ends at {offset + count}, before {offset + len(target)}")


def remove(folder: str) -> None:
    """Remove a partition's files, and free their space, whoever has descriptors of them. It waits for a disk."""
    for path in Path(folder).glob("*"):
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        Path(folder).parent.rmdir()  # fails where there are others


def _ends(folder: str, first: int, count: int, origin: FileOrigin) -> EndOfPartition:
    path = f"{folder}/{_ENDS}"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise unreadable(origin, path, error) from error
    body = memoryview(data)[_CHECKSUM.size :]
    if len(data) < _CHECKSUM.size or _CHECKSUM.unpack_from(data)[0] != xxhash.xxh3_64_intdigest(body):
        raise damaged(origin, path, "its checksum does not match")
    wanted = body[first * _END.size : (first + count) * _END.size]
    return sum_of(EndOfPartition(*each) for each in _END.iter_unpack(wanted))


def _created(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
