# SPDX-License-Identifier: Apache-2.0
"""Two sources and two counters as a Bytewax dataflow; `bytewax.testing` runs this file. Nothing imports it.

Each worker's sink says how many rows it was given, and when the first and the last one came.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

KEYS, ROWS = (int(text) for text in os.environ["BYTEWAX_COUNTERS"].split())
BATCH = 1_000


class Numbers(StatelessSourcePartition[tuple[str, int]]):  # type: ignore[misc]  # Bytewax need not be there
    """Every so manieth number."""

    def __init__(self, first: int, step: int) -> None:
        self._next = first
        self._step = step

    def next_batch(self) -> list[tuple[str, int]]:
        """The next ones, each with its key."""
        if self._next >= ROWS:
            raise StopIteration
        end = min(ROWS, self._next + BATCH * self._step)
        rows = [(str(value % KEYS), value) for value in range(self._next, end, self._step)]
        self._next += BATCH * self._step
        return rows


class Source(DynamicSource[tuple[str, int]]):  # type: ignore[misc]  # Bytewax need not be there
    """A partition for each worker."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Numbers:
        """A worker's."""
        return Numbers(worker_index, worker_count)


class Drop(StatelessSinkPartition[Any]):  # type: ignore[misc]  # Bytewax need not be there
    """Counts what it is given."""

    def __init__(self) -> None:
        self._rows = 0
        self._first = self._last = time.monotonic()

    def write_batch(self, items: list[Any]) -> None:
        """Drop them."""
        self._last = time.monotonic()
        if not self._rows:
            self._first = self._last
        self._rows += len(items)

    def close(self) -> None:
        """Say how many there were."""
        sys.stdout.write(f"counted {self._rows} {self._first} {self._last}\n")
        sys.stdout.flush()


class Sink(DynamicSink[Any]):  # type: ignore[misc]  # Bytewax need not be there
    """One for each worker."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Drop:
        """A worker's."""
        return Drop()


def counted(known: int | None, _: int) -> tuple[int, int]:
    """One more, kept and given."""
    number = (known or 0) + 1
    return number, number


flow = Dataflow("counters")
op.output("out", op.stateful_map("count", op.input("numbers", flow, Source()), counted), Sink())
