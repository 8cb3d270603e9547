# SPDX-License-Identifier: Apache-2.0
"""The ways in which rows in flight get into a task's snapshots: written then, or logged as they are given out.

`AtCheckpoint` writes what a barrier has overtaken, and what waits in the inputs. `Continuous` has a log to which all
rows of the outputs go; its snapshots hold positions, and what no log has: rows that were restored and not read yet,
and those of producers that had finished (see `checkpoint.logged_rows`). `ForReaders` has such a log too, and no row
in a snapshot: a reader that begins anew alone finds its rows in the log's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelKey
from penstock.stream.in_flight import SavedChannel
from penstock.stream.row_log import LogCut, RowLog


class Persisting(Protocol):
    """One way."""

    needs_overtaken: bool
    """True if snapshots hold the rows that their barriers overtake in the outputs."""
    settles_all: bool
    """True if any snapshot, not just one whose barrier overtakes rows, may hold rows in flight."""

    @property
    def has_room(self) -> bool:
        """True if the task may give out more rows."""

    def dealt_out(self, key: ChannelKey, rows: pa.RecordBatch) -> None:
        """Keep rows that were given to a channel, as far as this way needs them."""

    def incoming(self, captured: Sequence[SavedChannel]) -> Sequence[SavedChannel]:
        """The rows that wait in the inputs and that a snapshot holds."""

    def cut(self, checkpoint: int, taken: Mapping[str, int]) -> LogCut | None:
        """A snapshot is taken now; `taken` are the positions of the inputs."""

    def completed(self, checkpoint: int) -> None:
        """A checkpoint is complete."""

    def close(self) -> None:
        """Give back what is held; idempotent."""


class AtCheckpoint:
    """Rows in flight are written while the checkpoint is taken."""

    needs_overtaken = True
    settles_all = False
    has_room = True

    def dealt_out(self, key: ChannelKey, rows: pa.RecordBatch) -> None:
        """Nothing yet."""

    def incoming(self, captured: Sequence[SavedChannel]) -> Sequence[SavedChannel]:
        """All of it."""
        return captured

    def cut(self, checkpoint: int, taken: Mapping[str, int]) -> None:
        """There is no log."""

    def completed(self, checkpoint: int) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to give back."""


class Continuous:
    """Rows are written as they are given out. `logs_inputs`: the tasks in front log theirs for this one."""

    needs_overtaken = False
    settles_all = True

    def __init__(self, log: RowLog, *, logs_inputs: bool) -> None:
        self._log = log
        self._logs_inputs = logs_inputs

    @property
    def has_room(self) -> bool:
        """True if the log keeps up."""
        return self._log.has_room

    def dealt_out(self, key: ChannelKey, rows: pa.RecordBatch) -> None:
        """They go to the log."""
        self._log.append(key, rows)

    def incoming(self, captured: Sequence[SavedChannel]) -> Sequence[SavedChannel]:
        """The rows that are in no log: a producer that takes part in the checkpoint says itself which it gave."""
        return [channel for channel in captured if not channel.has_barrier]

    def cut(self, checkpoint: int, taken: Mapping[str, int]) -> LogCut:
        """The positions of this moment, and the log up to it."""
        return self._log.cut(checkpoint, taken if self._logs_inputs else {})

    def completed(self, checkpoint: int) -> None:
        """The pieces of this checkpoint need not be told of again."""
        self._log.completed(checkpoint)

    def close(self) -> None:
        """End the log."""
        self._log.close()


class ForReaders(Continuous):
    """Rows are written as they are given out, for readers that begin anew alone; barriers overtake none of them."""

    settles_all = False

    def __init__(self, log: RowLog) -> None:
        super().__init__(log, logs_inputs=True)

    def incoming(self, captured: Sequence[SavedChannel]) -> Sequence[SavedChannel]:
        """None: a snapshot holds no rows."""
        return []

    def cut(self, checkpoint: int, taken: Mapping[str, int]) -> LogCut:
        """The positions of the inputs; the snapshot is not stored before the log's file is ended."""
        return replace(super().cut(checkpoint, taken), positions=taken, has_pieces=False)
