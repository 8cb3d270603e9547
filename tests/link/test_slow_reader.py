# SPDX-License-Identifier: Apache-2.0
"""The rows in flight to a slow reader, over real segments: those that wait for it, and those in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from environment_thread import SEGMENT, environment
from penstock.services.local.builders import Segments
from penstock.services.local.in_flight import SegmentFill
from penstock.services.local.stream_layout import StreamSegments
from penstock.services.local.writer import LayoutPolicy, SegmentWriter
from penstock.settings import Settings
from penstock.shuffle import EpochEnd, EventKind
from penstock.shuffle.events import Event
from penstock.testing import DEADLINE
from stream_task import SCHEMA, Clock, Task, Writer, numbers, task_of


class SlowReader:
    """A writer that always has rows, and a reader of a thousand rows a second, whose time this is.

    `target` is the time in flight that segments are filled for; 0: they are whole.
    """

    def __init__(self, task: Task, number: int, target: float) -> None:
        self._task = task
        self._clock = Clock()
        segments = NETWORK.exclusive_buffers_per_channel + NETWORK.floating_buffers_per_gate
        fill = SegmentFill(target, segments, SEGMENT, self._clock)

        def policy(end: Segments) -> LayoutPolicy:
            return LayoutPolicy(
                lambda parts: StreamSegments(end, parts.messages, parts.sums, fill, parts.metrics), overdraws=False
            )

        self.writer = Writer(
            SegmentWriter(task.attachment, task.owner, task.result(number, 1, SCHEMA), policy, verify=True)
        )
        self.writer.setup()
        task.mailbox.wait(DEADLINE)
        self._gate = task.read((number, 0))
        self._fetched: list[int] = []
        """Rows that a snapshot took out of the gate, by batch."""
        self._written = self._read = 0

    @property
    def waiting(self) -> float:
        """The seconds that the reader needs for all that is in flight."""
        return (self._written - self._read) * 1e-3

    def turn(self, *, writes: bool = True) -> Event | None:
        """Write what there is room for, and read one thing; the event, if it was one."""
        while writes and (taken := self.writer.offer(ROWS, 0)):
            self._written += taken
        self.writer.flush()
        self._task.mailbox.wait(0.01)
        rows = self._fetched.pop(0) if self._fetched else 0
        if not rows:
            received = self._gate.poll()
            if received is None:
                return None
            if received.batch is None:
                return received.event
            rows = received.batch.num_rows
        self._read += rows
        self._clock.now += rows * 1e-3
        return None

    def aligned(self) -> float:
        """Seconds of the reader until a barrier has come that stays behind the rows."""
        self.writer.end_epoch(b"aligned", EventKind.IN_ORDER)
        began = self._clock.now
        while not isinstance(self.turn(writes=False), EpochEnd):
            pass
        return self._clock.now - began

    def unaligned(self) -> int:
        """Bytes of the rows that a barrier overtakes, wherever they are."""
        self.writer.end_epoch(b"unaligned", EventKind.PRIORITY, keep_overtaken=True)
        held = sum(self._fetched) * ROWS.nbytes // ROWS.num_rows
        overtaken = None
        has_ended = False  # rows that come after the barrier are the next turn's
        while overtaken is None or not has_ended:
            self._task.mailbox.wait(0.01)
            overtaken = overtaken or self.writer.overtaken()
            while self._gate.poll_ahead() is not None:
                pass
            while not has_ended and (fetched := self._gate.poll({0})) is not None:
                if fetched.batch is None:
                    has_ended = isinstance(fetched.event, EpochEnd)
                else:
                    held += fetched.batch.nbytes
                    self._fetched.append(fetched.batch.num_rows)
        return held

    def close(self) -> None:
        """End both."""
        self._gate.close()
        self.writer.close()


ROWS = numbers(*range(1 << 10))
NETWORK = Settings().network
TURNS = 300


@pytest.fixture
def slow_readers(tmp_path: Path) -> Iterator[tuple[SlowReader, SlowReader]]:
    """One with a target time and one without, both in the state that they come to."""
    with environment(tmp_path, segments=64) as here:
        task = task_of(here.attach())
        made = SlowReader(task, 0, 0.1), SlowReader(task, 1, 0.0)
        for _ in range(TURNS):
            for reader in made:
                reader.turn()
        yield made
        for reader in made:
            reader.close()
        task.attachment.close()


def test_an_aligned_checkpoint_of_a_slow_reader_is_shorter_with_a_target_time(
    slow_readers: tuple[SlowReader, SlowReader],
) -> None:
    """A barrier waits for the rows in front of it."""
    seconds = [reader.aligned() for reader in slow_readers]
    assert 0 < seconds[0] < seconds[1] / 4, seconds


def test_an_unaligned_checkpoint_of_a_slow_reader_is_smaller_with_a_target_time(
    slow_readers: tuple[SlowReader, SlowReader],
) -> None:
    """One after the other: no larger because there was one before, and within what the segments hold."""
    found: list[list[int]] = []
    for reader in slow_readers:
        found.append([])
        for _ in range(4):
            found[-1].append(reader.unaligned())
            for _ in range(20):
                reader.turn()
    with_target, whole = found
    segments = NETWORK.exclusive_buffers_per_channel + NETWORK.floating_buffers_per_gate
    assert 0 < max(with_target) < max(whole) / 4, found
    assert max(whole) <= (segments + 1) * SEGMENT, found
