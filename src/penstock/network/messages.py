# SPDX-License-Identifier: Apache-2.0
"""Messages: what the two ends of a data connection say to each other. `frames` has how it looks in bytes.

Each says in its first word who sends it. All are frozen values; a receiver is the number that the client gave to a
channel, unique within its connection. Error codes map one to one to the typed errors that a reader may be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from penstock.errors import (
    IncompleteDataError,
    PartitionError,
    PartitionExpiredError,
    PartitionLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
    ProtocolError,
    StaleError,
)
from penstock.shuffle.ids import PartitionId


class ErrorCode(IntEnum):
    """Why a partition cannot be read; one code for each typed error."""

    INTERNAL = 0
    NOT_PRODUCED = 1
    RELEASED = 2
    EXPIRED = 3
    LOST = 4
    PRODUCER_FAILED = 5
    STALE = 6
    PROTOCOL = 7
    INCOMPLETE = 8


_ERRORS: Final[dict[ErrorCode, type[PenstockError]]] = {
    ErrorCode.NOT_PRODUCED: PartitionNotProducedError,
    ErrorCode.RELEASED: PartitionReleasedError,
    ErrorCode.EXPIRED: PartitionExpiredError,
    ErrorCode.LOST: PartitionLostError,
    ErrorCode.PRODUCER_FAILED: ProducerFailedError,
    ErrorCode.STALE: StaleError,
    ErrorCode.PROTOCOL: ProtocolError,
    ErrorCode.INCOMPLETE: IncompleteDataError,
}


def error_to_code(error: BaseException) -> ErrorCode:
    """The code for an error; an OSError means that the partition's file is gone."""
    for code, kind in _ERRORS.items():
        if isinstance(error, kind):
            return code
    return ErrorCode.LOST if isinstance(error, OSError) else ErrorCode.INTERNAL


def code_to_error(code: ErrorCode, text: str) -> PenstockError:
    """The typed error for a code."""
    return _ERRORS.get(code, PartitionError)(text)


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """Client: send me these subpartitions (both ends inclusive); I have `credit` buffers ready.

    `flow` is the number of the flow control of this connection: 0 is credit.
    """

    receiver: int
    partition: PartitionId
    first: int
    last: int
    credit: int
    flow: int = 0


@dataclass(frozen=True, slots=True)
class BufferHeader:
    """The head of a BUFFER_RESPONSE.

    Only data costs credit and lands in a segment; data types above the known ones are ordinary events.
    """

    receiver: int
    subpartition: int
    sequence: int
    backlog: int
    data_type: int
    checksum: int
    length: int


@dataclass(frozen=True, slots=True)
class BufferResponse:
    """Server: one buffer or event. `payload` is None where the decoder was told to skip it."""

    header: BufferHeader
    payload: memoryview | bytes | None


@dataclass(frozen=True, slots=True)
class BacklogAnnouncement:
    """Server: so many data buffers wait and there is no credit for them."""

    receiver: int
    backlog: int


@dataclass(frozen=True, slots=True)
class AddCredit:
    """Client: so many further buffers are ready."""

    receiver: int
    credit: int


@dataclass(frozen=True, slots=True)
class ResumeConsumption:
    """Client: the alignment is over, go on."""

    receiver: int


@dataclass(frozen=True, slots=True)
class CancelPartitionRequest:
    """Client: the channel is released; stop, and let go of the view."""

    receiver: int


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """Client: this connection is not used any more."""


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Server: one receiver's partition cannot be read, or (receiver None) the connection failed."""

    receiver: int | None
    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Client: a sign of life, please."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Server: the sign of life, with the token that was asked with."""

    token: int


Message = (
    PartitionRequest
    | BufferResponse
    | BacklogAnnouncement
    | AddCredit
    | ResumeConsumption
    | CancelPartitionRequest
    | CloseRequest
    | ErrorResponse
    | Ping
    | Pong
)
