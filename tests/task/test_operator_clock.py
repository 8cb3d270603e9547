# SPDX-License-Identifier: Apache-2.0
"""The time of a chain's parts, each without those that it asks."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import pyarrow as pa
import pytest

from penstock.task.operator_clock import OperatorClock

BATCH = pa.RecordBatch.from_arrays([pa.nulls(1)], names=["n"])


def burning(seconds: float, batches: Iterator[pa.RecordBatch] | None = None) -> Generator[pa.RecordBatch, None, None]:
    """Works so long for each batch, of three or of these."""
    for batch in iter([BATCH] * 3) if batches is None else batches:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        yield batch


def test_each_part_has_its_own_time() -> None:
    """A part that asks another one has not worked meanwhile; what nobody does is the owner's."""
    clock = OperatorClock("writing")
    first = clock.timed("map", burning(0.02))
    second = clock.timed("map", burning(0.05, first))
    assert len(list(second)) == 3
    seconds = clock.seconds()
    assert list(seconds) == ["writing", "map", "map #2"]
    assert 0.06 <= seconds["map"] < seconds["map #2"]
    assert seconds["map #2"] >= 0.15


def test_an_error_and_a_close_go_through() -> None:
    """The part that raises works no more, and one that is closed closes the user's generator."""
    clock, closed = OperatorClock("writing"), []

    def breaking() -> Generator[pa.RecordBatch, None, None]:
        try:
            yield BATCH
            raise ValueError("broken")
        finally:
            closed.append(True)

    part = clock.timed("map", breaking())
    assert next(part) is BATCH
    with pytest.raises(ValueError, match="broken"):
        next(part)
    before = clock.seconds()["map"]
    assert clock.seconds()["map"] == before
    other = clock.timed("map", breaking())
    next(other)
    other.close()
    assert len(closed) == 2
