# SPDX-License-Identifier: Apache-2.0
"""When rows reach the end of a query, to the batch: its sink notes the moment and the rows of each, and drops them.

A query's own reports are too coarse for what lasts less than a second: its tasks report twice a second.
"""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_ENTRY = "<dd"
_SUFFIX = ".rows"


@dataclass(frozen=True, slots=True)
class NotingSink:
    """Notes rows into files of `folder`, one for each task."""

    folder: str

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "rows noted"

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> NotingWriter:
        """One subtask's."""
        return NotingWriter(Path(self.folder))


class NotingWriter:
    """Holds a file."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}-{uuid.uuid4().hex}{_SUFFIX}").open("wb", buffering=0)

    def write(self, batch: pa.RecordBatch) -> None:
        """Note it: the clock is the same for all processes of a machine."""
        self._file.write(struct.pack(_ENTRY, time.monotonic(), batch.num_rows))

    def prepare(self, checkpoint: int) -> bytes:
        """Nothing to publish."""
        return b""

    def commit(self, checkpoint: int) -> None:
        """Nothing to publish."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class NotedRows:
    """All rows that were noted in a folder."""

    def __init__(self, folder: Path) -> None:
        parts = [np.frombuffer(path.read_bytes(), np.float64).reshape(-1, 2) for path in folder.glob(f"*{_SUFFIX}")]
        entries = np.concatenate(parts) if parts else np.zeros((0, 2))
        entries = entries[np.argsort(entries[:, 0], kind="stable")]
        self._moments: npt.NDArray[np.float64] = entries[:, 0]
        self._sums = np.concatenate([[0.0], np.cumsum(entries[:, 1])])

    def rate(self, began: float, ended: float) -> float:
        """Rows in a second between two moments of `time.monotonic`."""
        first, last = np.searchsorted(self._moments, (began, ended))
        return float(self._sums[last] - self._sums[first]) / (ended - began)

    def worst_second(self, began: float, ended: float) -> float:
        """The least rows of the seconds from `began` on of which some lies before `ended`."""
        seconds = max(1, int(np.ceil(ended - began)))
        return min(self.rate(began + number, began + number + 1) for number in range(seconds))

    def usual_second(self, began: float, ended: float) -> float:
        """The middle one of the whole seconds between two moments, of which there is one at least."""
        return float(
            np.median([self.rate(began + number, began + number + 1) for number in range(int(ended - began))])
        )
