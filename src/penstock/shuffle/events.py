# SPDX-License-Identifier: Apache-2.0
"""Events that travel in-band, in order with the data of a channel, and never cost credit."""

from __future__ import annotations

from dataclasses import dataclass


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
