# SPDX-License-Identifier: Apache-2.0
"""The Python functions that run in the tasks, the same ones on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.graph import Source

COUNT_DDL = "rows long"
MEAN_DDL = "k long, mean double"

Batches = Iterator[pa.RecordBatch]


def count_rows(batches: Batches) -> Batches:
    """One row: how many there were."""
    total = sum(batch.num_rows for batch in batches)
    count = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(np.array([total], np.int64))])
    yield pa.RecordBatch.from_arrays([count], names=["rows"])


def group_mean(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
    """The mean of a column."""
    return pa.table([pa.repeat(key[0], 1), pa.repeat(pc.mean(table["x"]), 1)], names=["k", "mean"])


def reader(source: Source, parallelism: int) -> Callable[[Batches], Batches]:
    """A Penstock source as a function for Spark's `mapInArrow` over `range(parallelism)`, one row a partition."""

    def read(batches: Batches) -> Batches:
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        for number in numbers:
            yield from source.read(number, parallelism)

    return read
