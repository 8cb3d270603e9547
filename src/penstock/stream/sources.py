# SPDX-License-Identifier: Apache-2.0
"""What a source of a streaming query is: a factory that travels, and one reader for each subtask of its vertex.

A reader gives what there is and never waits; between two calls it stands at a position that `snapshot` writes down
and from which a reader of a later attempt goes on. It must then give the same rows again: a source that can't is not
exactly once, whatever else is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa


class SourceReader(Protocol):
    """One subtask's share of a source. All calls are those of the task's thread."""

    @property
    def is_ended(self) -> bool:
        """Whether `poll` will give no more, now or later."""

    @property
    def wake_at(self) -> float | None:
        """The moment of the monotonic clock from which `poll` may give something; None: when it is asked."""

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """Up to so many rows, or None where there is nothing now; never waits."""

    def snapshot(self) -> bytes:
        """The position: behind all rows that were given."""

    def close(self) -> None:
        """Give back what the reader holds; idempotent."""


class StreamSource(Protocol):
    """A source before it is opened; picklable."""

    @property
    def name(self) -> str:
        """What `explain` shows."""

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""

    def splits(self) -> int | None:
        """How many subtasks can have a share at most; None: any number."""

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> SourceReader:
        """A subtask's reader.

        `restored` is empty, or holds this subtask's snapshot, or those of all subtasks where their number changed.
        """


def read_whole(reader: SourceReader, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    """All rows of a reader that never has to wait, in batches of so many rows at most."""
    try:
        while not reader.is_ended:
            batch = reader.poll(rows)
            if batch is not None:
                yield batch
    finally:
        reader.close()
