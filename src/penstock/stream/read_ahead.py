# SPDX-License-Identifier: Apache-2.0
"""Rows of code that may wait: a thread reads ahead, and the task takes what is there.

A task must not stand still in a source, for its barriers stand still with it. So rows that have to be waited for come
from a thread of their own, through a queue of few batches. A position moves when the task takes a batch, never when
the thread reads it, so what was read ahead is read again after a failure.

All of a user's code runs in that thread: also the word that a checkpoint is complete. It takes that between two
batches, and after the last one until it is closed: the checkpoint that names the end is complete later than that.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

BATCHES = 2
"""The batches that are read ahead."""
IDLE_SECONDS = 0.05
"""A reader that had nothing is asked again after so long."""
_JOIN_SECONDS = 5.0

Read = tuple[pa.RecordBatch | None, Any]
"""A batch and the offset after it; None where nothing is there now."""


class RowsToWaitFor(Protocol):
    """Rows that may have to be waited for. All calls are those of one thread."""

    def read(self) -> Iterator[Read]:
        """The rows, each batch with the offset after it; None where there is nothing now. The end is the end."""

    def completed(self, offset: Any) -> None:
        """A checkpoint at this offset is complete."""

    def close(self) -> None:
        """Give back what is held."""


class RowsReadAhead:
    """An iterator over such rows that never waits: it gives None and the last offset where nothing was read yet."""

    def __init__(self, make: Callable[[], RowsToWaitFor], offset: Any, name: str) -> None:
        """`make` is called in the thread; `offset` is the one to begin with."""
        self._make = make
        self._offset = offset
        self._read: queue.Queue[Read | BaseException | None] = queue.Queue(BATCHES)
        self._completed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._has_ended = False
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"penstock-read-{name}", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Read]:
        return self

    def __next__(self) -> Read:
        """The next batch, or None; raises what the code that reads has raised."""
        try:
            read = self._read.get_nowait()
        except queue.Empty:
            return None, self._offset
        if read is None:
            self._has_ended = True
            raise StopIteration
        if isinstance(read, BaseException):
            raise read
        self._offset = read[1]
        return read

    def completed(self, offset: Any) -> None:
        """A checkpoint at this offset is complete. Raises what the code raised for one before, after the last row."""
        if self._has_ended and self._error is not None:
            raise self._error
        self._completed.put(offset)

    def close(self) -> None:
        """End the thread; one that waits in the source's own code is left to that."""
        self._is_closing.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            rows = self._make()
            try:
                self._read_all(rows)
                self._put(None)
                while not self._is_closing.wait(IDLE_SECONDS):
                    self._tell(rows)
                self._tell(rows)
            finally:
                rows.close()
        except StopIteration as error:  # raised as it is it would end the rows
            self._fail(RuntimeError(f"the code that reads raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - raised in the task's thread
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._put(error)

    def _read_all(self, rows: RowsToWaitFor) -> None:
        for read in rows.read():
            self._tell(rows)
            if read[0] is None:
                self._is_closing.wait(IDLE_SECONDS)
            else:
                self._put(read)
            if self._is_closing.is_set():
                return

    def _tell(self, rows: RowsToWaitFor) -> None:
        """Say the newest offset whose checkpoint is complete, if there is another one."""
        newest: list[Any] = []
        with suppress(queue.Empty):
            while True:
                newest = [self._completed.get_nowait()]
        for offset in newest:
            rows.completed(offset)

    def _put(self, read: Read | BaseException | None) -> None:
        while not self._is_closing.is_set():
            with suppress(queue.Full):
                return self._read.put(read, timeout=IDLE_SECONDS)
        return None
