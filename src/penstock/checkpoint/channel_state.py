# SPDX-License-Identifier: Apache-2.0
"""Rows in flight that are part of a snapshot: which channel they belong to, and their bytes in a task's part.

A channel is one chunk of the part, named `channel/<side>/<edge>/<producer>/<consumer>`. Its rows are whole messages,
framed as on the wire, so restore knows one form wherever they waited. In the restored order of a channel all of "in"
comes first, oldest first, then all of "out", then new rows.

Layout of the chunk, little-endian: version u32, number of runs u32, rows u64; the length of each run u64; the runs. A
run is one or more whole messages. The storage's checksum of the chunk covers all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.checkpoint.errors import CorruptCheckpointError

Side = Literal["in", "out"]

VERSION: Final = 1
CHANNEL: Final = "channel"
"""The beginning of the ids of channels' chunks; no operator has this id."""
BROADCAST: Final = -1
"""The consumer of a broadcast's one copy."""
FORMER: Final = -1
"""The producer of rows that were restored and not read yet, of any task of an earlier plan: read first."""
SIDES: Final[tuple[Side, ...]] = ("in", "out")
_HEAD: Final = struct.Struct("<IIQ")
_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, order=True)
class ChannelKey:
    """One channel of one exchange, seen from one side.

    "in": the consumer's task saved it, arrived and not processed. "out": the producer's, overtaken in its outputs.
    `edge` is what `edge_uid` gives, `producer` and `consumer` are subtasks of the plan that took the checkpoint.
    """

    side: Side
    edge: str
    producer: int
    consumer: int

    @property
    def chunk(self) -> str:
        """The name of its chunk."""
        return f"{CHANNEL}/{self.side}/{self.edge}/{self.producer}/{self.consumer}"

    @classmethod
    def of(cls, chunk: str) -> ChannelKey | None:
        """The channel that a chunk's name says; None for the name of another chunk. An edge may hold slashes."""
        kind, _, rest = chunk.partition("/")
        found, _, rest = rest.partition("/")
        rest, _, consumer = rest.rpartition("/")
        edge, _, producer = rest.rpartition("/")
        side = next((side for side in SIDES if side == found), None)
        if kind != CHANNEL or side is None or not edge:
            return None
        try:
            return cls(side, edge, int(producer), int(consumer))
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class ChannelData:
    """The rows of one channel: runs of whole messages, oldest first, and the number of rows."""

    key: ChannelKey
    runs: list[bytes]
    rows: int

    @property
    def size(self) -> int:
        """Bytes of the messages in all."""
        return sum(map(len, self.runs))


def edge_uid(producer: str, consumer: str, side: int = 0, twin: int = 0) -> str:
    """The name of an exchange in checkpoints, by the uids of its vertices.

    `side` is the consumer's input. `twin` counts exchanges of one side between the same vertices, as a union of a
    stage with itself has.
    """
    return f"{producer}->{consumer}:{side}" + (f":{twin}" if twin else "")


def pack(data: ChannelData) -> bytes:
    """The chunk of a channel."""
    return b"".join([head([len(run) for run in data.runs], data.rows), *data.runs])


def head(lengths: Sequence[int], rows: int) -> bytes:
    """The bytes in front of the runs of a chunk, which have these lengths and so many rows."""
    return b"".join([_HEAD.pack(VERSION, len(lengths), rows), *map(_LENGTH.pack, lengths)])


def unpack(key: ChannelKey, chunk: bytes, where: str = "") -> ChannelData:
    """Inverse of `pack`; raises CorruptCheckpointError, which names the chunk and `where` it lies."""
    name = f"{where}: chunk {key.chunk}" if where else f"chunk {key.chunk}"
    if len(chunk) < _HEAD.size:
        raise CorruptCheckpointError(f"{name} has {len(chunk)} bytes: a channel's state has at least {_HEAD.size}")
    version, count, rows = _HEAD.unpack_from(chunk)
    if version != VERSION:
        raise CorruptCheckpointError(f"{name} has format version {version}: this Penstock reads version {VERSION}")
    start = _HEAD.size + count * _LENGTH.size
    if len(chunk) < start:
        raise CorruptCheckpointError(f"{name} has {len(chunk)} bytes: the lengths of {count} runs end after it")
    lengths = [length for (length,) in _LENGTH.iter_unpack(chunk[_HEAD.size : start])]
    if start + sum(lengths) != len(chunk):
        raise CorruptCheckpointError(f"{name} has {len(chunk)} bytes: {start + sum(lengths)} were written")
    runs = []
    for length in lengths:
        runs.append(chunk[start : start + length])
        start += length
    return ChannelData(key, runs, rows)
