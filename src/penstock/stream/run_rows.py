# SPDX-License-Identifier: Apache-2.0
"""Runs of rows that never change: how they are joined as more come, and rows out of several of them.

Rows are numbered through all runs.

Arrow's `take` of a chunked array joins all chunks first: five rows of a million took 15 ms, and 7 us out of one run,
and all others are copied into memory. Here each run gives its own rows, and they are put in order behind that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.record.layout import int64_array
from penstock.stream.state_place import settled

MOST_JOINED: Final = 32 << 20
"""Bytes of a run that is not joined with others: Arrow joins in memory, also where the state lies in files."""
GATHERED_SLOTS: Final = 1 << 18
"""The rows of so many slots, at most, are gathered at once."""


def add_run(runs: list[pa.RecordBatch], rows: pa.RecordBatch) -> None:
    """Add a run behind all others; those of similar size are joined, so that there are few."""
    runs.append(settled(rows))
    while len(runs) > 1 and runs[-2].num_rows < 2 * runs[-1].num_rows and is_joined(runs[-2].nbytes, runs[-1].nbytes):
        last, before = runs.pop(), runs.pop()
        runs.append(settled(pa.concat_batches([before, last])))


def is_joined(*sizes: int) -> bool:
    """Tell whether runs of so many bytes may be joined."""
    return sum(sizes) <= MOST_JOINED


def taken_rows(runs: Sequence[pa.RecordBatch], schema: pa.Schema, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The rows at these places of batches."""
    columns = taken([run.columns for run in runs], [run.num_rows for run in runs], schema.types, rows)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def taken_of(column: pa.Array | pa.ChunkedArray, rows: npt.NDArray[np.int64]) -> pa.Array:
    """The values at these rows of one column."""
    runs = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    (found,) = taken([[run] for run in runs], [len(run) for run in runs], [column.type], rows)
    return found


def taken(
    runs: Sequence[Sequence[pa.Array]],
    lengths: Sequence[int],
    kinds: Sequence[pa.DataType],
    rows: npt.NDArray[np.int64],
) -> list[pa.Array]:
    """The columns of these rows. `kinds` are the columns' types, `lengths` the numbers of rows of the runs."""
    if len(runs) == 1:
        at = int64_array(np.ascontiguousarray(rows))
        return [column.take(at) for column in runs[0]]
    if not len(rows):
        return [pa.nulls(0, kind) for kind in kinds]
    ends = np.cumsum(lengths)
    numbers = np.searchsorted(ends, rows, "right").astype(np.uint16)
    order = np.argsort(numbers, kind="stable")
    parts: list[list[pa.Array]] = []
    start = 0
    for number, count in enumerate(np.bincount(numbers, minlength=len(runs)).tolist()):
        if count:
            own = rows[order[start : start + count]] - (ends[number] - lengths[number])
            at = int64_array(np.ascontiguousarray(own))
            parts.append([column.take(at) for column in runs[number]])
            start += count
    if len(parts) == 1:
        return parts[0]
    places = np.empty(len(rows), np.int64)
    places[order] = np.arange(len(rows))
    at = int64_array(places)
    return [pa.concat_arrays(columns).take(at) for columns in zip(*parts, strict=True)]
