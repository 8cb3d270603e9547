# SPDX-License-Identifier: Apache-2.0
"""An Arrow stream in pieces, none of which is a copy of a column.

A stream that is put together first costs a copy of all its rows and as much fresh memory, whose pages the thread that
stores a snapshot would take from the task beside it.
"""

from __future__ import annotations

from typing import IO, cast

import pyarrow as pa


def stream_pieces(table: pa.Table) -> list[bytes | bytearray | memoryview]:
    """The bytes of the table as an Arrow stream; columns are over the table's own memory."""
    sink = _Pieces()
    # Arrow asks no more of a file that it only writes to.
    with pa.PythonFile(cast("IO[bytes]", sink), "w") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return sink.pieces


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
