# SPDX-License-Identifier: Apache-2.0
"""A task's input as iterators of batches, one for each side, over any number of gates.

Events that only say that data has ended are swallowed. Several gates of a side are read in turn, so that none
starves: all are polled, and when all are empty each is waited on for a few milliseconds. Schemas of a side's gates
are the same, or differ in nothing that the operators see. A side is read when it is asked, so its producers may
wait for the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.shuffle import InputGate, Received
from penstock.task.control import TaskControl

_SLICE_SECONDS = 0.005
_CANCEL_SECONDS = 0.5


class UnionGate:
    """Several gates as one."""

    def __init__(self, gates: Sequence[InputGate]) -> None:
        self._open = list(gates)
        self._turn = 0

    def next(self, timeout: float) -> Received | None:
        """As `InputGate.next`: None when all gates have ended, TimeoutError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        patience = 0.0
        while self._open:
            for _ in range(len(self._open)):
                received, waited = self._next_of_turn(patience)
                if received is not None:
                    return received
                if not waited:
                    break
            else:
                patience = _SLICE_SECONDS
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"no input for {timeout} seconds on {len(self._open)} gates")
        return None

    def _next_of_turn(self, patience: float) -> tuple[Received | None, bool]:
        """The batch or event that the next gate gives, and whether the gate is still open."""
        self._turn %= len(self._open)
        gate = self._open[self._turn]
        try:
            received = gate.next(patience)
        except TimeoutError:
            self._turn += 1
            return None, True
        if received is None:
            del self._open[self._turn]
            return None, False
        self._turn += 1
        return received, True


class TaskInput:
    """Iterates over the batches of a task's gates; counts the time it waited."""

    def __init__(self, gates: Sequence[InputGate], control: TaskControl) -> None:
        self._gates = gates
        self._control = control
        self._open_sides = 0
        self.idle_seconds = 0.0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All gates as one side."""
        return self.sides([0] * len(self._gates), 1)[0]

    def sides(self, side_of: Sequence[int], count: int) -> list[Iterator[pa.RecordBatch]]:
        """The batches of each of `count` sides; `side_of` says for each gate which side it belongs to.

        The side that ends last ends, where a producer's end needs it, only when the JobMaster has confirmed all
        producers: asked at an earlier end, it would wait for producers that wait for this task to read them.
        """
        self._open_sides = count
        pairs = list(zip(self._gates, side_of, strict=True))
        return [self._side([gate for gate, side in pairs if side == number]) for number in range(count)]

    def _side(self, gates: Sequence[InputGate]) -> Iterator[pa.RecordBatch]:
        source = gates[0] if len(gates) == 1 else UnionGate(gates)
        while True:
            self._control.check_cancelled()
            began = time.monotonic()
            try:
                received = source.next(_CANCEL_SECONDS)
            except TimeoutError:
                continue
            finally:
                self.idle_seconds += time.monotonic() - began
            if received is None:
                break
            if received.batch is not None:
                yield received.batch
        self._open_sides -= 1
        if self._open_sides == 0 and any(gate.descriptor.await_confirmation for gate in self._gates):
            self._control.await_producers()
