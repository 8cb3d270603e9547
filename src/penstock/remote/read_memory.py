# SPDX-License-Identifier: Apache-2.0
"""The memory of a worker for rows that were read and not yet sent, shared by all readers. Pure.

Rules:

- Readers take their share of a cap in the order of their coming; none overtakes another.
- A reader of whose bytes none has gone for `STANDING_SECONDS` stands still: its process was stopped, or its network
  is gone. If others wait, its bytes are counted apart, and it takes no more before some have gone. So readers that
  stand still keep no other waiting, until they hold as much as the cap and what there is beside it.
- All of it together is never more than the cap and what there is beside it, but for one read of each user who has
  nothing: it does not wait, however many readers of other users stand still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

STANDING_SECONDS: Final = 1.0


class _Wanted(NamedTuple):
    """A place in the line: the bytes, and what to call when they are there."""

    nbytes: int
    taken: Callable[[], None]
    user: str


@dataclass(slots=True)
class _Share:
    """The bytes of one reader, and the moment at which the last ones went."""

    user: str
    held: int = 0
    moved: float = 0.0
    stands: bool = False


class ReadMemory:
    """Up to `cap` bytes of readers that move, and `beside` more where others stand still."""

    def __init__(self, cap: int, beside: int) -> None:
        self._cap = cap
        self._most = cap + beside
        self.used = 0
        """Bytes."""
        self._standing = 0
        """Of these, the bytes of readers that stand still."""
        self._readers: dict[object, _Share] = {}
        self._users: Counter[str] = Counter()
        """Bytes, by user."""
        self._line: dict[object, _Wanted] = {}

    @property
    def waiting(self) -> int:
        """The number of readers that wait for bytes."""
        return len(self._line)

    def take(self, reader: object, nbytes: int, taken: Callable[[], None], now: float, user: str = "") -> bool:
        """Take so many bytes; False if they are taken later, in turn: then `taken` is called."""
        self._line[reader] = _Wanted(nbytes, taken, user)
        if self._first() is not reader:
            return False
        self._hold(reader, now)
        return True

    def give(self, reader: object, nbytes: int, now: float) -> None:
        """Give bytes back."""
        found = self._readers[reader]
        self.used -= nbytes
        self._users[found.user] -= nbytes
        if not self._users[found.user]:
            del self._users[found.user]
        if found.stands:
            self._standing -= found.held
            found.stands = False
        found.held -= nbytes
        found.moved = now
        if not found.held:
            del self._readers[reader]
        self._serve(now)

    def leave(self, reader: object, now: float) -> None:
        """A reader waits no more; idempotent."""
        if self._line.pop(reader, None) is not None:
            self._serve(now)

    def look(self, now: float) -> None:
        """See which readers stand still; to be called from time to time while one waits."""
        for found in self._readers.values():
            if not found.stands and now - found.moved >= STANDING_SECONDS:
                found.stands = True
                self._standing += found.held
        self._serve(now)

    def _first(self) -> object:
        """The reader that can go on: the first in the line of those that move, or one of a user who has nothing."""
        is_led = False
        for reader, wanted in self._line.items():
            found = self._readers.get(reader)
            if found is not None and found.stands:
                continue
            if not self._users[wanted.user] or (not is_led and self._has_room(wanted.nbytes)):
                return reader
            is_led = True
        return None

    def _serve(self, now: float) -> None:
        while (reader := self._first()) is not None:
            self._hold(reader, now)()

    def _hold(self, reader: object, now: float) -> Callable[[], None]:
        wanted = self._line.pop(reader)
        found = self._readers.setdefault(reader, _Share(wanted.user))
        if not found.held:
            found.moved = now
        found.held += wanted.nbytes
        self.used += wanted.nbytes
        self._users[wanted.user] += wanted.nbytes
        return wanted.taken

    def _has_room(self, nbytes: int) -> bool:
        return self.used - self._standing + nbytes <= self._cap and self.used + nbytes <= self._most
