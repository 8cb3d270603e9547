# SPDX-License-Identifier: Apache-2.0
"""The log of the rows that a task gives to its channels, written by a thread of its own while the task goes on.

The task counts the rows of each channel, and hands them over. Rows that were handed over and are not written are
bounded: above `MOST_WAITING` bytes the task takes no input.

If a file is lost (`log_writer`), the snapshot is declined with the reason, and so is, by the driver, each later one
in which some of its rows are in flight.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.log_files import LogName
from penstock.checkpoint.metadata import PartHandle
from penstock.stream.log_writer import GATHERED_BYTES, CutPieces, LogWriter

MOST_WAITING: Final = 2 * GATHERED_BYTES
"""With so many bytes that are not written the log has no room. Gathered rows are among them, and wait for more: a
bound that they alone could reach would stop the task for ever."""
JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LogCut:
    """The log at a snapshot: the positions of all channels, and the pieces after checkpoint `since` when written."""

    positions: Mapping[str, int]
    since: int
    written: Future[CutPieces]
    has_pieces: bool = True
    """False if the part tells only positions: a reader that needs the rows finds them in the files."""

    def added_to(self, handle: PartHandle) -> PartHandle:
        """A part with these pieces; waits until they are written, and raises why they can't be."""
        pieces = self.written.result().pieces if self.has_pieces else []
        chunks = (*handle.chunks, *pieces)
        return replace(handle, chunks=chunks, positions=self.positions, since=self.since if self.has_pieces else 0)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The task's word that a snapshot is taken."""

    checkpoint: int
    answer: LogCut


_Word = tuple[ChannelKey, pa.RecordBatch, int] | _Cut | None


class RowLog:
    """The log of one attempt of a task. `name` is that of its first file; all rows have one schema."""

    def __init__(self, location: str, name: LogName, schema: pa.Schema) -> None:
        self._positions: dict[str, int] = {}
        self._names: dict[ChannelKey, str] = {}
        self._given = 0
        self._cuts: set[int] = set()
        self._since = 0
        self._is_closed = False
        self._writer = LogWriter(location, name, schema)
        """The thread's alone, but for reading how much is written."""
        self._queue: queue.SimpleQueue[_Word] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"penstock-log-{name.task}", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """True if less than the bound is not written yet."""
        return self._given - self._writer.written < MOST_WAITING

    def append(self, key: ChannelKey, rows: pa.RecordBatch) -> None:
        """Append rows that were given to a channel."""
        name = self._names.setdefault(key, key.chunk)
        self._positions[name] = self._positions.get(name, 0) + rows.num_rows
        size = rows.nbytes
        self._given += size
        self._queue.put((key, rows, size))

    def cut(self, checkpoint: int, taken: Mapping[str, int]) -> LogCut:
        """Take a snapshot now, after all rows that were appended; `taken` are positions to go with them."""
        answer = LogCut({**self._positions, **taken}, self._since, Future())
        self._cuts.add(checkpoint)
        self._queue.put(_Cut(checkpoint, answer))
        return answer

    def completed(self, checkpoint: int) -> None:
        """A checkpoint is complete: of what was in front of it the driver knows."""
        if checkpoint in self._cuts:
            self._since = checkpoint
            self._cuts = {each for each in self._cuts if each > checkpoint}

    def close(self, seconds: float = JOIN_SECONDS) -> None:
        """Write no more; idempotent. A caller that waits for a snapshot's pieces gets CheckpointError.

        A write that is under way gets so many seconds.
        """
        self._is_closed = True
        self._queue.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (word := self._queue.get()) is not None:
            if isinstance(word, _Cut):
                self._answer(word)
            elif not self._is_closed:
                self._writer.gather(*word)
        self._writer.close()

    def _answer(self, cut: _Cut) -> None:
        written = cut.answer.written
        if self._is_closed:
            written.set_exception(CheckpointError("the task has ended"))
            return
        try:
            written.set_result(self._writer.cut(cut.checkpoint, cut.answer.since))
        except Exception as error:  # noqa: BLE001 - the snapshot is declined, the task goes on
            written.set_exception(error)
