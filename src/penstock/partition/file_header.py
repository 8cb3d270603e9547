# SPDX-License-Identifier: Apache-2.0
"""The head and the foot of a partition's files: what one is, whose it is, and that all of it is there.

Rules: a header with the partition's identity and a checksum over each byte of it; in the index also a footer of
numbers, its checksum, and the magic once more, so that a cut shows at once. The name is padded to 8 with zeroes, and
the padding counts. `docs/file-formats.md` has the layout. Limit: one version; files of another are refused, as none
outlives its session.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

from penstock.errors import IncompleteDataError
from penstock.partition.file_input import FileOrigin
from penstock.shuffle.ids import DatasetId, PartitionId

VERSION = 3
"""Of both files. Before it there were five kinds of files; blocks had heads of their own, and most a schema."""
DATA_MAGIC = b"PENSTDAT"
INDEX_MAGIC = b"PENSTIDX"
HEADER = struct.Struct("<8sIIQqQQQ")
"""Magic, version, flags, bytes of dataset name, partition index, attempt, subpartitions, checksum of the name."""
CHECKSUM = struct.Struct("<Q")
TAIL = struct.Struct("<Q8s")
"""Checksum of the footer, magic."""
WHOLE = 1
"""Flag of an index: every extent holds whole messages, so those of several subpartitions may come in any order."""

_START = HEADER.size + CHECKSUM.size


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The content of a file's header."""

    partition: PartitionId
    subpartitions: int
    is_whole: bool = False


def header_size(partition: PartitionId) -> int:
    """The bytes of a header of this partition's files."""
    size = len(str(partition.dataset).encode())
    return _START + size + -size % 8


def pack_header(magic: bytes, header: FileHeader) -> bytes:
    """The bytes that a file begins with."""
    partition = header.partition
    dataset = str(partition.dataset).encode()
    name = dataset + bytes(-len(dataset) % 8)
    start = HEADER.pack(
        magic,
        VERSION,
        WHOLE * header.is_whole,
        len(dataset),
        partition.index,
        partition.attempt,
        header.subpartitions,
        xxhash.xxh3_64_intdigest(name),
    )
    return b"".join((start, CHECKSUM.pack(xxhash.xxh3_64_intdigest(start)), name))


def read_header(view: bytes | memoryview, magic: bytes, origin: FileOrigin, path: str) -> FileHeader:
    """The header at the beginning of these bytes; IncompleteDataError unless it is this partition's."""
    if len(view) < _START:
        raise damaged(origin, path, f"it has {len(view)} bytes, too few for its header")
    found, version, flags, size, index, attempt, subpartitions, checksum = HEADER.unpack_from(view)
    if found != magic:
        raise damaged(origin, path, f"it does not begin with {magic.decode()}")
    if CHECKSUM.unpack_from(view, HEADER.size)[0] != xxhash.xxh3_64_intdigest(view[: HEADER.size]):
        raise damaged(origin, path, "the checksum of its header does not match")
    if version != VERSION or flags & ~WHOLE:
        raise damaged(
            origin, path, f"its format is version {version} with flags {flags}: this reads version {VERSION}"
        )
    partition = origin.partition
    expected = str(partition.dataset).encode()
    name = bytes(view[_START : _START + size + -size % 8])
    if xxhash.xxh3_64_intdigest(name) != checksum:
        # A name of another length may reach over what was read: then it is not this partition's either.
        is_other = size != len(expected)
        raise damaged(origin, path, "it holds another partition" if is_other else "the checksum of its name is wrong")
    if (name[:size], index, attempt) != (expected, partition.index, partition.attempt):
        raise damaged(origin, path, f"it holds partition {name[:size].decode()}.{index}#{attempt}")
    return FileHeader(partition, subpartitions, bool(flags & WHOLE))


def partition_in(path: Path) -> PartitionId | None:
    """The partition that a data file belongs to, by its header; None for another file, or none."""
    try:
        with path.open("rb") as file:
            start = file.read(HEADER.size)
            is_sound = CHECKSUM.unpack(file.read(CHECKSUM.size))[0] == xxhash.xxh3_64_intdigest(start)
            magic, _, _, size, index, attempt, _, _ = HEADER.unpack(start)
            if magic != DATA_MAGIC or not is_sound:
                return None
            return PartitionId(DatasetId.of(file.read(size).decode()), index, attempt)
    except (OSError, struct.error, ValueError):
        return None


def pack_footer(footer: bytes) -> bytes:
    """An index's footer with its checksum and magic."""
    return footer + TAIL.pack(xxhash.xxh3_64_intdigest(footer), INDEX_MAGIC)


def damaged(origin: FileOrigin, path: str, what: str) -> IncompleteDataError:
    """The error of a file that is not what was written."""
    error = IncompleteDataError(f"{origin}: file {path} is damaged: {what}. The partition must be produced again.")
    error.partition = origin.partition.to_wire()
    return error
