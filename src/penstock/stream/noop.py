# SPDX-License-Identifier: Apache-2.0
"""The sink that takes all rows and keeps none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class NoopSink:
    """For measurements, and for queries whose functions do the writing."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "noop"

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> NoopWriter:
        """The writer of one subtask."""
        return NoopWriter()


class NoopWriter:
    """Holds nothing."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Drop the rows."""

    def prepare(self, checkpoint: int) -> bytes:
        """Nothing to publish."""
        return b""

    def commit(self, checkpoint: int) -> None:
        """Nothing to publish."""

    def close(self) -> None:
        """Nothing to give back."""
