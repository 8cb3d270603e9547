# SPDX-License-Identifier: Apache-2.0
"""The environments that are attached to the JobMaster: their instruction queues, leases and last heartbeats.

Lives on the JobMaster's event loop. An environment is lost when its process is gone, or when it sends no heartbeat
for the lease time; a lost one never comes back under the same name.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.connection.frame_connection import FrameConnection
from penstock.errors import EnvironmentLostError
from penstock.link.commands import Command, Shutdown
from penstock.link.master import AttachEnvironment, Heartbeat
from penstock.link.outbox import Inbox, Outbox
from penstock.link.questions import Answers
from penstock.link.wire import Plain

_LOST_REMEMBERED = 4096


class Listening(Protocol):
    """A connection of an environment that has attached."""

    @property
    def connection(self) -> FrameConnection[Any]:
        """The connection itself."""

    def end(self) -> None:
        """The environment is given up: it hears the last command if it listens, and is hung up on."""


@dataclass(slots=True)
class AttachedEnvironment:
    """One attached environment process, as it said that it is there."""

    said: AttachEnvironment
    last_heard: float
    """Seconds of the JobMaster's clock."""
    listener: Listening | None = None
    """The connection over which its commands go now."""
    commands: Outbox[Command] = field(default_factory=Outbox)
    answers: Answers[asyncio.Future[Plain]] = field(default_factory=Answers)
    reports: Inbox = field(default_factory=Inbox)
    heard: Heartbeat | None = None
    """Its last heartbeat."""
    opened: str = ""
    """The address that it got after it had attached."""

    @property
    def name(self) -> str:
        """The environment's name, which no other has."""
        return self.said.environment

    @property
    def address(self) -> str:
        """The address at which others read its partitions; empty while it does not listen."""
        return self.said.address or self.opened


class Environments:
    """All attached environments by name."""

    def __init__(self) -> None:
        self._attached: dict[str, AttachedEnvironment] = {}
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._empty = asyncio.Event()
        self._empty.set()

    def __iter__(self) -> Iterator[AttachedEnvironment]:
        return iter(self._attached.values())

    async def wait_empty(self) -> None:
        """Wait until no environment is attached."""
        await self._empty.wait()

    def attach(self, environment: AttachedEnvironment) -> bool:
        """Take a new environment; True if another process is still attached under its name.

        One that attaches again, because our answer was lost, changes nothing.
        """
        if environment.name in self._lost:
            raise _lost(environment.name)
        found = self._attached.setdefault(environment.name, environment)
        self._empty.clear()
        return found.said != environment.said

    def get(self, name: str) -> AttachedEnvironment:
        """An attached environment; raises EnvironmentLostError where it is lost or unknown."""
        found = self._attached.get(name)
        if found is None:
            raise _lost(name)
        return found

    def silent(self) -> list[AttachedEnvironment]:
        """Those whose connection has ended."""
        return [item for item in self._attached.values() if item.listener is None]

    def is_waited_for(self, environment: AttachedEnvironment) -> bool:
        """Tell whether it is attached, is not connected, and no other process has its address."""
        if environment.listener is not None or self._attached.get(environment.name) is not environment:
            return False
        others = (item for item in self._attached.values() if item is not environment)
        return not environment.address or all(item.address != environment.address for item in others)

    def tell(self, name: str, command: Command) -> None:
        """Queue a command; nothing happens where the environment is gone."""
        found = self._attached.get(name)
        if found is not None:
            found.commands.put(command)

    def tell_all(self, command: Command) -> None:
        """Queue a command for all environments."""
        for name in list(self._attached):
            self.tell(name, command)

    def lose(self, name: str) -> bool:
        """Drop an environment for good; False if it was not attached."""
        found = self._attached.pop(name, None)
        if found is None:
            return False
        # Its connection may still be open; this ends it, and the environment if it is still there.
        found.commands.put(Shutdown())
        if found.listener is not None:
            found.listener.end()
        for work in found.answers.kept.values():
            work.cancel()
        if not self._attached:
            self._empty.set()
        self._lost[name] = None
        while len(self._lost) > _LOST_REMEMBERED:
            self._lost.popitem(last=False)
        return True

    def silent_since(self, moment: float) -> list[AttachedEnvironment]:
        """Those not heard of since a moment."""
        return [item for item in self._attached.values() if item.last_heard < moment]


def _lost(name: str) -> EnvironmentLostError:
    return EnvironmentLostError(f"environment {name} is not attached to this JobMaster any more: it must end")
