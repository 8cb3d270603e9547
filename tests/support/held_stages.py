# SPDX-License-Identifier: Apache-2.0
"""A stage of a job that is held up until a test lets it go on, by a file that both processes see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from penstock.testing import DEADLINE


def nothing_until(go: Path, batch: pa.RecordBatch, seconds: float = DEADLINE) -> Iterator[pa.RecordBatch]:
    """Give no rows of this batch, again and again, until the file is there; at each the stage can be stopped."""
    end = time.monotonic() + seconds
    while not go.exists() and time.monotonic() < end:
        yield batch.slice(0, 0)
        time.sleep(0.01)
