# SPDX-License-Identifier: Apache-2.0
"""The list of a log file's pieces at its end, so that a task finds rows in it that it was not told of.

Layout behind the last piece: a msgpack list with name, offset, length, checksum, first row and rows of each piece;
then the list's length u64, its xxh3 checksum u64 and the magic (8 bytes), little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgpack
import pyarrow as pa
import xxhash
from pyarrow import fs

from penstock.checkpoint.errors import CorruptCheckpointError
from penstock.checkpoint.log_files import LogName
from penstock.checkpoint.metadata import Chunk

_MAGIC: Final = b"PSTKLOGX"
_TAIL: Final = struct.Struct("<QQ8s")


def packed(pieces: Sequence[Chunk]) -> bytes:
    """The bytes that end a file with these pieces."""
    body: bytes = msgpack.packb(
        [[each.name, each.offset, each.length, each.checksum, each.first, each.rows] for each in pieces]
    )
    return body + _TAIL.pack(len(body), xxhash.xxh3_64_intdigest(body), _MAGIC)


def pieces_of_log(place: tuple[fs.FileSystem, str], name: LogName) -> list[Chunk]:
    """The pieces of a log's file below a location, in the order in which they were written.

    Raises CorruptCheckpointError for a file without a list: its task has not ended it, or it is damaged; or OSError.
    """
    system, root = place
    path = f"{name.folder}/{name}"
    with system.open_input_file(f"{root}/{path}") as file:
        return _pieces_in(file, path)


def _pieces_in(file: pa.NativeFile, path: str) -> list[Chunk]:
    size = file.size()
    if size < _TAIL.size:
        raise CorruptCheckpointError(f"{path} has {size} bytes: a log that was ended has at least {_TAIL.size}")
    file.seek(size - _TAIL.size)
    length, checksum, magic = _TAIL.unpack(file.read(_TAIL.size))
    if magic != _MAGIC or length > size - _TAIL.size:
        raise CorruptCheckpointError(f"{path} has no list of its pieces at its end: it was not ended")
    file.seek(size - _TAIL.size - length)
    body = file.read(length)
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise CorruptCheckpointError(f"{path}: the list of its pieces is damaged")
    return [
        Chunk(name, offset, size, checksum, path, first, rows)
        for name, offset, size, checksum, first, rows in msgpack.unpackb(body)
    ]
