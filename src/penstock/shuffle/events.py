# SPDX-License-Identifier: Apache-2.0
"""Events that travel in-band, in order with the data of a channel, and never cost credit."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.shuffle.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The producer's user code has ended and will send no further rows on this channel."""


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The last thing on a channel: what the writer counted for this subpartition.

    `checksum` is the sum modulo 2**64 of the checksums of all batches, so it does not depend on their order.
    """

    rows: int
    bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An opaque event of a higher layer (a barrier, later): delivered in order, never interpreted here."""

    payload: bytes


Event = EndOfData | EndOfPartition | TaskEvent

_END_OF_PARTITION = struct.Struct("<BQQQ")


def encode_event(event: Event) -> bytes:
    """Bytes of an event: its number, then its fields, little-endian."""
    if isinstance(event, EndOfPartition):
        return _END_OF_PARTITION.pack(2, event.rows, event.bytes, event.checksum)
    if isinstance(event, EndOfData):
        return b"\x01"
    return b"\x03" + event.payload


def decode_event(data: bytes) -> Event:
    """Inverse of `encode_event`; raises ProtocolError for anything else."""
    if data == b"\x01":
        return EndOfData()
    if data[:1] == b"\x02" and len(data) == _END_OF_PARTITION.size:
        _, rows, size, checksum = _END_OF_PARTITION.unpack(data)
        return EndOfPartition(rows, size, checksum)
    if data[:1] == b"\x03":
        return TaskEvent(data[1:])
    raise ProtocolError(f"an event of {len(data)} bytes starts with {data[:1]!r}: not one of ours")
