# SPDX-License-Identifier: Apache-2.0
"""All gates of a stream task as one input: what is there now, in steps of a size that the caller chooses.

Batches are gathered until a step is full, and cut where they are larger; an event waits until the rows in front of it
were given. Channels are numbered over all gates. Gates take turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.shuffle import Received
from penstock.shuffle.events import Event
from penstock.shuffle.streaming import StreamInputGate


class StreamInputs:
    """The gates of one task."""

    def __init__(self, gates: Sequence[StreamInputGate]) -> None:
        self._gates = tuple(gates)
        self._firsts: list[int] = []
        self._channels = 0
        for gate in gates:
            self._firsts.append(self._channels)
            self._channels += len(gate.descriptor.channels)
        self._turn = 0
        self._rest: pa.RecordBatch | None = None
        self._event: tuple[int, Event] | None = None

    @property
    def channels(self) -> int:
        """The number of channels of all gates."""
        return self._channels

    def take(self, rows: int) -> list[pa.RecordBatch]:
        """Rows that are there, not more than so many; empty where there are none ahead of the next event."""
        taken: list[pa.RecordBatch] = []
        left = rows
        while left > 0:
            batch, self._rest = self._rest, None
            if batch is None:
                batch = self._next_batch()
            if batch is None:
                break
            if batch.num_rows > left:
                self._rest = batch.slice(left)
                batch = batch.slice(0, left)
            taken.append(batch)
            left -= batch.num_rows
        return taken

    def take_event(self) -> tuple[int, Event] | None:
        """The event that is next, with its channel; None while rows are ahead of it, or where there is nothing."""
        if self._rest is not None:
            return None
        event, self._event = self._event, None
        return event

    def resume(self, channel: int) -> None:
        """Let a channel go on that a barrier has stopped."""
        for gate, first in zip(reversed(self._gates), reversed(self._firsts), strict=True):
            if channel >= first:
                gate.resume_consumption(channel - first)
                return

    def _next_batch(self) -> pa.RecordBatch | None:
        """The next batch of any gate; None where there is nothing, or an event, which is kept."""
        if self._event is not None:
            return None
        for _ in self._gates:
            at = self._turn % len(self._gates)
            self._turn = at + 1
            received = self._gates[at].poll()
            if received is None:
                continue
            return self._kept(received, self._firsts[at])
        return None

    def _kept(self, received: Received, first: int) -> pa.RecordBatch | None:
        if received.event is not None:
            self._event = (first + received.channel, received.event)
            return None
        return received.batch
