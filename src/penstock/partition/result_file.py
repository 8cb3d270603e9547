# SPDX-License-Identifier: Apache-2.0
"""The simplest blocking partition: one file per subpartition, read in any order, any number of times.

Rules:

- A file under its own name is complete (`file_output`); every byte of it is covered by a checksum, by zeroes that
  must be zeroes, or by counts. A flipped bit or a cut is an IncompleteDataError naming partition, attempt, host and
  file.
- A batch is written when it comes, as a block of its own; nothing is held back. Read through a memory map, batches
  lie over the map where they are not compressed.
- Batches keep their order.

When not to use it: many producers times many consumers. Each writer then holds as many open files as there are
subpartitions and writes blocks as small as the batches it gets; `sort_merge_writer` holds two and makes larger ones.
`docs/file-formats.md` describes the format.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.partition.file_blocks import Block, BlockOutput, message_of, read_batch, read_block
from penstock.partition.file_header import FileHeader, pack_footer, pack_header, read_footer, read_header
from penstock.partition.file_input import FileInput, FileOrigin
from penstock.partition.file_output import FileOptions, FileOutput
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.sums import Sums

MAGIC = b"PENSTOCK"
FOOTER = struct.Struct("<QQQQ")
"""Batches, rows, bytes of payload, sum of the batches' checksums modulo 2**64."""

_PLAIN = FileOptions()


@dataclass(frozen=True, slots=True)
class ResultFileSummary:
    """The content of a file. `bytes` are those of the payloads as stored; `checksum` does not depend on the order."""

    rows: int
    bytes: int
    checksum: int
    batches: int


class ResultFileWriter:
    """Writes one file. Life: any number of `write`, then `finish`; `abort` instead leaves nothing behind."""

    __slots__ = ("_batches", "_blocks", "_file", "_schema", "_sums", "path")

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: pa.Schema,
        partition: PartitionId,
        options: FileOptions = _PLAIN,
    ) -> None:
        self.path = Path(path)
        payloads = PayloadFormat(schema, options.compression)
        header = FileHeader(partition, schema, 1, options.compression, payloads.self_contained)
        self._schema = schema
        self._sums = Sums()
        self._batches = 0
        self._file = FileOutput(self.path, partition, options.reserve)
        self._file.append([pack_header(MAGIC, header)])
        self._blocks = BlockOutput(self._file, payloads)

    @property
    def is_open(self) -> bool:
        """True if it can be written to."""
        return self._file.is_open

    @property
    def bytes_on_disk(self) -> int:
        """The bytes that the file takes so far."""
        return self._file.size

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch. PenstockError, with the file removed, when it can't be stored."""
        self._check_open()
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"the batch's schema is not that of {self.path}: {batch.schema} instead of {self._schema}"
            )
        length, checksum = self._blocks.append(batch, self._batches)
        self._blocks.flush()
        self._sums.add(batch.num_rows, length, checksum)
        self._batches += 1

    def finish(self) -> ResultFileSummary:
        """Write the footer and give the file its name."""
        self._check_open()
        sums = self._sums
        footer = FOOTER.pack(self._batches, sums.rows, sums.nbytes, sums.checksum)
        self._file.append([pack_footer(footer, MAGIC)])
        self._file.publish()
        return ResultFileSummary(sums.rows, sums.nbytes, sums.checksum, self._batches)

    def abort(self) -> None:
        """Give up: the temporary file goes; idempotent, and without effect after `finish`."""
        self._file.abort()

    def _check_open(self) -> None:
        if not self._file.is_open:
            raise ValueError(f"the result file {self.path} is finished or given up")

    def __enter__(self) -> ResultFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class ResultFileReader:
    """Reads one file: iterate for its batches, as often as needed. They lie over the file's memory map.

    Raises PartitionLostError where there is no file, IncompleteDataError where it is not what was written.
    """

    __slots__ = ("_file", "_first", "_last", "_payloads", "path", "schema", "summary")

    def __init__(self, path: str | os.PathLike[str], where: FileOrigin) -> None:
        self.path = Path(path)
        self._file = FileInput(self.path, where)
        (batches, rows, size, checksum), self._last = read_footer(self._file, FOOTER, MAGIC)
        self.summary = ResultFileSummary(rows, size, checksum, batches)
        header, self._first = read_header(self._file, MAGIC)
        if header.schema is None or self._first > self._last:
            raise self._file.incomplete("its header leaves no place for its footer, or has no schema")
        self.schema: pa.Schema = header.schema
        self._payloads = PayloadFormat(header.schema, header.compression)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for block in self._blocks():
            yield read_batch(self._file, block, self._payloads)

    def messages(self) -> Iterator[memoryview]:
        """The batches as messages of the record stream (length, checksum, payload, padding), each checked.

        They lie over the file's map.
        """
        for block in self._blocks():
            yield message_of(self._file, block)

    def _blocks(self) -> Iterator[Block]:
        """Every block, checked; at the end the counts must be the footer's."""
        sums = Sums()
        position = self._first
        for number in range(self.summary.batches):
            block = read_block(self._file, position, self._last, number)
            sums.add(block.rows, block.payload.size, block.checksum)
            yield block
            position = block.end
        found = ResultFileSummary(sums.rows, sums.nbytes, sums.checksum, self.summary.batches)
        if found != self.summary or position != self._last:
            raise self._file.incomplete(f"it holds {found}, its footer says {self.summary}")

    def close(self) -> None:
        """Let go of the map; idempotent. It goes with the last batch that lies over it."""
        self._file.close()

    def __enter__(self) -> ResultFileReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
