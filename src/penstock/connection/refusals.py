# SPDX-License-Identifier: Apache-2.0
"""The log of who was refused: a line a second at most, with the number of those between, however many come."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("penstock.connection")

_LOG_SECONDS = 1.0


class RefusalLog:
    """The lines of one way in. In the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._quiet_until = 0.0
        self._unsaid = 0

    def say(self, peer: str, cause: object) -> None:
        """A peer was refused, for this cause."""
        if self._loop.time() < self._quiet_until:
            self._unsaid += 1
            return
        others = f" ({self._unsaid} others since the last line)" if self._unsaid else ""
        log.warning("refused a connection from %s: %s%s", peer, cause, others)
        self._quiet_until, self._unsaid = self._loop.time() + _LOG_SECONDS, 0
