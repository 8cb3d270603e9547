# SPDX-License-Identifier: Apache-2.0
"""An Arrow stream in pieces, none of which is a copy of a column.

A stream that is put together first costs a copy of all its rows and as much fresh memory, whose pages the thread that
stores a snapshot would take from the task beside it.

State of any size is written and read in bounded memory: a stream has about `PIECE_BYTES`, and its rows are read some
at a time, because those who take them need memory for each, such as for tables of their keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Final, cast

import pyarrow as pa

PIECE_BYTES: Final = 16 << 20
"""About so many bytes are in one piece: it is made in memory, and read back into memory, as a whole."""
READ_ROWS: Final = 1 << 16
"""So many rows are read at once. To give a slot to a new key takes up to 400 bytes of memory for a moment."""


def rows_of_piece(width: float, most: int) -> int:
    """The number of rows of one piece, where each has so many bytes; `most` at most."""
    return max(1, min(most, int(PIECE_BYTES // max(1.0, width))))


def width_of(columns: Sequence[pa.Array | pa.ChunkedArray | pa.RecordBatch], rows: int) -> float:
    """The bytes that each of so many rows has in these columns, on average."""
    return float(sum(column.nbytes for column in columns)) / max(1, rows)


def stream_pieces(table: pa.Table) -> list[bytes | bytearray | memoryview]:
    """The bytes of the table as an Arrow stream; columns are over the table's own memory."""
    sink = _Pieces()
    # Arrow asks no more of a file that it only writes to.
    with pa.PythonFile(cast("IO[bytes]", sink), "w") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return sink.pieces


def rows_of_stream(data: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of such a stream, `READ_ROWS` at a time, over its bytes."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        for batch in stream:
            for start in range(0, batch.num_rows, READ_ROWS):
                yield batch.slice(start, READ_ROWS)


class _Pieces:
    """Keeps what is written to it: Arrow gives the buffers of columns as they are, and copies what is small."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | pa.Buffer) -> int:
        """Keep it."""
        piece = memoryview(data)
        self.pieces.append(piece)
        return piece.nbytes

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held but the pieces."""
        self.closed = True
