# SPDX-License-Identifier: Apache-2.0
"""Deterministic waiting for tests: conditions with deadlines, threads that hand back their error, a clock to turn.

Rules: nothing here sleeps for a fixed time to make an order likely. Either an order is forced (`Sequencer`), or a
condition is awaited with a deadline after which the test fails and says what it waited for. `wait_until` polls,
because the things it looks at (another process, a counter) cannot notify; it is never used to wait *longer*.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEADLINE = 300.0
"""Seconds after which a test has failed. Far above what anything takes, so that a busy machine is no failure."""

_POLL = 0.002


def wait_until(condition: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    """Return as soon as the condition holds; AssertionError naming `what` after the deadline."""
    end = time.monotonic() + deadline
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline} s for {what}")
        pause.wait(_POLL)


async def eventually(condition: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    """Let the event loop go round until the condition holds; AssertionError naming `what` after the deadline."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline} s for {what}")
        await asyncio.sleep(_POLL / 2)


class Running:
    """A function on a thread of its own; `join` gives its result or raises its error."""

    def __init__(self, function: Callable[[], object], name: str = "test-task") -> None:
        self._function = function
        self._result: object = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True if it still runs."""
        return self._thread.is_alive()

    def join(self, deadline: float = DEADLINE) -> object:
        """Wait for the end; AssertionError where it does not come in time."""
        error = self.outcome(deadline)
        if error is not None:
            raise error
        return self._result

    def outcome(self, deadline: float = DEADLINE) -> BaseException | None:
        """Wait for the end; the error it ended with, or None."""
        self._thread.join(deadline)
        if self._thread.is_alive():
            raise AssertionError(f"{self._thread.name} did not end within {deadline} s")
        return self._error

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that joins
            self._error = error


class Sequencer:
    """Blocks of several threads run in the order of their numbers: `with order(0): ...`, `with order(1): ...`."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._condition = threading.Condition()
        self._turn = 0
        self._broken = False

    @contextmanager
    def __call__(self, number: int) -> Iterator[None]:
        """Wait for this number's turn, run the block, and let the next number go. A failed block stops all."""
        with self._condition:
            came = self._condition.wait_for(lambda: self._broken or self._turn == number, self._deadline)
            if self._broken or not came:
                raise AssertionError(f"turn {number} did not come: it is still turn {self._turn}")
        try:
            yield
        except BaseException:
            self._broken = True
            raise
        finally:
            with self._condition:
                self._turn += 1
                self._condition.notify_all()


class VirtualClock:
    """A clock that a test turns: call it for the time, `advance` it, and due timers run in order of their time."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def __call__(self) -> float:
        """The time, as `time.monotonic()` would give it."""
        return self._now

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` when the clock reaches `when`; of equal times the first asked for goes first."""
        self._timers.append((when, self._count, action))
        self._count += 1

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds and run what falls due on the way, new timers included."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds}")
        end = self._now + seconds
        while due := sorted((timer for timer in self._timers if timer[0] <= end), key=lambda timer: timer[:2]):
            when, _, action = due[0]
            self._timers.remove(due[0])
            self._now = max(self._now, when)
            action()
        self._now = end
