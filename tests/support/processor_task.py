# SPDX-License-Identifier: Apache-2.0
"""One task of a processor of rows (k, v), with a clock that a test turns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.api.stateful import row_maker, state_schema
from penstock.checkpoint.storage import pieces_of
from penstock.stream.chain import Chain, StepContext
from penstock.stream.state.operator import Spellings, StatefulOperator
from penstock.stream.watermarks import EventTimeProgress
from penstock.testing import VirtualClock

GROUPS = 16
INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("what", pa.string()), ("n", pa.int64())])


def batch(*rows: tuple[str | None, int]) -> pa.RecordBatch:
    """A batch of these rows."""
    return pa.RecordBatch.from_pylist([{"k": key, "v": value} for key, value in rows], INPUT)


def operator(form: str, processor: Any, **changes: Any) -> StatefulOperator:
    """An operator of a form, with the words of PySpark."""
    spellings = Spellings(state_schema, row_maker)
    return StatefulOperator(form, processor, INPUT, ("k",), OUTPUT, spellings, **changes)


class Task:
    """One task with a clock that a test turns."""

    def __init__(self, made: StatefulOperator, states: Any = (), place: tuple[int, int] = (0, 1)) -> None:
        self.clock = VirtualClock(1000.0)
        self.context = StepContext(*place, GROUPS, "stage 1", clock=self.clock)
        self.step = made.step()
        self.chain = Chain([("it", self.step)])
        self.chain.open(self.context, [{f"it/{name}": data for name, data in state.items()} for state in states])

    def push(self, *rows: tuple[str | None, int]) -> list[tuple[Any, ...]]:
        """The rows that these give."""
        return flat(self.chain.push(batch(*rows)))

    def wait(self, seconds: float) -> list[tuple[Any, ...]]:
        """The rows that timers give while time passes."""
        self.clock.advance(seconds)
        given = []
        while (wait := self.chain.wake_in) is not None and wait <= 0:
            given += flat(self.chain.time_passed())
        return given

    def reach(self, watermark: int) -> list[tuple[Any, ...]]:
        """The rows that a watermark gives."""
        return flat(self.chain.advance(EventTimeProgress(watermark), 0.0)[0])

    def stored(self) -> dict[str, bytes]:
        """The state as a checkpoint gives it back."""
        return {name: b"".join(pieces_of(make())) for name, make in self.step.snapshot(1)}


def flat(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """The rows of batches."""
    assert all(each.schema == OUTPUT for each in batches)
    return [tuple(row.values()) for each in batches for row in each.to_pylist()]
