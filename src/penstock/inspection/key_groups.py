# SPDX-License-Identifier: Apache-2.0
"""The spread of a checkpoint's state over its key groups: rows of state are counted by the group of their key.

All of the state is read, a piece at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpoint.metadata import Chunk, PartHandle
from penstock.checkpoint.storage import PartStorage
from penstock.inspection.entries import Entry, operator_of, stage_of
from penstock.record.spark_hash import spark_partition_ids

_KEY = "key."


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """The rows of one operator's state in each key group."""

    rows: npt.NDArray[np.int64]

    @property
    def total(self) -> int:
        """All rows."""
        return int(self.rows.sum())

    @property
    def empty(self) -> int:
        """The number of groups without a row."""
        return int(np.count_nonzero(self.rows == 0))

    @property
    def median(self) -> float:
        """The rows of a group in the middle."""
        return float(np.median(self.rows))

    @property
    def largest(self) -> tuple[int, int]:
        """The group with most rows, and these."""
        group = int(self.rows.argmax())
        return group, int(self.rows[group])


def spreads(entry: Entry) -> dict[tuple[str, str], GroupSpread]:
    """Of each operator with state by key, by stage and operator; raises CheckpointError or OSError."""
    metadata = entry.metadata
    found: dict[tuple[str, str], npt.NDArray[np.int64]] = {}
    if metadata is None or not metadata.max_parallelism:
        return {}
    for name, part in sorted(metadata.parts.items()):
        for chunk, groups in _groups(entry.storage, part, metadata.max_parallelism):
            key = (stage_of(metadata, name), operator_of(chunk.name))
            counted = np.bincount(groups, minlength=metadata.max_parallelism)
            found[key] = found.get(key, 0) + counted
    return {key: GroupSpread(rows) for key, rows in found.items()}


def _groups(storage: PartStorage, part: PartHandle, count: int) -> Iterator[tuple[Chunk, npt.NDArray[np.intp]]]:
    """The groups of the rows of each batch of a part's keyed state."""
    for chunk, (_, data) in zip(part.chunks, storage.read(part), strict=True):
        for batch in _batches(data):
            keys = [
                column
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
                if name.startswith(_KEY)
            ]
            if keys and batch.num_rows:
                yield chunk, spark_partition_ids(keys, count).astype(np.intp)


def _batches(data: bytes) -> list[pa.RecordBatch]:
    """The batches of an Arrow stream; none of other bytes."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            return list(stream)
    except (pa.ArrowException, OSError):
        return []
