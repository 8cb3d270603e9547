# SPDX-License-Identifier: Apache-2.0
"""Stages that give rows until they are stopped, and say when they were closed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from penstock.testing import DEADLINE
from session_probe import mark

Batches = Iterator[pa.RecordBatch]
Stage = Callable[[Batches], Batches]

BATCH_ROWS = 1000


def without_end(folder: str, name: str = "producer", key: int | None = None) -> Stage:
    """Rows (id, from) without an end, all with one id or each with its own; marks `NAME-began` and `NAME-closed`."""

    def stage(batches: Batches) -> Batches:
        sources = [value for batch in batches for value in batch.column(0).to_pylist()]
        mark(f"{folder}/{name}-began")
        end = time.monotonic() + DEADLINE
        try:
            for number in itertools.count():
                if time.monotonic() > end:
                    raise TimeoutError("nobody stopped this stage")
                first = number * BATCH_ROWS
                ids = [key] * BATCH_ROWS if key is not None else list(range(first, first + BATCH_ROWS))
                yield pa.record_batch({"id": ids, "source": [min(sources, default=-1)] * BATCH_ROWS})
        finally:
            mark(f"{folder}/{name}-closed")

    return stage
