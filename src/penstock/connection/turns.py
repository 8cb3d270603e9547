# SPDX-License-Identifier: Apache-2.0
"""Turns for those who ask one process: a user who asks much at once is answered in turn with the others.

Rules: as long as few ask, a question is answered at once. In one pass of the event loop some questions are begun, as
many as are done within `PASS_SECONDS` or so, and one at the least; the others wait, and users take turns, whatever
number of connections each has. That counts from the first question of a pass, as hundreds may come in one. So a user
waits for one question of each other user, and not for all of them. A connection that waits reads nothing
meanwhile. Limit: a turn ends by itself, so a question that takes long must be cut into several.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

PASS_SECONDS: Final = 0.01
_MOST: Final = 256
"""Questions that are begun in one pass."""


class Turns:
    """The turns of the event loop; `soon` calls something in its next pass, after what is there already."""

    def __init__(
        self, soon: Callable[[Callable[[], None]], object] | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._soon = soon or _in_the_next_pass
        self._now = now
        self._line: dict[Hashable, deque[Callable[[], None]]] = {}
        """By user, whose turn it is first."""
        self._most = _MOST
        self._begun = 0
        self._began = 0.0
        self._is_counting = False

    def take(self, user: Hashable, go: Callable[[], None]) -> bool:
        """Have a turn: now, or, if that is False, when it comes."""
        self._count()
        if self._line or self._begun >= self._most or self._now() - self._began > PASS_SECONDS:
            self._line.setdefault(user, deque()).append(go)
            return False
        self._begun += 1
        go()
        return True

    async def wait(self, user: Hashable) -> None:
        """Have another turn, for more of the same question: not before the next pass."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go() -> None:
            if not turn.done():
                turn.set_result(None)

        self._count()
        self._line.setdefault(user, deque()).append(go)
        await turn

    def _count(self) -> None:
        if not self._is_counting:
            self._is_counting, self._began = True, self._now()
            self._soon(self._pass)

    def _pass(self) -> None:
        """Begin what waits, as much as one pass does in time: that is found out by trying."""
        is_late = self._now() - self._began > PASS_SECONDS
        self._most = max(1, self._most // 2) if is_late else min(_MOST, self._most + 1)
        self._begun, self._is_counting = 0, False
        began = self._now()
        try:
            while self._line and self._begun < self._most and (not self._begun or self._now() - began < PASS_SECONDS):
                user = next(iter(self._line))
                waiting = self._line.pop(user)
                go = waiting.popleft()
                if waiting:
                    self._line[user] = waiting
                self._begun += 1
                go()
        finally:  # one that raises keeps no other from its turn
            if self._begun or self._line:
                self._count()


def _in_the_next_pass(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)
