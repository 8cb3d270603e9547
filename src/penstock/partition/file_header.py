# SPDX-License-Identifier: Apache-2.0
"""The head and the foot of every file of a blocking partition: what it is, whose it is, and that all of it is there.

Rules: a header with the partition's identity and a checksum over each byte of it; a footer of numbers, its checksum,
and the magic once more, so that a cut shows at once. Texts are padded to 8 with zeroes, and the padding counts.
`docs/file-formats.md` has the layout. Limit: one version; files of another are refused, as none outlives its session.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from penstock.partition.file_input import FileInput
from penstock.shuffle.ids import DatasetId, PartitionId

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2
"""Of all these files. Version 1 was the result file without subpartitions and compression."""
HEADER = struct.Struct("<8sIIQQqqQQ")
"""Magic, version, flags, bytes of schema, bytes of dataset name, partition index, attempt, subpartitions, checksum of
both texts."""
CHECKSUM = struct.Struct("<Q")
TAIL = struct.Struct("<Q8s")
"""Checksum of the footer, magic."""
SELF_CONTAINED = 1
"""Flag: every payload is an IPC stream of its own, because the schema holds dictionaries."""
COMPRESSION_FLAGS = {"none": 0, "lz4": 2, "zstd": 4}

_START = HEADER.size + CHECKSUM.size


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The content of a file's header. `schema` is None where the file holds none."""

    partition: PartitionId
    schema: pa.Schema | None = None
    subpartitions: int = 1
    compression: str = "none"
    self_contained: bool = False


def pack_header(magic: bytes, header: FileHeader) -> bytes:
    """The bytes a file begins with."""
    schema = b"" if header.schema is None else _padded(header.schema.serialize().to_pybytes())
    dataset = str(header.partition.dataset).encode()
    texts = schema + _padded(dataset)
    start = HEADER.pack(
        magic,
        VERSION,
        COMPRESSION_FLAGS[header.compression] | SELF_CONTAINED * header.self_contained,
        len(schema),
        len(dataset),
        header.partition.index,
        header.partition.attempt,
        header.subpartitions,
        xxhash.xxh3_64_intdigest(texts),
    )
    return b"".join((start, CHECKSUM.pack(xxhash.xxh3_64_intdigest(start)), texts))


def read_header(file: FileInput, magic: bytes) -> tuple[FileHeader, int]:
    """The header and the number of its bytes; IncompleteDataError unless it is this partition's."""
    view = file.view
    if file.size < _START:
        raise file.incomplete(f"it has {file.size} bytes, too few for its header")
    start = view[: HEADER.size]
    found, version, flags, schema_size, dataset_size, index, attempt, count, checksum = HEADER.unpack(start)
    if found != magic:
        raise file.incomplete(f"it does not begin with {magic.decode()}")
    if CHECKSUM.unpack(view[HEADER.size : _START])[0] != xxhash.xxh3_64_intdigest(start):
        raise file.incomplete("the checksum of its header does not match")
    compression = next((name for name, flag in COMPRESSION_FLAGS.items() if flag == flags & ~SELF_CONTAINED), None)
    if version != VERSION or compression is None:
        raise file.incomplete(f"its format is version {version} with flags {flags}: this reads version {VERSION}")
    end = _START + schema_size + dataset_size + -dataset_size % 8
    if end > file.size or xxhash.xxh3_64_intdigest(view[_START:end]) != checksum:
        raise file.incomplete("the checksum of its schema and name does not match")
    dataset = bytes(view[_START + schema_size :][:dataset_size]).decode()
    partition = file.where.partition
    if (dataset, index, attempt) != (str(partition.dataset), partition.index, partition.attempt):
        raise file.incomplete(f"it holds partition {dataset}.{index}#{attempt}")
    schema = _schema(file, schema_size) if schema_size else None
    return FileHeader(partition, schema, count, compression, bool(flags & SELF_CONTAINED)), end


def partition_in(path: Path, magic: bytes) -> PartitionId | None:
    """The partition that a file belongs to, by its header; None for another file, or none."""
    try:
        with path.open("rb") as file:
            start = file.read(HEADER.size)
            if start[: len(magic)] != magic or CHECKSUM.unpack(file.read(CHECKSUM.size))[0] != _checksum(start):
                return None
            _, _, _, schema_size, dataset_size, index, attempt, _, _ = HEADER.unpack(start)
            file.seek(_START + schema_size)
            return PartitionId(DatasetId.of(file.read(dataset_size).decode()), index, attempt)
    except (OSError, struct.error, ValueError):
        return None


def pack_footer(footer: bytes, magic: bytes) -> bytes:
    """The footer with its checksum and magic."""
    return footer + TAIL.pack(xxhash.xxh3_64_intdigest(footer), magic)


def read_footer(file: FileInput, layout: struct.Struct, magic: bytes) -> tuple[tuple[int, ...], int]:
    """The footer's numbers and where it begins; IncompleteDataError where a file ends in anything else."""
    begin = file.size - layout.size - TAIL.size
    if begin < 0:
        raise file.incomplete(f"it has {file.size} bytes, too few for its footer")
    footer = file.view[begin : begin + layout.size]
    checksum, found = TAIL.unpack(file.view[begin + layout.size :])
    if found != magic:
        raise file.incomplete(f"it does not end with {magic.decode()}: it was cut or overwritten")
    if checksum != xxhash.xxh3_64_intdigest(footer):
        raise file.incomplete("the checksum of its footer does not match")
    return layout.unpack(footer), begin


def _checksum(data: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(data))


def _schema(file: FileInput, size: int) -> pa.Schema:
    import pyarrow as pa  # not above: environments import this module, and most of their files have none

    return pa.ipc.read_schema(file.buffer.slice(_START, size))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
