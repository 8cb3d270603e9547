# SPDX-License-Identifier: Apache-2.0
"""The memory of a worker that is promised to those who push, and to those who read: one cap for all. Pure.

Rules:

- Nothing is sent to a worker, and nothing read from its disk, before memory was promised for it. A promise is for one
  block, and given whole: parts of promises, spread over many, would keep each other waiting.
- Promised and held are never more than the cap. Above the high mark nothing is promised any more until it is below
  the low mark. A session's first block is promised even then while the cap has room: none starves in between.
- The application that has least gets the next promise; its sessions take turns. One application never has all, nor
  all of one user: who has nothing finds some room (`_SHARES`), but where the memory is a few blocks.
- A session that leaves gives back what it was promised and did not use; what it had sent is held until it is stored.
  One that uses no promise for long is to be ended (`pushed`): promises can't be taken back.
"""

from __future__ import annotations

from collections import Counter, deque
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


_MOST_WANTS = 65_536
_SHARES = 90, 95
"""Of a hundred: an application's, and its user's with all applications."""


@dataclass(slots=True)
class _PushParty:
    owners: tuple[str, str]
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
        self._lines: dict[str, deque[Hashable]] = {}
        """By application: the sessions that wait for a promise, in turn."""
        self._left: dict[Hashable, _PushParty] = {}
        """Sessions that have left, with bytes that are held."""
        self._shares: Counter[str] = Counter()
        """Bytes promised and held, by application and by user."""
        self.used = 0
        """Bytes promised and held."""
        self.is_over = False
        """True from the high mark on, until it is below the low one."""

    @property
    def waiting(self) -> int:
        """The number of blocks that wait for a promise."""
        return sum(len(session.wants) for session in self._sessions.values())

    def enter(self, name: Hashable, application: str = "", user: str = "/") -> None:
        """A session of an application, and its user, begins."""
        if name in self._sessions or name in self._left:
            raise ProtocolError(f"session {name} is there already")
        self._sessions[name] = _PushParty((application, user), deque(), deque())

    def want(self, name: Hashable, nbytes: int) -> None:
        """A session has a block of so many bytes. ProtocolError for one that never fits."""
        if not 0 < nbytes <= self.marks.cap:
            raise ProtocolError(f"a block takes {nbytes} bytes of memory, the worker has {self.marks.cap}")
        session = self._sessions[name]
        if len(session.wants) >= _MOST_WANTS:
            raise ProtocolError(f"more than {_MOST_WANTS} blocks of one writer wait for a promise")
        if not session.wants:
            self._lines.setdefault(session.owners[0], deque()).append(name)
        session.wants.append(nbytes)

    def promises(self) -> list[tuple[Hashable, int]]:
        """The blocks that are promised now: whose, and their bytes, in order."""
        found = []
        waiting = set(self._lines)
        while waiting:
            application = min(waiting, key=self._shares.__getitem__)
            line = self._lines[application]
            for _ in range(len(line)):
                session = self._sessions[line[0]]
                if self._has_room(session, session.wants[0]):
                    found.append(self._promise(line, session))
                    break
                line.rotate(-1)
            else:
                waiting.discard(application)
            if not line:
                del self._lines[application]
                waiting.discard(application)
        return found

    def arrived(self, name: Hashable, nbytes: int) -> None:
        """A block has come, the first that was promised; ProtocolError where none of this size was."""
        session = self._sessions[name]
        if not session.promised or session.promised[0] != nbytes:
            raise ProtocolError(f"a block that takes {nbytes} bytes came, promised was {list(session.promised)[:1]}")
        session.promised.popleft()
        session.held += nbytes

    def owes(self, name: Hashable) -> bool:
        """Tell whether a session was promised memory for blocks that have not come."""
        return bool(self._sessions[name].promised)

    def stored(self, name: Hashable, nbytes: int) -> None:
        """A block is held no more."""
        session = self._sessions.get(name) or self._left[name]
        session.held -= nbytes
        if name in self._left and not session.held:
            del self._left[name]
        self._use(session, -nbytes)

    def leave(self, name: Hashable) -> None:
        """A session ends; idempotent."""
        session = self._sessions.pop(name, None)
        if session is None:
            return
        if session.wants:
            line = self._lines[session.owners[0]]
            line.remove(name)
            if not line:
                del self._lines[session.owners[0]]
        if session.held:
            self._left[name] = session
        self._use(session, -sum(session.promised))

    def _promise(self, line: deque[Hashable], session: _PushParty) -> tuple[Hashable, int]:
        """Promise the first in line its first block; it goes to the end."""
        name, nbytes = line.popleft(), session.wants.popleft()
        if session.wants:
            line.append(name)
        session.promised.append(nbytes)
        self._use(session, nbytes)
        return name, nbytes

    def _has_room(self, session: _PushParty, nbytes: int) -> bool:
        limit = self.marks.cap if session.has_nothing or not self.is_over else self.used
        if self.used + nbytes > limit:
            return False
        return all(
            not self._shares[owner] or (self._shares[owner] + nbytes) * 100 <= self.marks.cap * share
            for owner, share in zip(session.owners, _SHARES, strict=True)
        )

    def _use(self, session: _PushParty, nbytes: int) -> None:
        self.used += nbytes
        for owner in session.owners:
            self._shares[owner] += nbytes
            if not self._shares[owner]:
                del self._shares[owner]
        self.is_over = self.used > (self.marks.low if self.is_over else self.marks.high)
