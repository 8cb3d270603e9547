# SPDX-License-Identifier: Apache-2.0
"""Rows on their way into the store of a blocking partition, whichever service has it.

If slices of a column drag others' rows along, rows are stored part by part, each holding on to no more memory than it
needs (`record/layout.py:compact`): a writer that sorts holds many of them.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from penstock.record.layout import compact, contains, is_loose
from penstock.shuffle import Intake, ResultPartitionDescriptor
from penstock.shuffle.splits import Split

_INTAKE_ROWS = 1 << 20


class RowSink(Protocol):
    """A store that is open, such as the files that `penstock.partition` writes."""

    @property
    def gather_bytes(self) -> int:
        """The number of bytes that are best split at once."""

    @property
    def holds_batches(self) -> bool:
        """True if a split's batches are kept as they are."""

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to a subpartition."""

    def write_split(self, split: Split) -> None:
        """Append what one split gives each subpartition."""

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions."""


class RowsForStore:
    """The rows of one partition."""

    def __init__(self, descriptor: ResultPartitionDescriptor) -> None:
        self._broadcasts = descriptor.partition.broadcast
        self._loose = {at for at, field in enumerate(descriptor.schema) if contains(field.type, is_loose)}
        """The columns whose slices drag others' rows along."""

    def intake(self, sink: RowSink) -> Intake:
        """The rows that this store takes best."""
        return Intake(sink.gather_bytes, _INTAKE_ROWS, sink.holds_batches or self._broadcasts)

    def append(self, sink: RowSink, split: Split) -> None:
        """Append all rows of a split."""
        if split.is_for_all:
            sink.broadcast(self._compacted(split.source))
        elif not self._loose:
            sink.write_split(split)
        else:
            for subpartition, batch in split:
                sink.write(self._compacted(batch), subpartition)

    def _compacted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._loose:
            return batch
        columns = [compact(column) if at in self._loose else column for at, column in enumerate(batch.columns)]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
