# SPDX-License-Identifier: Apache-2.0
"""Rows of a second stream that come to all tasks of a processor, through the exchange of the first one.

Both streams become one before the exchange: rows of the first have a further column that is null, a batch of the
second is one row, whose bytes stand in that column. The exchange gives rows by their keys, and those with bytes to
all (`PartitionerSpec.to_all`). So barriers and watermarks of both go the one way, and a row costs four bytes more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.graph import INTERNAL
from penstock.record.layout import int64_array, valid_mask
from penstock.stream.steps import BatchStep

MARK: Final = f"{INTERNAL}to_all"


def marked_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of both streams' rows: that of the first one, all of it nullable, and the mark."""
    fields = [field.with_nullable(True) for field in schema]
    return pa.schema([*fields, pa.field(MARK, pa.binary())])


@dataclass(frozen=True, slots=True)
class BesideShared:
    """Rows of the first stream."""

    schema: pa.Schema
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "beside a stream to all"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, without a mark."""
        schema = marked_schema(self.schema)
        for batch in batches:
            mark = pa.nulls(batch.num_rows, pa.binary())
            yield pa.RecordBatch.from_arrays([*batch.columns, mark], schema=schema)

    def step(self) -> BatchStep:
        """The step of one subtask."""
        return BatchStep(self)


@dataclass(frozen=True, slots=True)
class ToAll:
    """Rows of the second stream; `schema` is that of the first."""

    schema: pa.Schema
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "to all"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each batch as one row."""
        schema = marked_schema(self.schema)
        nulls = [pa.nulls(1, field.type) for field in self.schema]
        for batch in batches:
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays([*nulls, pa.array([_packed(batch)], pa.binary())], schema=schema)

    def step(self) -> BatchStep:
        """The step of one subtask."""
        return BatchStep(self)


def parts(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[tuple[bool, pa.RecordBatch]]:
    """The rows of both streams in their order: whose they are (True: the second's), and batches as they were."""
    marks = batch.column(MARK)
    if marks.null_count == batch.num_rows:
        yield False, _plain(batch, schema)
        return
    start = 0
    for at in np.flatnonzero(valid_mask(marks)).tolist():
        if at > start:
            yield False, _plain(batch.slice(start, at - start), schema)
        yield from ((True, each) for each in pa.ipc.open_stream(marks[at].as_buffer()))
        start = at + 1
    if start < batch.num_rows:
        yield False, _plain(batch.slice(start), schema)


def _plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def shared_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows of a bounded input, those of the second stream first; the others are held until these have come."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        marked = valid_mask(batch.column(MARK))
        if marked.any():
            yield batch.take(int64_array(np.flatnonzero(marked)))
            batch = batch.take(int64_array(np.flatnonzero(~marked)))  # noqa: PLW2901 - the rest of it
        held.append(batch)
    yield from (batch for batch in held if batch.num_rows)
