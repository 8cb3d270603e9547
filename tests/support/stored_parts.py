# SPDX-License-Identifier: Apache-2.0
"""Reads ranges of a stored partition as a gate does: index, extents, messages, batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from penstock.partition.extent_reader import ExtentReader
from penstock.partition.extents import StoredPiece
from penstock.partition.file_input import FileOrigin
from penstock.partition.index import read_index
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler
from penstock.shuffle import EndOfPartition


class Range:
    """`count` subpartitions from `first` on; `end` has the sums of what was read."""

    def __init__(self, folder: Path, origin: FileOrigin, schema: pa.Schema, first: int, count: int = 1) -> None:
        self._folder = str(folder)
        self._origin = origin
        self._codec = BatchCodec(schema)
        self._counter = CompletenessCounter()
        self.pieces: list[StoredPiece] = read_index(self._folder, first, count, origin)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches, each over the memory that the reader gave out."""
        self._counter = CompletenessCounter()
        assembler = MessageAssembler(self._codec, self._counter)
        for view in self.views():
            yield from assembler.feed(view, is_kept=True)
        assembler.finish()

    def views(self) -> Iterator[memoryview]:
        """The record stream, in the pieces in which it is read."""
        with ExtentReader(self._folder, self._origin) as reader:
            yield from reader.read(self.pieces)

    def messages(self) -> list[memoryview]:
        """The messages of the record stream; for extents that hold whole ones."""
        found = []
        for view in self.views():
            position = 0
            while position < len(view):
                length = int.from_bytes(view[position : position + 8], "little")
                end = position + 16 + length + -length % 8
                found.append(view[position:end])
                position = end
        return found

    @property
    def end(self) -> EndOfPartition:
        """The sums of what `batches` gave."""
        return self._counter.end_of_partition()
