# SPDX-License-Identifier: Apache-2.0
"""The complete checkpoints of a query that are kept, or read by a savepoint that is being written. Thread-safe.

A checkpoint that is read stays until it is released, also if it is to go meanwhile. Then the next sweep of the
location takes it, which removes all that is not kept.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.checkpoint.stamps import Stamp


class KeptCheckpoints:
    """Those of one query, by their numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stamps: dict[int, Stamp] = {}
        self._readers: Counter[int] = Counter()
        self._dropped: set[int] = set()
        """Those that go when they are not read any more."""

    @property
    def stamps(self) -> list[Stamp]:
        """All, also those that are only read."""
        with self._lock:
            return list(self._stamps.values())

    @property
    def numbers(self) -> list[int]:
        """Those that are not to go, oldest first."""
        with self._lock:
            return sorted(self._stamps.keys() - self._dropped)

    def keep(self, stamp: Stamp) -> None:
        """A checkpoint is complete."""
        with self._lock:
            self._stamps[stamp.number] = stamp

    def drop(self, number: int) -> Stamp | None:
        """A checkpoint is to go, known or not: its stamp if it is known, and `is_read` says that it stays for now."""
        with self._lock:
            if self._readers[number]:
                self._dropped.add(number)
                return None
            return self._stamps.pop(number, None)

    def is_read(self, number: int) -> bool:
        """Tell whether a checkpoint is being read."""
        with self._lock:
            return self._readers[number] > 0

    @contextmanager
    def newest(self) -> Iterator[Stamp | None]:
        """The newest one, which stays as long as the block lasts."""
        with self._lock:
            number = max(self._stamps.keys() - self._dropped, default=0)
            stamp = self._stamps.get(number)
            self._readers[number] += 1
        try:
            yield stamp
        finally:
            with self._lock:
                self._readers[number] -= 1
                if not self._readers[number] and number in self._dropped:
                    self._dropped.discard(number)
                    self._stamps.pop(number, None)
