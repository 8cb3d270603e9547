# SPDX-License-Identifier: Apache-2.0
"""The bodies of what is asked of Spark's external shuffle service, and of what it answers. Pure.

Texts are their bytes with an i32 length in front, lists have an i32 count, a tag says which message it is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ProtocolError

SUB_FOLDERS = 64
"""The folders below each registered one, over which files are spread: Spark's own number."""
_REGISTER, _STREAM, _REMOVE, _FETCH, _ASK_FOLDERS, _FOLDERS = 2, 3, 7, 9, 10, 11
_MANAGER = "org.apache.spark.shuffle.sort.SortShuffleManager"
_INT = struct.Struct(">i")
_STREAM_BODY = struct.Struct(">bqi")
_BATCHES = b"\x01"


class Block(NamedTuple):
    """A run of neighbouring reduce partitions of one map output: numbers from `first` on, `end` not among them."""

    map: int
    first: int
    end: int


def register_executor(application: str, executor: str, folders: Sequence[str]) -> bytes:
    """Make known in which folders an executor's files lie."""
    body = bytes([_REGISTER]) + _text(application) + _text(executor) + _texts(folders)
    return body + _INT.pack(SUB_FOLDERS) + _text(_MANAGER)


def fetch_blocks(application: str, executor: str, shuffle: int, blocks: Sequence[Block]) -> bytes:
    """Ask for a stream with a chunk for each block."""
    count = _INT.pack(len(blocks))
    maps = struct.pack(f">{len(blocks)}q", *(block.map for block in blocks))
    ranges = b"".join(struct.pack(">iii", 2, block.first, block.end) for block in blocks)
    head = bytes([_FETCH]) + _text(application) + _text(executor) + _INT.pack(shuffle)
    return head + count + maps + count + ranges + _BATCHES


def remove_blocks(application: str, executor: str, names: Sequence[str]) -> bytes:
    """Have files removed, by their names."""
    return bytes([_REMOVE]) + _text(application) + _text(executor) + _texts(names)


def ask_folders(application: str, executor: str) -> bytes:
    """Ask which folders an executor has registered."""
    return bytes([_ASK_FOLDERS]) + _text(application) + _texts([executor])


def read_stream(body: bytes) -> tuple[int, int]:
    """The number of a stream, and how many chunks it has."""
    tag, stream, chunks = _unpacked(_STREAM_BODY, body)
    _expect(tag, _STREAM, body)
    return stream, chunks


def read_folders(body: bytes) -> dict[str, tuple[str, ...]]:
    """The folders of executors."""
    _expect(body[0] if body else 0, _FOLDERS, body)
    try:
        executors, position = _read_texts(body, 1)
        count, position = _read_int(body, position)
        sizes = struct.unpack_from(f">{count}i", body, position)
        folders, _ = _read_texts(body, position + 4 * count)
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"an answer about folders is cut or damaged: {body[:64]!r}") from error
    found, begin = {}, 0
    for executor, size in zip(executors, sizes, strict=False):
        found[executor] = tuple(folders[begin : begin + size])
        begin += size
    return found


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT.pack(len(data)) + data


def _texts(texts: Sequence[str]) -> bytes:
    return _INT.pack(len(texts)) + b"".join(map(_text, texts))


def _read_int(body: bytes, position: int) -> tuple[int, int]:
    (number,) = _INT.unpack_from(body, position)
    if not 0 <= number <= len(body):
        raise ValueError(f"a count of {number}")
    return number, position + _INT.size


def _read_texts(body: bytes, position: int) -> tuple[list[str], int]:
    count, position = _read_int(body, position)
    found = []
    for _ in range(count):
        length, position = _read_int(body, position)
        found.append(body[position : position + length].decode())
        position += length
    return found, position


def _unpacked(layout: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != layout.size:
        raise ProtocolError(f"an answer of {len(body)} bytes came where {layout.size} were due: {body[:64]!r}")
    return layout.unpack(body)


def _expect(tag: int, expected: int, body: bytes) -> None:
    if tag != expected:
        raise ProtocolError(f"an answer of type {tag} came where type {expected} was due: {body[:64]!r}")
