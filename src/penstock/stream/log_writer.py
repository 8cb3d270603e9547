# SPDX-License-Identifier: Apache-2.0
"""The work of the thread of a log of rows: it gathers them by channel, writes pieces, and ends files.

A file is ended at each snapshot, as a file of an object store is there when it is ended, and when it is large. At its
end stands the list of its pieces (`checkpoint.log_index`). A file that can't be written is lost with its rows: the
next snapshot gets the reason, and later rows go to a new file.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.checkpoint import log_index
from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.log_files import LogName
from penstock.checkpoint.metadata import Chunk
from penstock.checkpoint.storage import PartFile, PartStorage, append
from penstock.stream.in_flight import PIECE_BYTES, piece_of

GATHERED_BYTES: Final = 8 << 20
"""With so many bytes gathered all channels' are written, however few each has."""
FILE_BYTES: Final = 64 << 20
"""A file that is no smaller is ended."""
MOST_PIECES: Final = 20_000
"""A snapshot tells of so many pieces, the newest: a message holds them, however long no checkpoint was complete. They
hold more rows than can be in flight; where they do not, the driver says so."""


@dataclass(slots=True)
class _Gathered:
    """Rows of one channel that are not written; `first` is the number of the first of them."""

    first: int
    rows: list[pa.RecordBatch]
    count: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class CutPieces:
    """The log at a snapshot: the pieces after checkpoint `since`, and the bytes written since the last snapshot."""

    pieces: list[Chunk]
    size: int


class LogWriter:
    """Writes the files of one log. `name` is that of the first; all rows have one schema."""

    def __init__(self, location: str, name: LogName, schema: pa.Schema) -> None:
        self._location = location
        self._name = name
        self._schema = schema
        self.written = 0
        """Bytes of the rows that wait no more: written, or lost."""
        self._gathered: dict[ChannelKey, _Gathered] = {}
        self._gathered_bytes = 0
        self._counted: dict[ChannelKey, int] = {}
        self._storage: PartStorage | None = None
        self._file: PartFile | None = None
        self._open_pieces: list[Chunk] = []
        """The pieces of the file that is not ended,"""
        self._pieces: deque[Chunk] = deque(maxlen=MOST_PIECES)
        """and of ended ones, as far back as snapshots tell of them."""
        self._ended = 0
        """The number of pieces that ended files have had in all,"""
        self._ended_at: dict[int, int] = {}
        """and in front of each snapshot."""
        self._failure: Exception | None = None
        self._size = 0

    def gather(self, key: ChannelKey, rows: pa.RecordBatch, size: int) -> None:
        """Take rows of a channel; `size` is what `written` counts for them."""
        found = self._gathered.get(key)
        if found is None:
            found = self._gathered[key] = _Gathered(self._counted.get(key, 0), [])
        found.rows.append(rows)
        found.count += rows.num_rows
        found.size += size
        self._counted[key] = found.first + found.count
        self._gathered_bytes += size
        if found.size >= PIECE_BYTES:
            self._write(key)
        elif self._gathered_bytes >= GATHERED_BYTES:
            self._write_all()

    def cut(self, checkpoint: int, since: int) -> CutPieces:
        """Write all that there is and end the file: a snapshot is taken. Pieces in front of `since` are forgotten.

        Raises the reason if rows after the last snapshot could not be written.
        """
        self._write_all()
        try:
            self._end_file()
        except Exception as error:  # noqa: BLE001 - as where a piece can't be written
            self._lost(error)
        self._name = replace(self._name, behind=checkpoint)
        self._ended_at[checkpoint] = self._ended
        self._forget(since)
        size, self._size = self._size, 0
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return CutPieces(list(self._pieces), size)

    def close(self) -> None:
        """End the file as it is."""
        if self._file is not None:
            with suppress(Exception):
                self._file.give_up()

    def _forget(self, since: int) -> None:
        """The driver knows of the pieces in front of a snapshot."""
        known = self._ended_at.get(since, 0)
        while self._ended - len(self._pieces) < known:
            self._pieces.popleft()
        self._ended_at = {number: ended for number, ended in self._ended_at.items() if number >= since}

    def _write_all(self) -> None:
        for key in list(self._gathered):
            self._write(key)

    def _write(self, key: ChannelKey) -> None:
        """Write what was gathered of a channel as a piece."""
        gathered = self._gathered.pop(key)
        try:
            if self._file is None:
                self._file = self._opened()
            chunk = append(self._file, key.chunk, piece_of(self._schema, gathered.rows))
            found = replace(chunk, file=self._file.path, first=gathered.first, rows=gathered.count)
            self._open_pieces.append(found)
            self._size += chunk.length
            if self._file.size >= FILE_BYTES:
                self._end_file()
        except Exception as error:  # noqa: BLE001 - the next snapshot is declined, the task goes on
            self._lost(error)
        self._gathered_bytes -= gathered.size
        self.written += gathered.size

    def _opened(self) -> PartFile:
        if self._storage is None:
            self._storage = PartStorage(self._location)
        name, self._name = self._name, replace(self._name, number=self._name.number + 1)
        return self._storage.open_log(name)

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.write(log_index.packed(self._open_pieces))
            file.close()
            self._pieces += self._open_pieces
            self._ended += len(self._open_pieces)
            self._open_pieces = []

    def _lost(self, error: Exception) -> None:
        """The file can't be written."""
        self._failure = error
        self._open_pieces = []
        file, self._file = self._file, None
        if file is not None:
            with suppress(Exception):
                file.give_up()
