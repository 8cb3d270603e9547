# SPDX-License-Identifier: Apache-2.0
"""A job that can be held in a phase: two producers and two consumers that wait at gates in the user's code.

Stages tell that they are there by marks, and wait for gates; both are empty files in one folder. A gate has a
deadline after which the stage fails, so that nothing waits for ever. A stage that waits gives empty batches, which go
nowhere but let its task look whether it was told to stop. The phases:

- `writing`: both producers have written a part of their rows and hold the rest back. Consumers that run meanwhile
  have seen rows.
- `reading`: both producers have ended well; both consumers have seen rows and hold the rest back.
- `half`: as `reading`, but consumer 0 has ended well.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.stream import Stream
from penstock.testing import wait_until
from penstock.testing.sources import fromBatches

PHASES = ("writing", "reading", "half")
WRITE, READ = "write", "read"
_ROWS = 5000
"""Of one batch: so many that a writer gathers no more, or its flushes would decide what is one message."""
_BATCHES = 4
_HOLD_SECONDS = 60.0
_LOOK_SECONDS = 0.01

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Gates:
    """The folder, from both sides."""

    folder: str

    def open(self, *names: str) -> None:
        """Open gates; they stay open."""
        for name in names:
            Path(self.folder, f"gate-{name}").touch()

    def open_all(self) -> None:
        """Nobody waits any more."""
        self.open(f"{WRITE}-p0", f"{WRITE}-p1", f"{READ}-c0", f"{READ}-c1")

    def reach(self, phase: str, mode: str, has_ended: Callable[[str], bool], seconds: float = 60.0) -> None:
        """Lead a job of `stream` that was just submitted into a phase; AssertionError where it does not come.

        `has_ended` says of a subtask's name whether it has ended well.
        """

        def wait_for(ready: Callable[[str], object], *places: str) -> None:
            wait_until(lambda: all(ready(place) for place in places), f"{phase}: {', '.join(places)}", seconds)

        wait_for(self.pids, "p0", "p1")
        if mode != "blocking":
            wait_for(self.pids, "c0", "c1")
        if phase == "writing":
            return
        for place in ("p0", "p1"):  # one after the other, so that it is known which worker is let go
            self.open(f"{WRITE}-{place}")
            wait_for(has_ended, place)
        wait_for(self.pids, "c0", "c1")
        if phase == "half":
            self.open(f"{READ}-c0")
            wait_for(has_ended, "c0")

    def mark(self, place: str) -> None:
        """This process works on the subtask with this name and has given or seen rows."""
        name = f"{place}-{time.monotonic_ns():020}-{os.getpid()}"
        made = Path(self.folder, f"new-{name}")
        made.write_text(str(os.getpgrp()))
        made.rename(Path(self.folder, f"mark-{name}"))

    def marks(self, place: str = "") -> list[Path]:
        """The marks of this subtask, or of all: one for each run, in order."""
        return sorted(Path(self.folder).glob(f"mark-{place}*"))

    def pids(self, place: str) -> list[int]:
        """The processes that have run this subtask, in order."""
        return [int(path.name.rpartition("-")[2]) for path in self.marks(place)]

    def group(self, place: str) -> int:
        """The process group of the first process that has run this subtask: its executor."""
        return int(self.marks(place)[0].read_text())

    def living(self, place: str) -> int:
        """The process that has run this subtask last, or 0 where it has ended: its number may be another's by now."""
        mark = self.marks(place)[-1]
        pid = int(mark.name.rpartition("-")[2])
        try:
            return pid if os.getpgid(pid) == int(mark.read_text()) else 0
        except ProcessLookupError:
            return 0

    def hold(self, name: str, batch: pa.RecordBatch) -> Batches:
        """Empty batches until the gate is open."""
        gate, pause = Path(self.folder, f"gate-{name}"), threading.Event()
        end = time.monotonic() + _HOLD_SECONDS
        while not gate.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"nobody opened the gate {name}")
            yield batch.slice(0, 0)
            pause.wait(_LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class HeldProducer:
    """Gives its first batch, tells so, and waits."""

    gates: Gates

    def __call__(self, batches: Batches) -> Batches:
        """As a function for `mapInArrow`."""
        for number, batch in enumerate(batches):
            if number == 1:
                place = f"p{batch['origin'][0].as_py()}"
                self.gates.mark(place)
                yield from self.gates.hold(f"{WRITE}-{place}", batch)
            yield batch


@dataclass(frozen=True, slots=True)
class HeldConsumer:
    """Tells that it has seen rows, waits, and gives them on."""

    gates: Gates

    def __call__(self, batches: Batches) -> Batches:
        """As a function for `mapInArrow`."""
        held = False
        for batch in batches:
            if batch.num_rows and not held:
                held, place = True, f"c{batch['target'][0].as_py()}"
                self.gates.mark(place)
                yield from self.gates.hold(f"{READ}-{place}", batch)
            yield batch


def to_target(batch: pa.RecordBatch) -> Any:
    """The consumer of each row, for `partitionCustom`: it is in the row."""
    column = batch["target"]
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def rows() -> pa.Table:
    """The rows that go in and must come out: `id` is unique, `origin` is the producer, `target` the consumer."""
    parts = []
    for number in range(2 * _BATCHES):
        ids = np.arange(number * _ROWS, (number + 1) * _ROWS, dtype=np.int64)
        columns = [ids, np.full(_ROWS, number % 2, np.int64), ids % 2]
        arrays = [pa.Array.from_buffers(pa.int64(), _ROWS, [None, pa.py_buffer(column)]) for column in columns]
        parts.append(pa.RecordBatch.from_arrays(arrays, names=["id", "origin", "target"]))
    return pa.Table.from_batches(parts)


def stream(gates: Gates, mode: Any, spark: Any = None) -> Stream:
    """The job: producers p0 and p1, one exchange of this mode, consumers c0 and c1."""
    source = fromBatches(rows(), 2, spark)
    held = source.mapInArrow(HeldProducer(gates), source.schema)
    parted = held.partitionCustom(to_target, 2, mode=mode)
    return parted.mapInArrow(HeldConsumer(gates), source.schema)
