# SPDX-License-Identifier: Apache-2.0
"""The folders of a host service: one for each partition, on the disk with the most room.

    <root>/data/<two digits>/<random digits>/  data.0, index, ends, about

Rules: the names say nothing of partitions, so no identity ever becomes a path. The service makes all files, for its
own user alone; a task gets descriptors of them. A root carries the index's id (`machine.owned_folders`). A folder is
removed when the index names it, and only the files in it that the service makes: what else may lie there stays, and
so does a folder that the index does not name, for the index may be too old to. Nothing outside the roots is read or
removed: a catalogue that was copied, or moved, names folders that may be another service's.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from penstock.errors import NoStorageError, StorageError
from penstock.external.catalogue import INDEX_NAME as CATALOGUE
from penstock.external.left_open import cut, is_written_to
from penstock.external.manifests import ABOUT, CURRENT, DESCRIPTION
from penstock.external.requests import KeptExtent, pack_kept
from penstock.machine.disk_work import DISKS
from penstock.machine.owned_folders import FolderKind, check_owned
from penstock.partition.directories import Directories, DirectorySpace
from penstock.partition.extents import DATA, INDEX_NAME, data_name
from penstock.partition.file_header import damaged
from penstock.partition.file_input import FileOrigin, open_file, read_at, unreadable
from penstock.partition.index import read_index
from penstock.shuffle import EndOfPartition
from penstock.shuffle.sums import sum_of

_DATA = "data"
_ENDS = "ends"
_OURS = (
    data_name(DATA),
    INDEX_NAME,
    _ENDS,
    *(f"{dot}{each}" for each in (ABOUT, DESCRIPTION, CURRENT) for dot in ("", ".")),
)
"""The names of all files that a service makes in a folder."""
_NAME = re.compile(r"[0-9a-f]{24}")
_END = struct.Struct("<QQQ")
END_BYTES: Final = _END.size
_CHECKSUM = struct.Struct("<Q")
MOST_EXTENTS = 1 << 17
"""Of one question: they take some 30 MiB, and a tenth of a second in which no other thread runs."""


def _has_rows(root: Path) -> bool:
    return any(True for _ in found_folders(root))


_IF_LOST = ", or have it rebuilt from the folders: run the same command once with --rebuild-index"
KIND: Final = FolderKind("host service", CATALOGUE, _has_rows, _IF_LOST)


def found_folders(root: Path) -> Iterator[Path]:
    """The folders below a root that have such names as a service gives."""
    for folder in (root / _DATA).glob("??/*"):
        if _NAME.fullmatch(folder.name) and folder.parent.name == folder.name[:2]:
            yield folder


class ServiceFolders:
    """The folders below `roots`, of which each file system keeps `reserve` bytes free."""

    def __init__(self, roots: Sequence[Path], reserve: int, *, hides_another: bool = False) -> None:
        self.roots = tuple(roots)
        self.reserve = reserve
        self.hides_another = hides_another
        """True if a folder beside these is another index's, so that names which this one lacks may be there."""
        self._directories = Directories([root / _DATA for root in roots], reserve)
        for root in roots:
            (root / _DATA).mkdir(mode=0o700, exist_ok=True)
            check_owned(root / _DATA)

    @property
    def places(self) -> list[Path]:
        """The folders in which partitions lie, one of each root."""
        return [root / _DATA for root in self.roots]

    def choose(self, spaces: Sequence[DirectorySpace]) -> str:
        """The name of a new folder, which is not there yet, as the disks are. NoStorageError where none has room."""
        try:
            disk = self._directories.choose(spaces)
        except NoStorageError as error:
            told = str(error).partition(". Free space")[0]
            raise NoStorageError(
                f"this host's shuffle service has no room: {told}. Free space there, give it more folders (--dir),"
                " or a lower --reserve"
            ) from error
        name = secrets.token_hex(12)
        return str(disk / name[:2] / name)

    def make(self, folder: str) -> None:
        """Make a folder; StorageError where that can't be. It waits for a disk."""
        for is_last in (False, False, True):
            try:
                Path(folder).parent.mkdir(mode=0o700, exist_ok=True)  # no more: its disk may not be mounted any more
                Path(folder).mkdir(mode=0o700)
            except (FileNotFoundError, FileExistsError) as error:  # its parent, being empty, was removed meanwhile
                if is_last:
                    raise self._failed(folder, error) from error
            except OSError as error:
                raise self._failed(folder, error) from error
            else:
                return

    def make_files(self, folder: str) -> tuple[int, int]:
        """Make a folder for a partition; descriptors of its data file and index. It waits for a disk."""
        self.make(folder)
        self.ensure_room(folder, 0)
        opened: list[int] = []
        try:
            for each in (data_name(DATA), INDEX_NAME):
                opened.append(_created(Path(folder, each)))  # noqa: PERF401 - what is open is closed if one fails
        except OSError as error:
            for descriptor in opened:
                os.close(descriptor)
            raise self._failed(folder, error) from error
        return opened[0], opened[1]

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

    def __iter__(self) -> Iterator[Path]:
        """All partition folders that are there."""
        for root in self.roots:
            yield from found_folders(root)

    def _failed(self, folder: str, error: OSError) -> StorageError:
        disk = Path(folder).parent.parent
        self._directories.note_failure(disk)
        return StorageError(f"the shuffle service can't make files in {disk}: {error}")


