# SPDX-License-Identifier: Apache-2.0
"""One channel of a gate: puts a writer's blocks together to batches, and compares the sums at its end. Pure.

Blocks of a file may come twice, from a worker that was thought to have failed and from the one in its place: the
second is dropped. They may come before those with smaller numbers, from another worker: they wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.buffer.arrow import PayloadFormat
from penstock.errors import IncompleteDataError
from penstock.partition.sort_buffer import joined
from penstock.plugin.partition_errors import about
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler
from penstock.remote.blocks import BlockHead
from penstock.shuffle import ChannelDescriptor, EndOfData, EndOfPartition, Received
from penstock.shuffle.sums import Sums

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 128 << 10
"""Batches are joined up to this many bytes: with many subpartitions messages are small."""


class _FileRows:
    """One file's blocks of one writer."""

    __slots__ = ("assembler", "early", "next")

    def __init__(self, assembler: MessageAssembler) -> None:
        self.assembler = assembler
        self.next = 0
        self.early: dict[int, memoryview] = {}


class ChannelRows:
    """One channel's rows, each `times` times."""

    def __init__(self, number: int, wanted: ChannelDescriptor, schema: pa.Schema, times: int) -> None:
        self.number = number
        self.wanted = wanted
        self._times = times
        self._codec = BatchCodec(schema)
        self._size = PayloadFormat(schema).size
        self._sums = CompletenessCounter()
        self._files: dict[int, _FileRows] = {}

    def batches(self, head: BlockHead, data: memoryview) -> Iterator[Received]:
        """The batches that a block completes; it was checked, and its memory stays."""
        found = self._batches(head, data)
        for batch in joined(found, _BATCH_BYTES):
            for _ in range(self._times):
                yield Received(self.number, batch)

    def end(self, expected: Iterable[EndOfPartition], where: str) -> Iterator[Received]:
        """All has come that workers have; IncompleteDataError where that is not what was written."""
        sums = Sums()
        for each in expected:
            sums.add(each.rows, each.bytes, each.checksum)
        for file, rows in self._files.items():
            rows.assembler.finish()
            if rows.early:
                raise self._incomplete(f"block {rows.next} of file {file} is missing at {where}")
        wanted, found = sums.end_of_partition(), self._sums.end_of_partition()
        if wanted != found:
            raise self._incomplete(f"{found} came from {where}, {wanted} was written")
        total = Sums()
        for _ in range(self._times):
            total.add(wanted.rows, wanted.bytes, wanted.checksum)
        yield Received(self.number, event=EndOfData())
        yield Received(self.number, event=total.end_of_partition())

    def _batches(self, head: BlockHead, data: memoryview) -> Iterator[tuple[pa.RecordBatch, int]]:
        rows = self._files.get(head.file)
        if rows is None:
            rows = self._files[head.file] = _FileRows(MessageAssembler(self._codec, self._sums))
        if head.number < rows.next:
            return
        rows.early[head.number] = data
        while (following := rows.early.pop(rows.next, None)) is not None:
            rows.next += 1
            for batch in rows.assembler.feed(following, is_kept=True):
                yield batch, self._size(batch)

    def _incomplete(self, what: str) -> IncompleteDataError:
        partition = self.wanted.source.partition
        return about(partition, IncompleteDataError(f"partition {partition}: {what}; it must be produced again"))
