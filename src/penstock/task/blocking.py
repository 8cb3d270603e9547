# SPDX-License-Identifier: Apache-2.0
"""Calls that wait, over writers and gates that never do: what a batch task uses, whatever service moves its rows.

All of it waits in one place, the task's own (`TaskWait`), for anything that may come, and tries again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from penstock.shuffle import InputGate, Intake, MetricGroup, PartitionEnd, Received, ResultPartitionWriter
from penstock.shuffle.host import TaskWait
from penstock.shuffle.splits import Split

_LOOK_SECONDS = 0.5
"""The time after which a call that waits looks whether the writer was closed."""


class BlockingWriter:
    """Writes to one partition; what finds no room waits for it.

    `close` may come from another thread than the writing calls, of which one that waits then raises. `on_wait` is
    called now and then while a call waits.
    """

    def __init__(
        self,
        writer: ResultPartitionWriter,
        waiting: TaskWait,
        metrics: MetricGroup,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = writer
        self._waiting = waiting
        self._metrics = metrics
        self._on_wait = on_wait
        self._lock = threading.Lock()

    def setup(self) -> Intake:
        """Take resources and make the partition known; raises InsufficientBuffersError."""
        return self._writer.setup()

    def write(self, split: Split) -> None:
        """Append these rows; TaskCancelledError where the task is told to stop while it waits."""
        writer = self._writer
        while True:
            with self._lock:
                seen = self._waiting.arrivals
                taken = writer.offer(split)
                if taken == split.rows and not writer.has_pending:
                    return
            split = split.rest(taken)
            self._wait(seen)

    def flush(self) -> None:
        """Make everything written so far visible to readers."""
        while True:
            with self._lock:
                seen = self._waiting.arrivals
                self._writer.flush()
                if not self._writer.has_pending:
                    return
            self._wait(seen)

    def finish(self) -> PartitionEnd:
        """End the partition; no write may follow."""
        while True:
            with self._lock:
                seen = self._waiting.arrivals
                end = self._writer.finish()
                if end is not None:
                    return end
            self._wait(seen)

    def close(self, cause: BaseException | None = None) -> None:
        """Give back what the writer holds, and give up a partition that was not finished; idempotent."""
        with self._lock:
            self._writer.close(cause)

    def _wait(self, seen: int) -> None:
        began = time.monotonic()
        self._metrics.set("is_back_pressured", 1)
        try:
            self._waiting.wait(seen, _LOOK_SECONDS)
        finally:
            self._metrics.set("is_back_pressured", 0)
            self._metrics.add("back_pressured_seconds", time.monotonic() - began)
        self._on_wait()


class BlockingInput:
    """Several gates, at least one, read as one; they take turns."""

    def __init__(self, gates: Sequence[InputGate], waiting: TaskWait, metrics: MetricGroup | None = None) -> None:
        self._open = list(gates)
        self._waiting = waiting
        self._metrics = metrics or MetricGroup("input")
        self._turn = 0

    def next(self, timeout: float | None = None) -> Received | None:
        """The next batch or event, or None when all gates have ended.

        Waits up to `timeout` seconds (None: no limit) and raises TimeoutError after it; `timeout=0` polls. Raises the
        PartitionError of a channel that can't be read, TaskCancelledError and EnvironmentLostError.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._waiting.arrivals
            received = self._poll()
            if received is not None or not self._open:
                return received
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                if self._has_news(seen):
                    continue
                raise TimeoutError(f"no input for {timeout} seconds on {len(self._open)} gates")
            began = time.monotonic()
            try:
                self._waiting.wait(seen, left)
            finally:
                self._metrics.add("idle_seconds", time.monotonic() - began)

    def _poll(self) -> Received | None:
        for _ in range(len(self._open)):
            self._turn %= len(self._open)
            gate = self._open[self._turn]
            received = gate.poll()
            if received is not None:
                self._turn += 1
                return received
            if gate.is_ended:
                del self._open[self._turn]
            else:
                self._turn += 1
        return None

    def _has_news(self, seen: int) -> bool:
        """Tell whether something has come since `arrivals` was `seen`; never waits."""
        self._waiting.wait(seen, 0)
        return self._waiting.arrivals != seen
