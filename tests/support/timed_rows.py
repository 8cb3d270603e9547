# SPDX-License-Identifier: Apache-2.0
"""Numbered rows with an event time: what tests of event time do with the rows of a rate source.

Row `value` happened `value` milliseconds after the first second, less up to `DISORDER`, in an order that its number
alone decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.record import PartitionerSpec
from penstock.record.layout import fixed_values, int64_array
from penstock.stream.chain import PlainStep, State, StepContext
from penstock.stream.watermark import Watermark

KEYS = 10
SECOND = 1_000_000
DISORDER = SECOND
"""Microseconds."""
TIMED = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
BY_KEY = PartitionerSpec("hash", ("key",))
JUDGED = TIMED.append(pa.field("late", pa.int64()))


def times_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The event times of these rows."""
    early = (values * 2_654_435_761) % (DISORDER // 1000) * 1000
    return SECOND + values * 1000 - early


def timed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives each row a key and its time."""
    for batch in batches:
        values = fixed_values(batch.column("value"), np.int64)
        times = int64_array(times_of(values)).view(TIMED.field("ts").type)
        yield pa.RecordBatch.from_arrays([int64_array(values % KEYS), batch.column("value"), times], schema=TIMED)


@dataclass(frozen=True)
class Judge:
    """An operator that says of each row how late it was, in microseconds: 0 where no watermark had passed it."""

    name: str = "judge"
    uid: str = "judge"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Not in a batch job."""
        raise AssertionError

    def step(self) -> JudgeStep:
        """The step of one subtask."""
        return JudgeStep()


class JudgeStep(PlainStep):
    """One subtask's judge."""

    name = "judge"

    def __init__(self) -> None:
        self.watermark = Watermark()
        self.told: list[Watermark] = []

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Begin anew."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows with their lateness."""
        times = fixed_values(batch.column("ts"), np.int64)
        late = np.where(self.watermark.is_late(times), self.watermark.later_of(times) - times, 0)
        yield pa.RecordBatch.from_arrays([*batch.columns, int64_array(late)], schema=JUDGED)

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """Note it; it only grows."""
        assert watermark > self.watermark
        self.watermark = watermark
        self.told.append(watermark)
        return ()
