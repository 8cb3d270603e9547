# SPDX-License-Identifier: Apache-2.0
"""The messages of a checkpoint through the data plane: barriers, and markers that cancel one.

Both are in-band events of every channel. A barrier divides a channel's rows into those whose effects a checkpoint
holds and those that come after it. `Alignment` says how the reader treats it. The coordinator chooses it, and only a
barrier that may time out changes on its way: it becomes unaligned.

Layout, little-endian: kind u8, alignment u8, two zero bytes, checkpoint u64, trigger time in microseconds u64,
timeout in microseconds i64 (-1: none). A marker has kind 2, three zero bytes, and the checkpoint.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from penstock.errors import ProtocolError

_BARRIER: Final = struct.Struct("<BBxxQQq")
_MARKER: Final = struct.Struct("<BxxxQ")
_MICROSECONDS: Final = 1_000_000


class Alignment(IntEnum):
    """The ways in which a barrier passes a task's input."""

    AT_LEAST_ONCE = 0
    """Count it, never block."""
    ALIGNED = 1
    """Block its channel, at the sender, until all channels have theirs."""
    UNALIGNED = 2
    """Overtake what is queued, which becomes part of the snapshot."""
    FORCED_ALIGNED = 3
    """Aligned because this edge can't be otherwise; after it the barrier is unaligned again."""


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """One barrier. `triggered` is the coordinator's clock in seconds; `timeout` as long as it may stay aligned."""

    checkpoint: int
    triggered: float
    alignment: Alignment = Alignment.ALIGNED
    timeout: float | None = None

    @property
    def blocks_sender(self) -> bool:
        """True if its channel stands still behind it until the reader resumes it."""
        return self.alignment in (Alignment.ALIGNED, Alignment.FORCED_ALIGNED)

    @property
    def may_time_out(self) -> bool:
        """True if it is aligned now and turns unaligned when `timeout` has passed."""
        return self.alignment is Alignment.ALIGNED and self.timeout is not None

    @property
    def overtakes_outputs(self) -> bool:
        """True if the task that receives it sends it ahead of its rows, over edges that allow that."""
        return self.alignment in (Alignment.UNALIGNED, Alignment.FORCED_ALIGNED)


@dataclass(frozen=True, slots=True)
class CancelCheckpointMarker:
    """No barrier of this checkpoint follows on this channel: the task in front of it took no snapshot."""

    checkpoint: int


CheckpointEvent = CheckpointBarrier | CancelCheckpointMarker


def encode(event: CheckpointEvent) -> bytes:
    """The payload of the event that carries it."""
    if isinstance(event, CancelCheckpointMarker):
        return _MARKER.pack(2, event.checkpoint)
    timeout = -1 if event.timeout is None else round(event.timeout * _MICROSECONDS)
    triggered = round(event.triggered * _MICROSECONDS)
    return _BARRIER.pack(1, event.alignment, event.checkpoint, triggered, timeout)


def decode(payload: bytes) -> CheckpointEvent:
    """Inverse of `encode`; raises ProtocolError for anything else."""
    try:
        if payload[0] == 2:
            return CancelCheckpointMarker(_MARKER.unpack(payload)[1])
        kind, alignment, checkpoint, triggered, timeout = _BARRIER.unpack(payload)
        if kind == 1:
            patience = None if timeout < 0 else timeout / _MICROSECONDS
            return CheckpointBarrier(checkpoint, triggered / _MICROSECONDS, Alignment(alignment), patience)
    except (struct.error, ValueError, IndexError) as error:
        raise ProtocolError(f"a checkpoint event of {len(payload)} bytes can't be read: {error}") from error
    raise ProtocolError(f"a checkpoint event of kind {payload[0]}: not one of ours")
