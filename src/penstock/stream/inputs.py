# SPDX-License-Identifier: Apache-2.0
"""All gates of a stream task as one input: what is there now, in steps of a size that the caller chooses.

Batches are gathered until a step is full, and cut where they are larger; an event waits until the rows in front of it
were given. Channels are numbered over all gates. Gates take turns. Rows of a restored snapshot come first.

Barriers that overtook rows are given ahead of all that waits (`take_ahead`). From `capture` on the rows in front of
their places are kept for the snapshot; `gather` fetches what stands between, so that the snapshot does not wait for
the rows to be processed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.checkpoint.barriers import CheckpointBarrier, decode
from penstock.checkpoint.channel_state import FORMER, ChannelKey
from penstock.checkpoint.unaligned import ALWAYS, NO_MARK, RowsInFlight
from penstock.shuffle import InputGate, Received
from penstock.shuffle.events import (
    EndOfPartition,
    EpochAhead,
    EpochEnd,
    Event,
    ProducerIs,
    Reattached,
    TaskEvent,
)
from penstock.stream.in_flight import InFlight, SavedChannel, rows_of
from penstock.stream.input_again import InputAgain
from penstock.stream.row_counts import RowCounts, Uncounted
from penstock.stream.watermarks import is_watermark


class StreamInputs:
    """The gates of one task. `edges` names each gate's exchange in checkpoints, `subtask` is the task's number."""

    def __init__(
        self,
        gates: Sequence[InputGate],
        edges: Sequence[str] = (),
        subtask: int = 0,
        counts: RowCounts | None = None,
    ) -> None:
        self._counts = counts or Uncounted()
        self._again: InputAgain | None = None
        self._gates = tuple(gates)
        self._firsts: list[int] = []
        self._keys: list[ChannelKey] = []
        self._schemas: list[pa.Schema] = []
        for number, gate in enumerate(gates):
            descriptor = gate.descriptor
            self._firsts.append(len(self._keys))
            edge = edges[number] if edges else str(descriptor.gate)
            for channel in descriptor.channels:
                self._keys.append(ChannelKey("in", edge, channel.source.partition.index, subtask))
                self._schemas.append(descriptor.schema)
        self._channels = len(self._keys)
        self._taken = [0] * (self._channels + len(self._gates))
        for first, gate in zip(self._firsts, gates, strict=True):
            self._keys.append(replace(self._keys[first], producer=FORMER))
            self._schemas.append(gate.descriptor.schema)
        self._turn = 0
        self._in_flight: RowsInFlight[InFlight, Event] = RowsInFlight(self._channels, former=len(self._gates))
        self._ahead: deque[tuple[int, Event]] = deque()

    @property
    def channels(self) -> int:
        """The number of channels of all gates."""
        return self._channels

    @property
    def of_gates(self) -> tuple[range, ...]:
        """The channels of each gate."""
        widths = (len(gate.descriptor.channels) for gate in self._gates)
        return tuple(range(first, first + width) for first, width in zip(self._firsts, widths, strict=True))

    def read_again(self, again: InputAgain) -> None:
        """Put rows out of producers' logs in front of those that come; ahead of the first look at a gate."""
        self._again = again
        self._taken[: self._channels] = again.positions

    @property
    def reads_again(self) -> bool:
        """True while rows are read out of logs: they may be there at any moment."""
        return self._again is not None and not self._again.is_over

    def keep_up(self) -> None:
        """While rows are read out of logs, take what comes out of the gates: no producer is to wait for that."""
        if self._again is not None and not self._again.is_over:
            while self._again.has_room and self._poll_gates():
                pass

    def restore(self, rows: Mapping[ChannelKey, Sequence[InFlight]]) -> set[ChannelKey]:
        """Begin with these, those of former producers first; returns the channels that are here."""
        found = set()
        for channel in (*range(self._channels, len(self._keys)), *range(self._channels)):
            key = self._keys[channel]
            if key in rows:
                found.add(key)
                for batch in rows[key]:
                    self._in_flight.rows_came(channel, batch)
        return found

    def take(self, rows: int, passed: list[tuple[int, TaskEvent]] | None = None) -> list[pa.RecordBatch]:
        """Rows that are there, not more than so many; empty where there are none ahead of the next event.

        Watermarks go into `passed` where it is given, with their channels, and end no step.
        """
        taken: list[pa.RecordBatch] = []
        left = rows
        while left > 0:
            waiting = self._in_flight.next
            if waiting is None:
                if not self._poll():
                    break
                continue
            if waiting.rows is None:
                event = waiting.event
                if passed is None or not isinstance(event, TaskEvent) or not is_watermark(event.payload):
                    break
                self._in_flight.take()
                passed.append((waiting.channel, event))
                continue
            batch = rows_of(waiting.rows)
            if batch.num_rows > left:
                self._in_flight.keep(batch.slice(left))
                batch = batch.slice(0, left)
            else:
                self._in_flight.take()
            self._taken[waiting.channel] += batch.num_rows
            self._counts.taken(waiting.channel, batch.num_rows)
            taken.append(batch)
            left -= batch.num_rows
        return taken

    @property
    def positions(self) -> dict[str, int]:
        """Numbers of rows that were taken of each channel, by names of chunks; restored ones are not counted."""
        return {key.chunk: rows for key, rows in zip(self._keys[: self._channels], self._taken, strict=False)}

    def take_event(self) -> tuple[int, Event] | None:
        """The event that is next, with its channel; None while rows are ahead of it, or where there is nothing."""
        waiting = self._in_flight.next
        if waiting is None or waiting.event is None:
            return None
        self._in_flight.take()
        if isinstance(waiting.event, ProducerIs):
            self._counts.producer_is(waiting.channel, waiting.event.attempt)
            if self._again is not None and self._again.is_another(waiting.channel, waiting.event):
                self._taken[waiting.channel] = 0
        return waiting.channel, waiting.event

    def take_ahead(self) -> tuple[int, Event] | None:
        """The next of what goes ahead of all rows."""
        for gate, first in zip(self._gates, self._firsts, strict=True):
            while (received := gate.poll_ahead()) is not None:
                self._came(received, first)
        return self._ahead.popleft() if self._ahead else None

    def resume(self, channel: int) -> None:
        """Let a channel go on that a barrier has stopped."""
        for gate, first in zip(reversed(self._gates), reversed(self._firsts), strict=True):
            if channel >= first:
                gate.resume_consumption(channel - first)
                return

    def capture(self, checkpoint: int) -> None:
        """The task's snapshot is taken now: keep the rows in front of the barriers' places."""
        self._in_flight.begin(checkpoint)

    def gather(self) -> bool:
        """Fetch what has come in front of the barriers' places; whether there was any."""
        moved = False
        for gate, first in zip(self._gates, self._firsts, strict=True):
            while wanted := self._missing_of(gate, first):
                received = gate.poll(wanted)
                if received is None:
                    break
                moved = True
                self._came(received, first)
        return moved

    def captured(self) -> list[SavedChannel] | None:
        """The snapshot's rows, when all barriers' places are known; to be asked for once."""
        saved = self._in_flight.saved()
        if saved is None:
            return None
        of_channel: dict[int, list[InFlight]] = {}
        for channel, batch in saved:
            of_channel.setdefault(channel, []).append(batch)
        return [
            SavedChannel(self._keys[channel], self._schemas[channel], rows, channel in self._in_flight.with_barrier)
            for channel, rows in of_channel.items()
        ]

    def drop_capture(self) -> None:
        """The snapshot under way is given up."""
        self._in_flight.drop()

    def _missing_of(self, gate: InputGate, first: int) -> Container[int]:
        count = len(gate.descriptor.channels)
        return {channel - first for channel in self._in_flight.missing if first <= channel < first + count}

    def _poll(self) -> bool:
        """The next thing of any gate; False where there is none, or it goes ahead of all rows."""
        if self._again is None:
            return self._poll_gates()
        if self._again.is_over:
            self._poll_gates()
        else:
            self.keep_up()
        return self._take_again(self._again)

    def _take_again(self, again: InputAgain) -> bool:
        """The next thing that stands in no log, or was read out of one."""
        for channel, rows in again.missing():
            self._taken[channel] += rows
            self._counts.missed(channel, rows)
        found = again.take()
        if found is None:
            return False
        channel, item = found
        if isinstance(item, pa.RecordBatch):
            self._rows_came(channel, item)
        else:
            self._event_came(channel, item)
        return True

    def _poll_gates(self) -> bool:
        """As `_poll`, of what the gates have."""
        for _ in self._gates:
            at = self._turn % len(self._gates)
            self._turn = at + 1
            received = self._gates[at].poll()
            if received is not None:
                return self._came(received, self._firsts[at])
        return False

    def _came(self, received: Received, first: int) -> bool:
        """Put a thing where it belongs; whether that is in order with the rows."""
        channel, event = first + received.channel, received.event
        if isinstance(event, EpochAhead):
            self._ahead.append((channel, event))
            return False
        if self._again is not None:
            if isinstance(event, Reattached):
                self._ahead.append((channel, event))
            self._again.came(channel, received)
        elif received.batch is not None:
            self._rows_came(channel, received.batch)
        elif event is not None:
            self._event_came(channel, event)
        return True

    def _rows_came(self, channel: int, rows: pa.RecordBatch) -> None:
        self._counts.came(channel, rows.num_rows)
        self._in_flight.rows_came(channel, rows)

    def _event_came(self, channel: int, event: Event) -> None:
        self._counts.event_came(channel, event)
        self._in_flight.event_came(channel, event, _mark(event))


def _mark(event: Event) -> int:
    """The checkpoint whose place among the rows an event is."""
    if isinstance(event, EndOfPartition):
        return ALWAYS
    if isinstance(event, EpochEnd):
        barrier = decode(event.payload)
        return barrier.checkpoint if isinstance(barrier, CheckpointBarrier) else NO_MARK
    return NO_MARK
