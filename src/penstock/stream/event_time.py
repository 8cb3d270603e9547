# SPDX-License-Identifier: Apache-2.0
"""Event time of one streaming task, between its inputs, its chain and its outputs.

Watermarks of the inputs move the chain when they come. A chain with a step that makes its own is asked for it each
`interval` seconds, because each watermark is an event on every channel. The outputs are told the watermark of the
chain's end behind all rows in front of it; later than that is never wrong, so a barrier that overtakes rows overtakes
it too, and rows that come next need not wait for it.

A run that ends moves it one last time, when all rows in front of its end have come: what they have closed comes out
in that run. In one that reads what is available this is the only time.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.shuffle.events import TaskEvent
from penstock.shuffle.metrics import WATERMARK
from penstock.stream.chain import EVENT_TIME, Chain, Chunk, State
from penstock.stream.watermark import MOST, least_stored
from penstock.stream.watermarks import EventTimeProgress, InputWatermarks, decode_progress, encode_progress

_CHUNK = f"{EVENT_TIME}/watermark"


class EventTime:
    """One task's. `restored` are the states that the task begins with.

    `inputs` are the channels of each input, `is_bounded` tells whether the run reads what is available.
    """

    def __init__(
        self,
        chain: Chain,
        channels: int,
        interval: float = 0.2,
        restored: Sequence[State] = (),
        inputs: Sequence[range] = (),
        *,
        is_bounded: bool = True,
    ) -> None:
        self._chain = chain
        self._interval = interval
        first = least_stored(state.get(_CHUNK) for state in restored)
        self._inputs = InputWatermarks(channels, first, inputs, is_bounded=is_bounded)
        self._reached = self._told = EventTimeProgress()
        self._due_at: float | None = None if first.is_none and not chain.makes_time else 0.0

    @property
    def due_at(self) -> float | None:
        """The moment at which the chain is to be moved although no event has come; None: there is none."""
        return self._due_at

    def is_overdue(self, now: float) -> bool:
        """Tell whether it was to be moved an interval ago."""
        return self._due_at is not None and now >= self._due_at + self._interval

    def came(self, channel: int, event: TaskEvent) -> bool | None:
        """An event of a channel: tell whether the chain is to be moved, None where it is no watermark."""
        progress = decode_progress(event.payload)
        return None if progress is None else self._inputs.came(channel, progress)

    def data_ended(self, channel: int, *, stopped: bool) -> bool:
        """No rows come on a channel any more: tell whether the chain is to be moved."""
        return self._inputs.data_ended(channel, stopped=stopped)

    def move(self, now: float, waited: float) -> list[pa.RecordBatch]:
        """Move the chain to where the inputs are; the rows that this gives.

        `waited` are the seconds in which the task has waited for rows since its begin.
        """
        if self._due_at is not None:
            self._due_at = now + self._interval if self._chain.makes_time else None
        batches, self._reached = self._chain.advance(self._inputs.progress, waited)
        return batches

    def end_run(self, waited: float, *, has_all: bool) -> list[pa.RecordBatch]:
        """No rows come any more in this run, and the data goes on in the next one: the rows that this gives.

        `has_all`: all that was to be read has come; else event time stays where it was, if it waits for that.
        """
        self._due_at = None
        held = self._chain.end_epoch()
        if has_all:
            self._chain.end_run()
        batches, self._reached = self._chain.advance(self._inputs.progress, waited)
        return held + batches

    def end(self, waited: float) -> list[pa.RecordBatch]:
        """The data has ended: all times pass, behind what the steps held back; the rows that this gives."""
        self._due_at = None
        held = self._chain.end_epoch()
        batches, progress = self._chain.advance(EventTimeProgress(MOST), waited)
        self._reached = self._told = progress  # the end of the data says it to all consumers
        return held + batches

    def rows_come(self) -> TaskEvent | None:
        """The event that goes ahead of rows where the consumers were told that there are none."""
        if not self._told.is_idle:
            return None
        self._told = EventTimeProgress(self._told.watermark)
        return TaskEvent(encode_progress(self._told))

    def take_event(self) -> TaskEvent | None:
        """The event that the consumers are to be told behind all rows, where there is a new one."""
        if self._reached == self._told:
            return None
        self._told = self._reached
        return TaskEvent(encode_progress(self._told))

    def figures(self) -> dict[str, float]:
        """The event time here, in seconds since 1970, where it is known."""
        found = self._reached if self._chain.makes_time else self._inputs.progress
        seconds = found.watermark.unix_seconds
        return {} if seconds is None else {WATERMARK: seconds}

    def snapshot(self) -> list[Chunk]:
        """The watermark in front of the chain, where there was one."""
        watermark = self._inputs.progress.watermark
        if watermark.is_none:
            return []
        stored = watermark.stored
        return [(_CHUNK, lambda: stored)]
