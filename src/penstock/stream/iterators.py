# SPDX-License-Identifier: Apache-2.0
"""Functions over an iterator (mapInArrow, mapInPandas) as steps.

Rules
- Such a function asks for its input, while a step is pushed its input. So it runs in a thread of its own, always the
  same one for a task, and the task's thread stands still while it runs: never do both go on at once.
- Its iterator ends with each epoch, and the next epoch's first batch calls the function anew. Rows that it holds
  back come out when its iterator ends.
- A class in place of a function is made once for the task, and its object is called for each epoch: what `__init__`
  sets up (a model) stays. A function that sets up much in each call is told of that, once.
- A function that ends before its iterator has ended would drop rows, and more with each epoch: that is an error.

Cost: a change of threads for each batch, some 20 microseconds.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import pyarrow as pa

from penstock.errors import PlanError
from penstock.operators.functions import MapInArrow, MapInPandas
from penstock.stream.chain import PlainStep

_LOG = logging.getLogger("penstock.stream")
_JOIN_SECONDS = 5.0
SLOW_START_SECONDS = 0.1
"""A function that takes longer before it asks for its first batch sets something up."""


class _Word(Enum):
    """The words that the two threads say to each other besides batches."""

    WANTED = "the function asks for a batch"
    DONE = "the function has ended"
    EPOCH_END = "there are no more batches in this epoch"
    STOP = "the task ends"


class _StoppedError(BaseException):
    """Raised out of a function's iterator when its task ends, so that its clean-up runs."""


class IteratorStep(PlainStep):
    """An operator over an iterator, whose iterator ends with each epoch."""

    def __init__(self, operator: MapInArrow | MapInPandas) -> None:
        self._operator = operator
        self._calls = 0
        self._to_function: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._from_function: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_running = False
        """True if the function was called in this epoch."""

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows that the function gives until it asks for more."""
        given = [] if self._is_running else self._call()
        self._to_function.put(batch)
        return [*given, *self._until(_Word.WANTED)]

    def end_epoch(self) -> Iterable[pa.RecordBatch]:
        """The rows that the function gives when its iterator ends."""
        if not self._is_running:
            return ()
        self._is_running = False
        self._to_function.put(_Word.EPOCH_END)
        return self._until(_Word.DONE)

    def end_input(self, *, stopped: bool) -> Iterable[pa.RecordBatch]:
        """As for an epoch."""
        return self.end_epoch()

    def close(self) -> None:
        """End the function and its thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._to_function.put(_Word.STOP)
            thread.join(_JOIN_SECONDS)

    def _call(self) -> list[pa.RecordBatch]:
        """Call the function, up to where it asks for its first batch; what it gave ahead of that."""
        if self._thread is None:
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=context.run, args=(self._run,), name=f"penstock-{self.name}", daemon=True
            )
            self._thread.start()
        self._is_running = True
        self._calls += 1
        called = time.monotonic()
        self._to_function.put(_Word.WANTED)
        given = self._until(_Word.WANTED)
        seconds = time.monotonic() - called
        if self._calls == 2 and seconds > SLOW_START_SECONDS:  # the first call may have imported something
            _LOG.warning(
                "%s took %.1f s before it asked for its first batch, and it is called again after each checkpoint: "
                "give a class that sets things up in __init__, once for each task, and has __call__(self, batches)",
                self.name,
                seconds,
            )
        return given

    def _until(self, expected: _Word) -> list[pa.RecordBatch]:
        """The function's batches up to this word; raises what the function raises."""
        given: list[pa.RecordBatch] = []
        while True:
            said = self._from_function.get()
            if isinstance(said, pa.RecordBatch):
                given.append(said)
            elif isinstance(said, BaseException):
                self._is_running = False
                raise said
            elif said is expected:
                return given
            elif said is _Word.DONE:
                self._is_running = False
                raise PlanError(
                    f"{self.name} ended before its iterator did: in a streaming query the rows that follow would be "
                    "lost, so a function reads its iterator to the end. To keep some rows only, use filter()"
                )

    def _run(self) -> None:
        """The function's thread: one call for each epoch."""
        operator: MapInArrow | MapInPandas | None = None
        while self._to_function.get() is not _Word.STOP:
            try:
                operator = operator or self._operator.opened()
                for batch in operator.apply(self._input()):
                    self._from_function.put(batch)
            except _StoppedError:
                return
            except BaseException as error:  # noqa: BLE001 - raised in the task's thread
                self._from_function.put(error)
            else:
                self._from_function.put(_Word.DONE)

    def _input(self) -> Iterator[pa.RecordBatch]:
        while True:
            self._from_function.put(_Word.WANTED)
            said = self._to_function.get()
            if said is _Word.STOP:
                raise _StoppedError
            if said is _Word.EPOCH_END:
                return
            yield said
