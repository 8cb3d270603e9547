# SPDX-License-Identifier: Apache-2.0
"""The metadata of a checkpoint: what it consists of, and its bytes.

Layout: magic (8 bytes), version u32, length u64, xxh3 checksum of the body u64, all little-endian; then the body, a
msgpack map. A reader refuses another magic, a newer version, a wrong length or checksum, each by name. Unknown keys
of a known version are an error too: to skip what one does not know would restore less than was saved.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgpack
import xxhash

from penstock.checkpoint.errors import CorruptCheckpointError, NewerFormatError

MAGIC: Final = b"PSTKCKPT"
VERSION: Final = 7
_READ: Final = (1, 2, 3, 4, 5, 6, 7)
"""Version 1 has no figures, in 1 and 2 all chunks lie in their part's own file, before 4 no rows are logged, before 5
there is nothing of what sources read, before 6 no name of a stage or sink, and before 7 no savepoint."""
_HEAD: Final = struct.Struct("<8sIQQ")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A named run of bytes of a file, with its own checksum (xxh3, 64 bits).

    `file` is that file's path below the location where it is not the part's own; it may be of another checkpoint. Of
    a piece of a log `rows` is the number of its rows, and `first` of the first of them, as its channel counts them.
    """

    name: str
    offset: int
    length: int
    checksum: int
    file: str = ""
    first: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class PartHandle:
    """The place of one task's snapshot: a file below the location, of `size` bytes, and its chunks.

    The file may hold other tasks' snapshots too. Several chunks of one name are the pieces of one content, in order,
    as rows in flight may have.

    `positions` are those of channels whose rows are logged, by the names of their chunks: how many rows a consumer
    had taken ("in"), or a producer had given ("out"), since the attempt began. `since` is the complete checkpoint
    after which the logged chunks begin, 0: with the attempt (see `logged_rows`).
    """

    path: str
    size: int
    chunks: tuple[Chunk, ...]
    positions: Mapping[str, int] = field(default_factory=dict)
    since: int = 0

    def pieces(self, name: str) -> tuple[Chunk, ...]:
        """The chunks with this name; raises KeyError where there is none."""
        found = tuple(chunk for chunk in self.chunks if chunk.name == name)
        if not found:
            raise KeyError(name)
        return found

    @property
    def bytes(self) -> int:
        """The number of bytes that it has written itself."""
        return sum(chunk.length for chunk in self.chunks if not chunk.file)

    def file_of(self, chunk: Chunk) -> str:
        """The path of the file that holds a chunk, below the location."""
        return chunk.file or self.path

    def with_file(self, chunk: Chunk) -> Chunk:
        """A chunk of this part as other parts refer to it: as a whole."""
        return replace(chunk, file=self.file_of(chunk), first=0, rows=0)

    @property
    def logged(self) -> tuple[Chunk, ...]:
        """The chunks that are pieces of logs."""
        return tuple(chunk for chunk in self.chunks if chunk.rows)

    @property
    def referred(self) -> Mapping[str, int]:
        """The files beside its own that it needs, by path: the bytes that each has at least."""
        found: dict[str, int] = {}
        for chunk in self.chunks:
            if chunk.file and chunk.file != self.path:
                found[chunk.file] = max(found.get(chunk.file, 0), chunk.offset + chunk.length)
        return found


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """A whole checkpoint. `parts` holds a handle for each task, by the task's name (`<operator id>.<subtask>`).

    `parallelism` and `max_parallelism` are by operator id; `hash` names the function that put keys into key groups.
    `sources` says by operator id what a source reads, and its partitions.
    `stages` are the names of stages by operator id, as `explain` shows them, and `sink` is the sink's.
    `seconds` went by from its trigger until all parts were stored; `figures` are those of each task, by its part.
    `savepoint` names the savepoint that its location began with, if it did.
    """

    number: int
    triggered: float
    parts: Mapping[str, PartHandle]
    finished: tuple[str, ...] = ()
    parallelism: Mapping[str, int] = field(default_factory=dict)
    max_parallelism: int = 0
    hash: str = ""
    seconds: float = 0.0
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)
    sink: str = ""
    savepoint: str = ""

    @property
    def is_logged(self) -> bool:
        """True if rows in flight lie in logs."""
        return any(part.positions for part in self.parts.values())


def encode(metadata: CheckpointMetadata) -> bytes:
    """The bytes of the metadata file."""
    body = msgpack.packb(
        {
            "number": metadata.number,
            "triggered": metadata.triggered,
            "parts": {name: _part_to_wire(part) for name, part in metadata.parts.items()},
            "finished": list(metadata.finished),
            "parallelism": dict(metadata.parallelism),
            "max_parallelism": metadata.max_parallelism,
            "hash": metadata.hash,
            "seconds": metadata.seconds,
            "figures": {name: dict(figures) for name, figures in metadata.figures.items()},
            "sources": dict(metadata.sources),
            "stages": dict(metadata.stages),
            "sink": metadata.sink,
            "savepoint": metadata.savepoint,
        }
    )
    return _HEAD.pack(MAGIC, VERSION, len(body), xxhash.xxh3_64_intdigest(body)) + bytes(body)


def decode(data: bytes, path: str) -> CheckpointMetadata:
    """Inverse of `encode`; raises CorruptCheckpointError or NewerFormatError, which name the file."""
    if len(data) < _HEAD.size:
        raise CorruptCheckpointError(f"{path} has {len(data)} bytes: it was not written to its end")
    magic, version, length, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != MAGIC:
        raise CorruptCheckpointError(f"{path} is not the metadata of a checkpoint: it begins with {magic!r}")
    is_whole = len(body) == length and xxhash.xxh3_64_intdigest(body) == checksum
    if version not in _READ and is_whole:
        raise NewerFormatError(
            f"{path} has format version {version}, and this Penstock reads versions up to {VERSION}: start the query"
            " with the version that wrote it, or a later one"
        )
    if version not in _READ or not is_whole:
        raise CorruptCheckpointError(f"{path} is damaged: {len(body)} of {length} bytes, or another checksum")
    try:
        fields: dict[str, Any] = msgpack.unpackb(body)
        parts = {name: _part_from_wire(wire) for name, wire in fields.pop("parts").items()}
        sources = {uid: (what, tuple(names)) for uid, (what, names) in fields.pop("sources", {}).items()}
        return CheckpointMetadata(parts=parts, finished=tuple(fields.pop("finished")), sources=sources, **fields)
    except (msgpack.UnpackException, TypeError, ValueError, KeyError, AttributeError) as error:
        raise CorruptCheckpointError(f"{path} can't be read: {error!r}") from error


def pack_part(part: PartHandle) -> bytes:
    """A handle as it travels from a task to the coordinator."""
    packed: bytes = msgpack.packb(_part_to_wire(part))
    return packed


def unpack_part(data: bytes) -> PartHandle:
    """Inverse of `pack_part`; raises CorruptCheckpointError for anything else."""
    try:
        return _part_from_wire(msgpack.unpackb(data))
    except (msgpack.UnpackException, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"a handle of {len(data)} bytes can't be read: {error!r}") from error


def _part_to_wire(part: PartHandle) -> tuple[object, ...]:
    chunks = [
        (c.name, c.offset, c.length, c.checksum, c.file, *((c.first, c.rows) if c.rows else ())) for c in part.chunks
    ]
    return (part.path, part.size, chunks, *((dict(part.positions), part.since) if part.positions else ()))


def _part_from_wire(wire: Any) -> PartHandle:
    path, size, chunks, *logged = wire
    return PartHandle(str(path), int(size), tuple(Chunk(*chunk) for chunk in chunks), *logged)
