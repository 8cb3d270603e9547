# SPDX-License-Identifier: Apache-2.0
"""The rows of an epoch by key, of each key the last one; and the column that says of rows which epoch they are of.

Rows are held until the epoch ends: as many as keys have changed in it, and for a while at most as many again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.operators.keys import group_rows
from penstock.record.layout import int64_array, take_batch

_FIRST_BYTES = 32 << 20
"""Rows are first looked through when there are as many bytes of them."""


class LastRows:
    """The rows that were given last, by key."""

    def __init__(self, keys: Sequence[str], first_bytes: int = _FIRST_BYTES) -> None:
        self._keys = tuple(keys)
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._first_bytes = self._most_bytes = first_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, which replace earlier ones of their keys."""
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._most_bytes:
            self._thin()
            self._most_bytes = max(self._first_bytes, 2 * self._bytes)

    def take(self) -> pa.RecordBatch | None:
        """The last row of each key, in the order in which they were given; then there are none."""
        self._thin()
        held, self._held, self._bytes = self._held, [], 0
        self._most_bytes = self._first_bytes
        return held[0] if held else None

    def _thin(self) -> None:
        if not self._held:
            return
        rows = self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held)
        groups = group_rows([rows.column(key) for key in self._keys], rows.num_rows)
        last = np.zeros(groups.count, np.int64)
        last[groups.codes] = np.arange(rows.num_rows)  # of several the last one counts
        if len(last) < rows.num_rows:
            rows = take_batch(rows, int64_array(np.sort(last)))
        self._held, self._bytes = [rows], rows.nbytes


def with_epoch(batch: pa.RecordBatch, schema: pa.Schema, epoch: int) -> pa.RecordBatch:
    """The rows with the number of their epoch, the last column of this schema."""
    column = int64_array(np.full(batch.num_rows, epoch, np.int64))
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)
