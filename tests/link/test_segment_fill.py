# SPDX-License-Identifier: Apache-2.0
"""The rows that wait for a slow reader when segments are filled for a target time: a model of one exchange."""

from __future__ import annotations

from collections import deque

import pytest

from penstock.services.local.in_flight import LEAST_BYTES, SegmentFill

SEGMENTS = 14
SIZE = 512 << 10
MESSAGE = 4 << 10
RATE = 1e6
"""Bytes that the reader takes in a second: whole segments hold seven seconds of that."""
TARGET = 1.0
STEP = 0.005


class Clock:
    """A time that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Exchange:
    """A writer that always has rows, its segments, and a reader that gives them back as it reads.

    A snapshot takes all that waits into the reader's task; these segments come back when it is through with them all.
    """

    def __init__(self, target: float) -> None:
        self.clock = Clock()
        self.fill = SegmentFill(target, SEGMENTS, SIZE, self.clock)
        self._free = SEGMENTS
        self._waiting: deque[float] = deque()
        self._fetched: deque[float] = deque()
        self._held = 0

    @property
    def seconds(self) -> float:
        """The seconds that the reader needs for the rows in flight."""
        return (sum(self._waiting) + sum(self._fetched)) / RATE

    def run(self, seconds: float) -> None:
        """Let both go on for so long."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self._write()
            self._read(RATE * STEP)
            self.clock.now += STEP

    def snapshot(self) -> None:
        """Fetch all that waits."""
        self._fetched += self._waiting
        self._waiting.clear()

    def _write(self) -> None:
        while self._free:
            written = 0
            while written < min(self.fill.limit, SIZE):
                written += MESSAGE
                self.fill.took(MESSAGE)
            self._waiting.append(written)
            self._free -= 1

    def _read(self, count: float) -> None:
        while count > 0 and (queue := self._fetched or self._waiting):
            taken = min(count, queue[0])
            queue[0] -= taken
            count -= taken
            if queue[0] > 0:
                continue
            queue.popleft()
            if queue is self._waiting:
                self._free += 1
                continue
            self._held += 1
            if not self._fetched:
                self._free, self._held = self._free + self._held, 0


@pytest.mark.parametrize("interval", [None, 0.3, 1.0, 3.0])
def test_what_waits_is_read_in_about_the_target_time(interval: float | None) -> None:
    """From the first second on, and however often snapshots fetch all of it and let it come back at once."""
    exchange = Exchange(TARGET)
    found = []
    for _ in range(20):
        exchange.run(interval or 1.0)
        found.append(exchange.seconds)
        if interval is not None:
            exchange.snapshot()
    assert max(found) < 2 * TARGET, found


def test_without_a_target_whole_segments_wait() -> None:
    """So all that they hold has to be read."""
    exchange = Exchange(0.0)
    exchange.run(3.0)
    assert exchange.seconds > 5 * TARGET


def test_a_fast_reader_gets_whole_segments_in_a_second() -> None:
    """The first ones are small, because nobody knows yet how fast it is."""
    clock = Clock()
    fill = SegmentFill(TARGET, SEGMENTS, SIZE, clock)
    assert LEAST_BYTES <= fill.limit < SIZE / 16
    while fill.limit < SIZE and clock.now < TARGET:
        clock.now += 0.01
        fill.took(500_000)
    assert fill.limit == SIZE
