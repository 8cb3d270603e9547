# SPDX-License-Identifier: Apache-2.0
"""Reads ranges of rows out of the logs of a task's producers, on a thread of its own while the task goes on.

A producer ends its file when it sends the end of an epoch, so a range may be asked for before its file is there: the
reader looks again. Rows that are not there in time were lost with a file; they are left out, and counted.

Read rows that the task has not taken are at most `AHEAD_BYTES` and a piece.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelKey, unpack
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.checkpoint.log_files import LogName
from penstock.checkpoint.log_index import pieces_of_log
from penstock.checkpoint.metadata import Chunk, PartHandle
from penstock.checkpoint.storage import PartStorage
from penstock.stream.in_flight import restored, rows_of

AHEAD_BYTES: Final = 16 << 20
WAIT_SECONDS: Final = 30.0
"""A file that is not there after so long was lost."""
LOOK_SECONDS: Final = 0.02
_JOIN_SECONDS: Final = 1.0


@dataclass(eq=False, slots=True)
class LogRows:
    """One range that is read: `task` is the producer's part, `key` the channel, `first` to `last` its rows."""

    task: str
    attempt: int
    key: ChannelKey
    schema: pa.Schema
    first: int
    last: int
    found: deque[pa.RecordBatch] = field(default_factory=deque)
    missing: int = 0
    """Rows that no file has; to be read when `is_ended`."""
    is_ended: bool = False
    """True if no more is found."""


class LogReader:
    """The reader of one task: `location` and `owner` are those of the query's checkpoints."""

    def __init__(self, location: str, owner: str, wait: float = WAIT_SECONDS) -> None:
        self._location = location
        self._owner = owner
        self._wait = wait
        self._wanted: deque[LogRows] = deque()
        self._changed = threading.Condition()
        self._ahead = 0
        self._is_closed = False
        self._storage: PartStorage | None = None
        self._pieces: dict[LogName, list[Chunk]] = {}
        self._thread: threading.Thread | None = None

    def read(self, rows: LogRows) -> None:
        """Read a range after those that were asked for before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-read-log", daemon=True)
            self._thread.start()
        with self._changed:
            self._wanted.append(rows)
            self._changed.notify()

    def take(self, rows: LogRows) -> pa.RecordBatch | None:
        """The next rows of a range; None where there are none yet, or no more."""
        with self._changed:
            if not rows.found:
                return None
            batch = rows.found.popleft()
            self._ahead -= batch.nbytes
            self._changed.notify()
            return batch

    def close(self) -> None:
        """Read no more; idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._wanted)
                if self._is_closed:
                    return
                rows = self._wanted.popleft()
            reached = rows.first
            for batch in self._read(rows):
                reached += batch.num_rows
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or self._ahead < AHEAD_BYTES)
                    rows.found.append(batch)
                    self._ahead += batch.nbytes
            with self._changed:
                rows.missing, rows.is_ended = rows.last - reached, True

    def _read(self, rows: LogRows) -> Iterator[pa.RecordBatch]:
        """The batches of a range in order, without those that are not there in time."""
        wanted, until = rows.first, time.monotonic() + self._wait
        while wanted < rows.last and not self._is_closed:
            is_late = time.monotonic() >= until
            piece = self._next(rows, wanted, is_late=is_late)
            batches = None if piece is None else self._batches(rows, piece)
            if piece is None or batches is None:
                if piece is not None and is_late:
                    wanted = piece.first + piece.rows
                elif is_late:
                    return
                else:
                    time.sleep(LOOK_SECONDS)
                continue
            at = piece.first
            for batch in batches:
                begin, end = max(wanted - at, 0), min(rows.last - at, batch.num_rows)
                if begin < end:
                    yield batch.slice(begin, end - begin)
                at += batch.num_rows
            wanted = piece.first + piece.rows

    def _next(self, rows: LogRows, reached: int, *, is_late: bool) -> Chunk | None:
        """The piece with the row `reached`, or, where it is late, the first one behind it."""
        found = self._known(rows, reached)
        if found is None or (found.first > reached and not is_late):
            with suppress(OSError, CheckpointError):  # the location may be away: the next look tells
                self._look(rows)
            found = self._known(rows, reached)
        return found if found is not None and (found.first <= reached or is_late) else None

    def _known(self, rows: LogRows, reached: int) -> Chunk | None:
        pieces = [
            piece
            for name, found in self._pieces.items()
            if name.task == rows.task and name.attempt == rows.attempt
            for piece in found
            if piece.name == rows.key.chunk and piece.first + piece.rows > reached and piece.first < rows.last
        ]
        return min(pieces, key=_first, default=None)

    def _look(self, rows: LogRows) -> None:
        """Read the lists of files that were not looked at."""
        if self._storage is None:
            self._storage = PartStorage(self._location)
        for name in self._storage.logs(self._owner, rows.task):
            if name not in self._pieces and name.attempt == rows.attempt:
                with suppress(CorruptCheckpointError, FileNotFoundError):  # it is being written, or was removed
                    self._pieces[name] = pieces_of_log(self._storage.place, name)

    def _batches(self, rows: LogRows, piece: Chunk) -> list[pa.RecordBatch] | None:
        """The rows of a piece; None where it can't be read now."""
        assert self._storage is not None  # noqa: S101 - the piece was found in it
        try:
            ((_, data),) = self._storage.read(PartHandle("", 0, (piece,)))
            return [rows_of(each) for each in restored(piece, unpack(rows.key, data, piece.file), rows.schema)]
        except (OSError, CheckpointError):
            return None


def _first(piece: Chunk) -> int:
    return piece.first
