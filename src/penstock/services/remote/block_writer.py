# SPDX-License-Identifier: Apache-2.0
"""Gives the rows of few subpartitions to blocks as they come, in no region: nothing is ordered, nothing copied twice.

Rules: each split's rows of a subpartition are a message, which goes to the block that its file has open. So held are
at most `subpartitions` blocks, and those that are not pushed yet. It is used as a `RegionWriter` is.

When not to use it: many subpartitions. Their open blocks would need more memory than a region.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.partition.extents import BROADCAST
from penstock.partition.file_output import FileOptions
from penstock.partition.sort_buffer import BLOCK_BYTES as MESSAGE_BYTES
from penstock.remote.blocks import BLOCK_BYTES
from penstock.services.remote.block_sink import BlockSink
from penstock.shuffle import EndOfPartition
from penstock.shuffle.splits import Split


class BlockWriter:
    """Writes one partition. Life: any number of writes, then `finish`, or `abort`."""

    holds_batches = False
    """No: rows are encoded as they are written."""

    def __init__(
        self, sink: BlockSink, name: str, schema: pa.Schema, subpartitions: int, options: FileOptions
    ) -> None:
        self.gather_bytes = min(options.sort_buffer, subpartitions * MESSAGE_BYTES)
        """The number of bytes that are best split at once: so each subpartition gets long messages."""
        self._sink = sink
        self._name = name
        self._schema = schema
        self._subpartitions = subpartitions
        self._payloads = PayloadFormat(schema, options.compression)

    @staticmethod
    def fits(subpartitions: int, options: FileOptions) -> bool:
        """Tell whether so many open blocks take no more than half the memory of a region."""
        return 2 * subpartitions * BLOCK_BYTES <= options.sort_buffer

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Add a batch to one subpartition. ValueError for one of another schema, or a number that is none."""
        self._check(batch, subpartition, subpartition)
        self._append(subpartition, batch)
        self._sink.give()

    def write_split(self, split: Split) -> None:
        """Add what one split gives each subpartition. Errors as of `write`."""
        if len(split):
            self._check(split.source, int(split.numbers.min()), int(split.numbers.max()))
        for subpartition, batch in split:
            self._append(subpartition, batch)
        self._sink.give()

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Add a batch to all subpartitions. Errors as of `write`."""
        self._check(batch, 0, 0)
        self._append(BROADCAST if self._subpartitions > 1 else 0, batch)
        self._sink.give()

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Give out what is held; returns what each subpartition holds. ValueError if it is over."""
        self._check_open()
        self._sink.end()
        return self._sink.finish()

    def abort(self) -> None:
        """Give out no more; idempotent."""
        self._sink.abort()

    def _check_open(self) -> None:
        if not self._sink.is_open:
            raise ValueError(f"{self._name} is finished or given up")

    def _check(self, batch: pa.RecordBatch, lowest: int, highest: int) -> None:
        self._check_open()
        if lowest < 0 or highest >= self._subpartitions:
            raise ValueError(f"there is no subpartition {lowest if lowest < 0 else highest} in {self._name}")
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"the batch's schema is not that of {self._name}: {batch.schema} instead of {self._schema}"
            )

    def _append(self, target: int, batch: pa.RecordBatch) -> None:
        self._sink.append(target, batch.num_rows, memoryview(self._payloads.encode(batch)))
