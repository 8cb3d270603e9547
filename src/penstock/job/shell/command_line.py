# SPDX-License-Identifier: Apache-2.0
"""The commands for one environment, over whichever stream it listens to: the last one that it opened.

A command is kept until the environment has said that it has it, so a new stream goes on where the broken one ended.
Lives on the JobMaster's event loop.
"""

from __future__ import annotations

import asyncio

from penstock.link.commands import Command
from penstock.link.outbox import Outbox


class CommandLine:
    """The commands to one environment."""

    def __init__(self) -> None:
        self.is_open = False
        """True if the environment listens now."""
        self._outbox: Outbox[Command] = Outbox()
        self._changed = asyncio.Event()
        self._outbox.wake = self._changed.set
        self._streams = 0

    def put(self, command: Command) -> None:
        """Tell this, after everything else."""
        self._outbox.put(command)

    def taken(self, number: int) -> None:
        """The environment has the commands up to this one; idempotent. Raises ProtocolError."""
        self._outbox.taken(number)

    def open(self, taken: int) -> int:
        """A new stream, for an environment that has the commands up to `taken`; ends the one before."""
        self.taken(taken)
        self._streams += 1
        self.is_open = True
        self._changed.set()
        return self._streams

    def close(self, stream: int) -> bool:
        """This stream has ended; whether the environment listens to no other."""
        if stream == self._streams:
            self.is_open = False
        return not self.is_open

    async def next(self, stream: int, after: int) -> tuple[int, Command] | None:
        """The next command after this number, with its own; None if there is a newer stream."""
        while stream == self._streams:
            found = self._outbox.after(after)
            if found is not None:
                return found
            self._changed.clear()
            await self._changed.wait()
        return None
