# SPDX-License-Identifier: Apache-2.0
"""Events that travel in-band, in order with the data of a channel, and never cost credit."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.shuffle.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The producer's user code has ended and will send no further rows on this channel.

    `stopped` says that its query was told to stop: the data has not ended, so no operator gives its last rows.
    """

    stopped: bool = False


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The last thing on a channel: what the writer counted for this subpartition.

    `checksum` is the sum modulo 2**64 of the checksums of all batches, so it does not depend on their order.
    """

    rows: int
    bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The end of an epoch of a channel: a barrier, with what the writer counted since the one before.

    `payload` is the barrier, which is opaque here. The sums are those of EndOfPartition. Where the barrier overtook
    rows, `messages` says behind how many of its channel's messages, since the first, the epoch ends.
    """

    payload: bytes
    rows: int
    bytes: int
    checksum: int
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class EpochAhead:
    """Ahead of all rows that wait: the EpochEnd with this payload has arrived. A gate makes it, it never travels."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An opaque event of a higher layer: delivered as it was sent, never interpreted here."""

    payload: bytes


Event = EndOfData | EndOfPartition | EpochEnd | EpochAhead | TaskEvent

_SUMS = struct.Struct("<BQQQ")
_OVERTAKING = struct.Struct("<BQQQQ")


def encode_event(event: Event) -> bytes:
    """Bytes of an event: its number, then its fields, little-endian."""
    if isinstance(event, EndOfPartition):
        return _SUMS.pack(2, event.rows, event.bytes, event.checksum)
    if isinstance(event, EpochEnd) and event.messages is not None:
        return _OVERTAKING.pack(5, event.rows, event.bytes, event.checksum, event.messages) + event.payload
    if isinstance(event, EpochEnd):
        return _SUMS.pack(4, event.rows, event.bytes, event.checksum) + event.payload
    if isinstance(event, EndOfData):
        return b"\x01\x01" if event.stopped else b"\x01"
    if isinstance(event, EpochAhead):
        raise ProtocolError("the announcement of a barrier does not travel: the barrier does")
    return b"\x03" + event.payload


def decode_event(data: bytes) -> Event:
    """Inverse of `encode_event`; raises ProtocolError for anything else."""
    if data in (b"\x01", b"\x01\x01"):
        return EndOfData(stopped=len(data) == 2)
    if data[:1] == b"\x02" and len(data) == _SUMS.size:
        _, rows, size, checksum = _SUMS.unpack(data)
        return EndOfPartition(rows, size, checksum)
    if data[:1] == b"\x04" and len(data) >= _SUMS.size:
        _, rows, size, checksum = _SUMS.unpack_from(data)
        return EpochEnd(data[_SUMS.size :], rows, size, checksum)
    if data[:1] == b"\x05" and len(data) >= _OVERTAKING.size:
        _, rows, size, checksum, messages = _OVERTAKING.unpack_from(data)
        return EpochEnd(data[_OVERTAKING.size :], rows, size, checksum, messages)
    if data[:1] == b"\x03":
        return TaskEvent(data[1:])
    raise ProtocolError(f"an event of {len(data)} bytes starts with {data[:1]!r}: not one of ours")
