# SPDX-License-Identifier: Apache-2.0
"""Streams of rows that are already in memory, for tests and for trying things without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.errors import SettingError


@dataclass(frozen=True, slots=True)
class BatchesSource:
    """Each subtask reads the shares whose number it has, modulo the parallelism."""

    shares: tuple[tuple[pa.RecordBatch, ...], ...]

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"batches in {len(self.shares)} partitions"

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """The batches of this subtask."""
        for share in self.shares[subtask::parallelism]:
            yield from share


def fromBatches(rows: Sequence[pa.RecordBatch] | pa.Table, partitions: int = 1, spark: Any = None) -> Stream:
    """A stream of these batches, dealt out to `partitions` source subtasks at most; a table gives its schema."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else list(rows)
    if not batches and not isinstance(rows, pa.Table):
        raise SettingError("fromBatches needs at least one batch, or a table, to know the schema")
    schema = rows.schema if isinstance(rows, pa.Table) else batches[0].schema
    source = BatchesSource(tuple(tuple(batches[number::partitions]) for number in range(partitions)))
    return Stream((SourceStep(source.name, schema, source, limit=partitions),), spark)
