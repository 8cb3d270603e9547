# SPDX-License-Identifier: Apache-2.0
"""A task's input as iterators of batches, one for each side, over any number of gates.

Events that only say that data has ended are swallowed. Several gates of a side are read in turn, so that none
starves. Schemas of a side's gates are the same, or differ in nothing that the operators see. A side is read when it
is asked, so its producers may wait for the others; of one without whose rows there is no result the first batch is
looked at meanwhile, if it is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from penstock.operators.empty_sides import EmptySideError
from penstock.shuffle import InputGate, MetricGroup
from penstock.task.blocking import BlockingInput
from penstock.task.control import TaskControl

_CANCEL_SECONDS = 0.5


class InputSide:
    """The gates that are read as one, and how far they are; `ahead` is the first batch, if that was looked at."""

    def __init__(self, gates: Sequence[InputGate], control: TaskControl, metrics: MetricGroup | None) -> None:
        self.edges = [gate.descriptor.gate for gate in gates]
        self.ahead: pa.RecordBatch | None = None
        self.has_ended = self.has_rows = False
        self._source = BlockingInput(gates, control, metrics)

    def next(self, timeout: float) -> pa.RecordBatch | None:
        """The next batch, None at the end; TimeoutError after so many seconds without either."""
        if self.ahead is not None:
            batch, self.ahead = self.ahead, None
            return batch
        return self._receive(timeout)

    def is_empty(self) -> bool:
        """Tell whether it has ended without a row, as far as that is known without waiting."""
        with suppress(TimeoutError):
            while not self.has_rows and not self.has_ended:
                self.ahead = self._receive(0)
        return self.has_ended and not self.has_rows

    def _receive(self, timeout: float) -> pa.RecordBatch | None:
        while not self.has_ended:
            received = self._source.next(timeout)
            if received is None:
                self.has_ended = True
            elif received.batch is not None:
                self.has_rows = self.has_rows or received.batch.num_rows > 0
                return received.batch
        return None


class TaskInput:
    """Iterates over the batches of a task's gates; counts the time it waited, and calls `on_wait` meanwhile."""

    def __init__(
        self,
        gates: Sequence[InputGate],
        control: TaskControl,
        metrics: MetricGroup | None = None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._on_wait = on_wait
        self._gates = gates
        self._control = control
        self._sides: list[InputSide] = []
        self._needed: list[InputSide] = []
        self.idle_seconds = 0.0

    @property
    def left(self) -> tuple[int, ...]:
        """The edges of the sides that were not read to their end."""
        return tuple(edge for side in self._sides if not side.has_ended for edge in side.edges)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All gates as one side."""
        return self.sides([0] * len(self._gates), 1)[0]

    def sides(
        self, side_of: Sequence[int], count: int, needed: Collection[int] = ()
    ) -> list[Iterator[pa.RecordBatch]]:
        """The batches of each of `count` sides; `side_of` says for each gate which side it belongs to.

        The side that ends last ends, where a producer's end needs it, only when the JobMaster has confirmed all
        producers: asked at an earlier end, it would wait for producers that wait for this task to read them. If a
        `needed` side ends without a row, reading another one raises EmptySideError.
        """
        pairs = list(zip(self._gates, side_of, strict=True))
        self._sides = [
            InputSide([gate for gate, side in pairs if side == number], self._control, self._metrics)
            for number in range(count)
        ]
        self._needed = [self._sides[number] for number in needed]
        return [self._batches(side) for side in self._sides]

    def _batches(self, side: InputSide) -> Iterator[pa.RecordBatch]:
        while True:
            self._control.check_cancelled()
            if any(other.is_empty() for other in self._needed if other is not side):
                raise EmptySideError
            has_come, batch = self._next(side)
            if not has_come:
                self._on_wait()
                continue
            if batch is None:
                break
            yield batch
        if all(each.has_ended for each in self._sides) and any(
            gate.descriptor.await_confirmation for gate in self._gates
        ):
            self._control.await_producers()

    def _next(self, side: InputSide) -> tuple[bool, pa.RecordBatch | None]:
        """Tell whether something has come in time: a batch, or the end as None."""
        began = time.monotonic()
        try:
            return True, side.next(_CANCEL_SECONDS)
        except TimeoutError:
            return False, None
        finally:
            self.idle_seconds += time.monotonic() - began
