# SPDX-License-Identifier: Apache-2.0
"""The time of a chain's parts, each without those that it asks."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import pyarrow as pa
import pytest

from penstock.task.operator_clock import OperatorClock

BATCH = pa.RecordBatch.from_arrays([pa.nulls(1)], names=["n"])


class Burning:
    """Works so long for each batch, of three or of these, and says for how long: more on a busy machine."""

    def __init__(self, seconds: float, batches: Iterator[pa.RecordBatch] | None = None) -> None:
        self._seconds = seconds
        self._batches = iter([BATCH] * 3) if batches is None else batches
        self.worked = 0.0

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The batches, with the work for them."""
        for batch in self._batches:
            began = now = time.monotonic()
            while now < began + self._seconds:
                now = time.monotonic()
            self.worked += now - began
            yield batch


def test_each_part_has_its_own_time() -> None:
    """A part that asks another one has not worked meanwhile; what nobody does is the owner's."""
    began = time.monotonic()
    clock = OperatorClock("writing")
    one = Burning(0.02)
    other = Burning(0.05, clock.timed("map", one.batches()))
    assert len(list(clock.timed("map", other.batches()))) == 3
    seconds = clock.seconds()
    assert list(seconds) == ["writing", "map", "map #2"]
    assert seconds["map"] >= one.worked > 0.05
    assert seconds["map #2"] >= other.worked > 0.14
    assert sum(seconds.values()) < time.monotonic() - began + 1e-6


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