def pack_ends(ends: Sequence[EndOfPartition]) -> bytes:
    """The words about what each subpartition holds."""
    return b"".join([_END.pack(end.rows, end.bytes, end.checksum) for end in ends])


def write_ends(folder: str, body: bytes) -> None:
    """Write what each subpartition holds (`pack_ends`); StorageError where that can't be."""
    path = Path(folder, _ENDS)
    try:
        path.write_bytes(_CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)) + body)
    except OSError as error:
        raise StorageError(f"the shuffle service can't write {path}: {error}") from error


def close_to_writers(folder: str, most: int) -> list[int]:
    """Make a partition's files safe from later writes. It waits for a disk.

    A task closes its descriptors before it commits. Files that are open for writing still are copied, up to `most`
    bytes of each, and the copies are the partition's. What becomes of the others is up to the caller: a descriptor of
    each, to read it (`left_open`). A task is believed where the file system can't tell.
    """
    left = []
    for name in (data_name(DATA), INDEX_NAME):
        path = Path(folder, name)
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            left.append(source)
            if is_written_to(source):
                _copy(source, path, most)
            else:
                os.close(left.pop())
        except OSError as error:
            close_all(left)
            raise StorageError(f"the shuffle service can't read {path}: {error}") from error
    return left


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def _copy(source: int, path: Path, most: int) -> None:
    made = path.with_name(f".{path.name}")
    target = _created(made)
    try:
        left = min(os.fstat(source).st_size, most)
        while left and (count := os.sendfile(target, source, None, left)):
            left -= count
        made.rename(path)
    finally:
        os.close(target)
    cut(source)


def size_of(folder: str) -> int:
    """The bytes of a partition's files."""
    return sum(each.stat().st_size for each in Path(folder).iterdir())


def find_range(folder: str, first: int, count: int, origin: FileOrigin) -> tuple[bytes, EndOfPartition]:
    """The extents of a range, in the order of the file (`pack_kept`), and its sums. It waits for a disk.

    PartitionLostError where a file is gone, IncompleteDataError where one is damaged.
    """
    times: dict[tuple[int, int, int], int] = {}
    for piece in read_index(folder, first, count, origin, MOST_EXTENTS):
        _, offset, length, checksum = piece.extent
        times[offset, length, checksum] = times.get((offset, length, checksum), 0) + 1
    packed = pack_kept([KeptExtent(*extent, many) for extent, many in times.items()])
    return packed, _ends(folder, first, count, origin)


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


class Removal(NamedTuple):
    """Whether nothing is left of a folder, and descriptors of files that a task has open still (`left_open`)."""

    is_whole: bool
    left_open: list[int]


def remove(folder: str) -> Removal:
    """Remove what the service has made, and free its space, though tasks may have descriptors of it.

    It waits for a disk. Other files stay, in their folder.
    """
    left: list[int] = []
    for name in _OURS:
        path = Path(folder, name)
        with contextlib.suppress(OSError):
            left += _cut(path)
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        Path(folder).rmdir()  # fails where there is anything that is not ours
        Path(folder).parent.rmdir()  # fails where there are others
    return Removal(not Path(folder).exists(), left)


def _cut(path: Path) -> list[int]:
    """Empty a file; its descriptor, if a task has it open for writing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    is_kept = False
    try:
        cut(descriptor)
        is_kept = is_written_to(descriptor)
    finally:
        if not is_kept:
            os.close(descriptor)
    return [descriptor] if is_kept else []


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
