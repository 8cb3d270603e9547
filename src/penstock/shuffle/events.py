# SPDX-License-Identifier: Apache-2.0
"""Events that travel in-band, in order with the data of a channel, and never cost credit."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The producer's user code has ended and will send no further rows on this channel.

    `stopped` says that its query was told to stop: the data has not ended, so no operator gives its last rows.
    `goes_on`: the query goes on at once, with other numbers of tasks, so its run does not end either.
    """

    stopped: bool = False
    goes_on: bool = False


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
    """The end of an epoch of a channel: a barrier, with what the writer had counted when it sent it.

    `payload` is the barrier, which is opaque here. The sums are those of EndOfPartition, since the channel's first
    message. `messages` is the epoch's place: it ends after so many of the channel's messages. An end that `overtakes`
    may come ahead of its place and of older ends; any other comes right there.
    """

    payload: bytes
    rows: int
    bytes: int
    checksum: int
    messages: int
    overtakes: bool = False


@dataclass(frozen=True, slots=True)
class EpochAhead:
    """Ahead of all rows that wait: the EpochEnd with this payload has arrived. A gate makes it, it never travels."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An opaque event of a higher layer: delivered as it was sent, never interpreted here."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class ProducerIs:
    """The rows that follow on a channel are of this attempt of its producer; those before were an earlier one's.

    An environment says it to its gates, of partitions whose readers and producers may begin anew alone.
    """

    attempt: int


@dataclass(frozen=True, slots=True)
class Reattached:
    """The reader has come to a subpartition in its middle: rows that were sent before are lost.

    Its sums go on from the beginning, so the next end of an epoch says how many that were. `payload` is the barrier
    of the last epoch that had ended, which this reader does not get any more; empty if none had.
    """

    payload: bytes = b""


Event = EndOfData | EndOfPartition | EpochEnd | EpochAhead | ProducerIs | Reattached | TaskEvent

_SUMS = struct.Struct("<BQQQ")
_EPOCH = struct.Struct("<BQQQQ")
_PRODUCER = struct.Struct("<Bq")
_ENDS = (b"\x01", b"\x01\x01", b"\x01\x02")
"""The ends of data: as such, of a query that was stopped, and of one that goes on."""


def encode_event(event: Event) -> bytes:
    """Bytes of an event: its number, then its fields, little-endian."""
    if isinstance(event, EndOfPartition):
        return _SUMS.pack(2, event.rows, event.bytes, event.checksum)
    if isinstance(event, EpochEnd):
        kind = 5 if event.overtakes else 4
        return _EPOCH.pack(kind, event.rows, event.bytes, event.checksum, event.messages) + event.payload
    if isinstance(event, EndOfData):
        return _ENDS[event.stopped + (event.stopped and event.goes_on)]
    if isinstance(event, ProducerIs):
        return _PRODUCER.pack(7, event.attempt)
    if isinstance(event, Reattached):
        return b"\x06" + event.payload
    if isinstance(event, EpochAhead):
        raise ProtocolError("the announcement of a barrier does not travel: the barrier does")
    return b"\x03" + event.payload


def is_closing(data: bytes) -> bool:
    """Tell whether these are the bytes of an event that ends a channel's data, or the channel."""
    return data[:1] in (b"\x01", b"\x02")


def barrier_of(data: bytes) -> bytes:
    """The barrier of the bytes of an EpochEnd; empty for other events."""
    return data[_EPOCH.size :] if data[:1] in (b"\x04", b"\x05") else b""


def decode_event(data: bytes) -> Event:
    """Inverse of `encode_event`; raises ProtocolError for anything else."""
    if data in _ENDS:
        return EndOfData(stopped=data != _ENDS[0], goes_on=data == _ENDS[2])
    if data[:1] == b"\x02" and len(data) == _SUMS.size:
        _, rows, size, checksum = _SUMS.unpack(data)
        return EndOfPartition(rows, size, checksum)
    if data[:1] in (b"\x04", b"\x05") and len(data) >= _EPOCH.size:
        kind, rows, size, checksum, messages = _EPOCH.unpack_from(data)
        return EpochEnd(data[_EPOCH.size :], rows, size, checksum, messages, kind == 5)
    if data[:1] == b"\x06":
        return Reattached(data[1:])
    if data[:1] == b"\x07" and len(data) == _PRODUCER.size:
        return ProducerIs(_PRODUCER.unpack(data)[1])
    if data[:1] == b"\x03":
        return TaskEvent(data[1:])
    raise ProtocolError(f"an event of {len(data)} bytes starts with {data[:1]!r}: not one of ours")
