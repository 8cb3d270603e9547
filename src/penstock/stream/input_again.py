# SPDX-License-Identifier: Apache-2.0
"""The input of a task that has begun anew alone, out of its producers' logs and out of its gates, in order.

It joins the core that says which ranges of logs are wanted (`channels_again`) and the thread that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelKey
from penstock.shuffle import Received
from penstock.shuffle.events import Event, ProducerIs
from penstock.stream.channels_again import ChannelsAgain, LoggedRange
from penstock.stream.log_reader import LogReader, LogRows

MOST_WAITING: Final = 64 << 20
"""With so many bytes of rows that wait behind rows of logs, these too are read out of the logs."""


@dataclass(frozen=True, slots=True)
class LoggedChannel:
    """One channel: the producer's part in checkpoints, its name in the producer's log, and the schema of its rows.

    The task goes on behind `position` rows of the producer's `attempt`.
    """

    task: str
    key: ChannelKey
    schema: pa.Schema
    attempt: int
    position: int


class InputAgain:
    """The input of one task that reads it again."""

    def __init__(self, channels: Sequence[LoggedChannel], reader: LogReader, most: int = MOST_WAITING) -> None:
        self._channels = tuple(channels)
        self._reader = reader
        self._most = most
        self._core: ChannelsAgain[pa.RecordBatch] = ChannelsAgain(
            [(channel.attempt, channel.position) for channel in channels], most
        )
        self._reading: dict[LoggedRange, LogRows] = {}
        self._attempts = [channel.attempt for channel in channels]
        self._missing: list[tuple[int, int]] = []

    @property
    def positions(self) -> list[int]:
        """Those of the channels at the beginning, in rows."""
        return [channel.position for channel in self._channels]

    @property
    def is_over(self) -> bool:
        """True if nothing waits, in front of which rows of a log would stand."""
        return self._core.is_over

    @property
    def has_room(self) -> bool:
        """True if more may wait."""
        return self._core.waiting <= self._most

    def is_another(self, channel: int, event: ProducerIs) -> bool:
        """Tell, as the event is taken, whether it names another producer of the channel than the last one did."""
        before, self._attempts[channel] = self._attempts[channel], event.attempt
        return before != event.attempt

    def came(self, channel: int, received: Received) -> None:
        """Rows or an event have come on a channel."""
        if received.batch is not None:
            self._core.rows_came(channel, received.batch, received.batch.num_rows, received.batch.nbytes)
        elif received.event is not None:
            self._core.event_came(channel, received.event)

    def take(self) -> tuple[int, pa.RecordBatch | Event] | None:
        """The next thing to be handled, with its channel; None where there is none yet."""
        for wanted in self._core.wanted():
            if wanted not in self._reading:
                self._reading[wanted] = rows = self._rows_of(wanted)
                self._reader.read(rows)
        found = self._core.take(self._next_of)
        self._end_ranges()
        return found

    def missing(self) -> list[tuple[int, int]]:
        """Rows that no log has: the channels, and how many, since this was asked last."""
        found, self._missing = self._missing, []
        return found

    def close(self) -> None:
        """Read no more; idempotent."""
        self._reader.close()

    def _next_of(self, wanted: LoggedRange) -> pa.RecordBatch | None:
        return self._reader.take(self._reading[wanted])

    def _end_ranges(self) -> None:
        for wanted, rows in list(self._reading.items()):
            if rows.is_ended and not rows.found:
                del self._reading[wanted]
                self._core.range_ended(wanted)
                if rows.missing:
                    self._missing.append((wanted.channel, rows.missing))

    def _rows_of(self, wanted: LoggedRange) -> LogRows:
        assert wanted.last is not None  # noqa: S101 - the core wants none without an end
        channel = self._channels[wanted.channel]
        return LogRows(channel.task, wanted.attempt, channel.key, channel.schema, wanted.first, wanted.last)
