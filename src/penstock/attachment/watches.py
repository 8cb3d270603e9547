# SPDX-License-Identifier: Apache-2.0
"""The things that end a task's wait: its connection, and what services of its have asked to be woken by.

The thread that waits polls, and calls those whose descriptors are readable under the attachment's lock. Wakers work
from any thread, after the end too: then they do nothing.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable

_SHORT_SECONDS = 0.005


class Watches:
    """The poll of one attachment, or of one that waits and has no connection."""

    def __init__(self, connection: int = -1) -> None:
        self._connection = connection
        self._poller = select.poll()
        self._writes: set[int] = set()
        if connection >= 0:
            self._poller.register(connection, select.POLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        self._arrived: list[int] = []
        self._alarm = math.inf
        self._event = -1
        self._waking = threading.Lock()

    def poll(self, seconds: float) -> bool:
        """Wait so long until something can be read; whether it can."""
        found = self._selected(seconds) if 0 < seconds < _SHORT_SECONDS else None
        if found is None:
            found = [each for each, _ in self._poller.poll(None if seconds == math.inf else 1000 * seconds)]
        if self._watched:
            self._arrived.extend(descriptor for descriptor in found if descriptor != self._connection)
        return bool(found)

    def until_alarm(self, seconds: float) -> float:
        """The seconds to wait: these, or fewer if an alarm is due before."""
        return seconds if self._alarm == math.inf else max(0.0, min(seconds, self._alarm - time.monotonic()))

    def take(self) -> int:
        """Call those whose descriptors were readable; how many things have come, an alarm included."""
        count = 0
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            for descriptor in arrived:
                found = self._watched.get(descriptor)
                if found is not None:
                    found()
                    count += 1
        if time.monotonic() >= self._alarm:
            self._alarm = math.inf
            count += 1
        return count

    def wake_in(self, seconds: float) -> None:
        """Count as something that comes after so many seconds."""
        self._alarm = min(self._alarm, time.monotonic() + seconds)

    def watch(self, descriptor: int, arrived: Callable[[], None], *, writes: bool = False) -> None:
        """Call this when the descriptor can be read, or written."""
        self._watched[descriptor] = arrived
        (self._writes.add if writes else self._writes.discard)(descriptor)
        self._poller.register(descriptor, select.POLLIN | select.POLLOUT * writes)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor; idempotent."""
        if self._watched.pop(descriptor, None) is not None:
            self._writes.discard(descriptor)
            self._poller.unregister(descriptor)

    def waker(self) -> Callable[[], None]:
        """Give a function that ends a poll, or the next one."""
        with self._waking:
            if self._event < 0:
                self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self.watch(self._event, self._woken)
        return self._wake

    def close(self) -> None:
        """Wakers do nothing from now on."""
        with self._waking:
            event, self._event = self._event, -1
        if event >= 0:
            os.close(event)
        self._watched.clear()

    def forget(self) -> None:
        """Close this process's copies: for a forked child, in which another thread's lock stays taken."""
        self._waking = threading.Lock()
        self.close()

    def _selected(self, seconds: float) -> list[int] | None:
        """As a poll, which counts whole milliseconds: a source is due in parts of one. None where that can't be."""
        reads = [self._connection, *self._watched] if self._connection >= 0 else [*self._watched]
        try:
            readable, writable, _ = select.select(reads, list(self._writes), [], seconds)
        except (ValueError, OSError):  # a number is too high for it, or another thread has just closed one
            return None
        return list({*readable, *writable})

    def _wake(self) -> None:
        with self._waking:
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def _woken(self) -> None:
        os.eventfd_read(self._event)
