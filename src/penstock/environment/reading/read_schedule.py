# SPDX-License-Identifier: Apache-2.0
"""Which reader of which file reads next: in the order of the file, from a bounded number of chunks, none starving.

Rules:

- A reader wishes for its next chunk with the file and the offset where that begins; it has one wish at a time.
- Of one file the wishes are granted in ascending order of their offsets: a *scan*. A wish after the scan, or where
  it stands, waits for the next one, which begins at the lowest offset that is wished for then. A scan only moves
  forward, so it ends however many readers arrive, and a wish is granted before the second scan after it begins.
- Files take turns, `TURN` chunks each, so that a disk reads on in one file for a while.
- A granted wish takes one of `chunks` permits, until the chunk was sent or dropped (`give_back`). Readers wish for no
  more than their peers have credit for, so a peer that does not read holds no permit.

Sans-I/O, one thread. Non-goal: how long a chunk is.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Generic, TypeVar

TURN = 8
"""Chunks of one file in a row while others wait: enough to read on, few enough to be fair."""

R = TypeVar("R")


class _Scan(Generic[R]):
    """The wishes for one file: those before the scan, in order, and those for the next one."""

    __slots__ = ("ahead", "behind", "position")

    def __init__(self) -> None:
        self.position = -1
        self.ahead: list[tuple[int, int, R]] = []
        self.behind: list[tuple[int, int, R]] = []

    def add(self, wish: tuple[int, int, R]) -> None:
        """Take a wish into this scan, or into the next."""
        heapq.heappush(self.ahead if wish[0] > self.position else self.behind, wish)

    def pop(self) -> tuple[int, int, R] | None:
        """The next wish of the scan; where there is none before it, a new scan begins at the lowest."""
        if not self.ahead:
            self.ahead, self.behind = self.behind, self.ahead
            self.position = -1
        if not self.ahead:
            return None
        wish = heapq.heappop(self.ahead)
        self.position = wish[0]
        return wish


class ReadSchedule(Generic[R]):
    """The wishes of all readers of an environment."""

    __slots__ = ("_chunks", "_free", "_numbers", "_scans", "_turn", "_turns", "_wishes")

    def __init__(self, chunks: int) -> None:
        if chunks < 1:
            raise ValueError(f"a schedule of {chunks} chunks: it takes at least one")
        self._chunks = self._free = chunks
        self._scans: dict[str, _Scan[R]] = {}
        self._turns: deque[str] = deque()
        self._turn = 0
        self._wishes: dict[R, int] = {}
        self._numbers = itertools.count()

    @property
    def held(self) -> int:
        """Chunks that are being read, or wait to be sent."""
        return self._chunks - self._free

    @property
    def waiting(self) -> int:
        """Wishes that are not granted yet."""
        return len(self._wishes)

    def want(self, reader: R, file: str, offset: int) -> None:
        """A reader wishes for the chunk that begins here; ValueError where it has a wish already."""
        if reader in self._wishes:
            raise ValueError(f"{reader} wishes for two chunks at once")
        number = self._wishes[reader] = next(self._numbers)
        scan = self._scans.get(file)
        if scan is None:
            scan = self._scans[file] = _Scan()
            self._turns.append(file)
        scan.add((offset, number, reader))

    def withdraw(self, reader: R) -> None:
        """The reader has gone; idempotent."""
        self._wishes.pop(reader, None)

    def next(self) -> R | None:
        """Whose wish is granted now, with a permit that `give_back` returns; None while there is none to grant."""
        while self._free and self._turns:
            file = self._turns[0]
            wish = self._scans[file].pop()
            if wish is None:
                del self._scans[file]
                self._turns.popleft()
                self._turn = 0
                continue
            _, number, reader = wish
            if self._wishes.get(reader) != number:
                continue  # withdrawn
            del self._wishes[reader]
            self._free -= 1
            self._end_turn()
            return reader
        return None

    def give_back(self) -> None:
        """A chunk was sent or dropped; ValueError where none was out."""
        if self._free == self._chunks:
            raise ValueError("a permit is given back that nobody held")
        self._free += 1

    def _end_turn(self) -> None:
        self._turn += 1
        if self._turn >= TURN:
            self._turn = 0
            self._turns.rotate(-1)
