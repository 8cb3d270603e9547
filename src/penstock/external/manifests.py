# SPDX-License-Identifier: Apache-2.0
"""Words in a folder of a host service that say what it holds, so that a lost index can be made again from folders.

    <root>/data/<two digits>/<random digits>/  about  (and of a partition: data.0, index, ends)
                                                      (and of a result that is kept by name: description, current)

Rules: a partition's word is written with its commit, a result's when it is prepared, and again when more partitions
are; `current` when it takes its name over. A word has a checksum: one that is torn is none. It has the key of its
application, as the index does, so only the service may read it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack
import xxhash

from penstock.errors import StorageError

ABOUT: Final = "about"
DESCRIPTION: Final = "description"
CURRENT: Final = "current"
_CHECKSUM = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class FolderWord:
    """The content of a folder: a partition of an application, or a result with the folders of its partitions."""

    title: str
    key: bytes
    user: int
    partition: str = ""
    place: int = 0
    attempt: int = 0
    subpartitions: int = 0
    kept: str = ""
    made: int = 0
    folders: tuple[str, ...] = ()
    """The names of the folders of a result's partitions."""

    @property
    def is_result(self) -> bool:
        """True for a result that is kept by name."""
        return bool(self.kept)


def write_word(folder: str, word: FolderWord) -> None:
    """Write what a folder holds, whole or not at all; StorageError where that can't be. It waits for a disk."""
    fields = [getattr(word, name) for name in FolderWord.__slots__]
    body: bytes = msgpack.packb(fields)
    write_whole(folder, ABOUT, _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)) + body)


def read_word(folder: str | Path) -> FolderWord | None:
    """Read what a folder holds; None where it does not say. It waits for a disk."""
    try:
        data = Path(folder, ABOUT).read_bytes()
        body = data[_CHECKSUM.size :]
        if _CHECKSUM.unpack_from(data)[0] != xxhash.xxh3_64_intdigest(body):
            return None
        fields: dict[str, Any] = dict(zip(FolderWord.__slots__, msgpack.unpackb(body), strict=True))
        return FolderWord(**fields | {"folders": tuple(fields["folders"])})
    except (OSError, ValueError, TypeError, IndexError, struct.error):
        return None


def write_description(folder: str, piece: bytes, offset: int = 0) -> None:
    """Write a piece of the description of a result; StorageError where that can't be. It waits for a disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(Path(folder, DESCRIPTION), flags, 0o600), "wb") as file:
            file.seek(offset)
            file.write(piece)
    except OSError as error:
        raise StorageError(f"the shuffle service can't write {folder}: {error}") from error


def described(folder: str) -> int:
    """The bytes of a result's description."""
    try:
        return Path(folder, DESCRIPTION).stat().st_size
    except OSError:
        return 0


def write_whole(folder: str, name: str, data: bytes) -> None:
    """Write a file that is there whole or not at all; StorageError where that can't be. It waits for a disk."""
    path, made = Path(folder, name), Path(folder, f".{name}")
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        made.rename(path)
    except OSError as error:
        raise StorageError(f"the shuffle service can't write {path}: {error}") from error


def remove_whole(folder: str, name: str) -> None:
    """Remove such a file, if it is there; StorageError where that can't be. It waits for a disk."""
    try:
        Path(folder, name).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"the shuffle service can't remove {name} in {folder}: {error}") from error
