# SPDX-License-Identifier: Apache-2.0
"""A task's input as one iterator of batches, over any number of gates.

Events that only say that data has ended are swallowed. Several gates are read in turn, so that none starves: all are
polled, and when all are empty each is waited on for a few milliseconds. Schemas of the gates are the same, or
differ in nothing that the operators see.
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
        """What the next gate gives, and whether it is still open."""
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
        self.idle_seconds = 0.0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Until all gates have ended; then, where a producer's end needs it, until the JobMaster confirmed it."""
        source = self._gates[0] if len(self._gates) == 1 else UnionGate(self._gates)
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
        if any(gate.descriptor.await_confirmation for gate in self._gates):
            self._control.await_producers()
