# SPDX-License-Identifier: Apache-2.0
"""The memory of a worker that is promised to those who push, and to those who read: one cap for all. Pure.

Rules:

- Nothing is sent to a worker, and nothing read from its disk, before memory was promised for it. A promise is for one
  block, and given whole: parts of promises, spread over many, would keep each other waiting.
- Promised and held are never more than the cap. Above the high mark nothing is promised any more until it is below
  the low mark. A session's first block is promised even then while the cap has room: nobody starves in between.
- Sessions take turns. One that leaves gives back what it was promised and did not use; what it had sent is held until
  it is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from penstock.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class MemoryMarks:
    """Bytes: the cap, and the marks at which promises stop and go on."""

    cap: int
    high: int
    low: int

    @classmethod
    def of(cls, cap: int) -> MemoryMarks:
        """The usual marks of a cap."""
        return cls(cap, cap * 85 // 100, cap * 70 // 100)

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= self.cap:
            raise ValueError(
                f"marks {self.low} and {self.high} of {self.cap} bytes: 0 < low <= high <= cap is needed"
            )


@dataclass(slots=True)
class _PushParty:
    wants: deque[int]
    promised: deque[int]
    held: int = 0

    @property
    def has_nothing(self) -> bool:
        return not self.promised and not self.held


class PushCredit:
    """The promises of one worker."""

    def __init__(self, marks: MemoryMarks) -> None:
        self.marks = marks
        self._sessions: dict[Hashable, _PushParty] = {}
        self._turns: deque[Hashable] = deque()
        self._left_held: dict[Hashable, int] = {}
        """Bytes held of sessions that have left."""
        self.used = 0
        """Bytes promised and held."""
        self.is_over = False
        """True from the high mark on, until it is below the low one."""

    @property
    def waiting(self) -> int:
        """The number of blocks that wait for a promise."""
        return sum(len(session.wants) for session in self._sessions.values())

    def enter(self, name: Hashable) -> None:
        """A session begins."""
        if name in self._sessions or name in self._left_held:
            raise ProtocolError(f"session {name} is there already")
        self._sessions[name] = _PushParty(deque(), deque())
        self._turns.append(name)

    def want(self, name: Hashable, nbytes: int) -> None:
        """A session has a block of so many bytes. ProtocolError for one that never fits."""
        if not 0 < nbytes <= self.marks.cap:
            raise ProtocolError(f"a block takes {nbytes} bytes of memory, the worker has {self.marks.cap}")
        self._sessions[name].wants.append(nbytes)

    def promises(self) -> list[tuple[Hashable, int]]:
        """The blocks that are promised now: whose, and their bytes, in order."""
        found = []
        idle = 0
        while self._turns and idle < len(self._turns):
            name = self._turns[0]
            self._turns.rotate(-1)
            session = self._sessions[name]
            if not session.wants or not self._has_room(session, session.wants[0]):
                idle += 1
                continue
            idle = 0
            nbytes = session.wants.popleft()
            session.promised.append(nbytes)
            self._use(nbytes)
            found.append((name, nbytes))
        return found

    def arrived(self, name: Hashable, nbytes: int) -> None:
        """A block has come, the first that was promised; ProtocolError where none of this size was."""
        session = self._sessions[name]
        if not session.promised or session.promised[0] != nbytes:
            raise ProtocolError(f"a block that takes {nbytes} bytes came, promised was {list(session.promised)[:1]}")
        session.promised.popleft()
        session.held += nbytes

    def stored(self, name: Hashable, nbytes: int) -> None:
        """A block is held no more."""
        session = self._sessions.get(name)
        if session is not None:
            session.held -= nbytes
        else:
            self._left_held[name] -= nbytes
            if not self._left_held[name]:
                del self._left_held[name]
        self._use(-nbytes)

    def leave(self, name: Hashable) -> None:
        """A session ends; idempotent."""
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self._turns.remove(name)
        if session.held:
            self._left_held[name] = session.held
        self._use(-sum(session.promised))

    def _has_room(self, session: _PushParty, nbytes: int) -> bool:
        limit = self.marks.cap if session.has_nothing or not self.is_over else self.used
        return self.used + nbytes <= limit

    def _use(self, nbytes: int) -> None:
        self.used += nbytes
        self.is_over = self.used > (self.marks.low if self.is_over else self.marks.high)
