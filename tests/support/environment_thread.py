# SPDX-License-Identifier: Apache-2.0
"""A real environment in a thread of the test: host, event loop and sessions, and tasks attached by socket pairs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from penstock.attachment.attachment import Attachment
from penstock.connection.handshake import Credentials, Handshake, Role, Service
from penstock.environment.config import HostConfig
from penstock.environment.host import Host
from penstock.link.rendezvous import Rendezvous
from penstock.link.welcome import enter
from penstock.settings import Settings
from penstock.testing import DEADLINE

SEGMENT = 4096
T = TypeVar("T")


class EnvironmentThread:
    """One environment without process, lock or network; made by `environment`."""

    def __init__(self, folder: Path, segments: int) -> None:
        folder.mkdir()
        self._folder = folder
        self.secret = secrets.token_bytes(32)
        size = {"segmentSize": str(SEGMENT), "memory": str(SEGMENT * segments)}
        settings = Settings.from_conf({f"spark.penstock.network.{key}": value for key, value in size.items()})
        config = HostConfig("application", self.secret, "", settings, Rendezvous(folder))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="environment")
        self._thread.start()
        self.host: Host = self.run(lambda: Host(config))

    def run(self, work: Callable[[], T]) -> T:
        """Run something on the environment's loop."""

        async def on_loop() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(DEADLINE)

    def connect(self) -> socket.socket:
        """A task's connection, of which nothing is proved yet."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.run(lambda: self.host.accept(theirs))
        return ours

    def attach(self) -> Attachment:
        """A task's attachment."""
        ours = self.connect()
        handshake = Handshake(
            Role.CLIENT, Service.TASKS, Credentials("test", self.secret), "the environment's thread"
        )
        return Attachment(ours, *enter(ours, handshake, DEADLINE), Rendezvous(self._folder), DEADLINE)

    def close(self) -> None:
        """End it; what it held is given back."""
        asyncio.run_coroutine_threadsafe(self.host.close(), self._loop).result(DEADLINE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextlib.contextmanager
def environment(folder: Path, segments: int = 64) -> Iterator[EnvironmentThread]:
    """An environment for a `with` block."""
    found = EnvironmentThread(folder / "environment", segments)
    try:
        yield found
    finally:
        found.close()
