# SPDX-License-Identifier: Apache-2.0
"""The two doors of the host service, and the connections that have come in.

Rules: a socket at which another process listens is left alone. Over the port a handshake proves the application's key
(`connection/door.py`). Over the Unix socket there are few who have not said who they are, few of one user, and for
ten seconds. The memory of an application goes with its last connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import NamedTuple

from penstock.connection.door import Door
from penstock.connection.frame_connection import FrameConnection
from penstock.connection.handshake import Service
from penstock.connection.opening import HANDSHAKE_SECONDS
from penstock.connection.protection import Protection
from penstock.connection.refusals import RefusalLog
from penstock.connection.sockets import SocketEndpoint, SocketListener, unix_listening
from penstock.connection.transport import Endpoint, Listener
from penstock.connection.unauthenticated import Unauthenticated
from penstock.errors import PenstockError, ProtocolError, SettingError, VersionError
from penstock.external.accounts import Account
from penstock.external.chunk_memory import ChunkMemory
from penstock.external.clients import ClientSession, Message, user_of
from penstock.external.keeper import Keeper
from penstock.external.requests import CHUNK_BYTES

log = logging.getLogger("penstock.external")

_STRANGERS, _STRANGERS_OF_ONE = 4096, 1024
"""Tasks of one user that come at once; each says who it is with its first word."""
_SOCKET_PATH = 100
"""Linux takes 107 bytes."""


class GivenBytes(NamedTuple):
    """The bytes that were sent to readers, and those of files that they were lent."""

    fetched: int = 0
    lent: int = 0

    def and_of(self, session: ClientSession) -> GivenBytes:
        """With those of a connection."""
        return GivenBytes(self.fetched + session.bytes_given, self.lent + session.bytes_lent)


class ServiceServer:
    """The doors over one keeper. `memory` bytes for each application."""

    def __init__(self, keeper: Keeper, memory: int) -> None:
        self._keeper = keeper
        self._most = memory // CHUNK_BYTES
        self._memories: dict[str, ChunkMemory] = {}
        self._sessions: dict[FrameConnection[Message], ClientSession] = {}
        self._strangers = Unauthenticated[FrameConnection[Message]](_STRANGERS, _STRANGERS_OF_ONE)
        self._listeners: list[Listener | SocketListener] = []
        self._refusals = RefusalLog()
        self._door = Door[Endpoint](Service.EXTERNAL, keeper, self._enter)
        self._bound: tuple[Path, int] | None = None
        """The Unix socket, and the number of its file."""
        self._given: dict[str, GivenBytes] = {}
        """By application: over connections that have ended."""

    @property
    def refused(self) -> int:
        """Those who could not prove who they are."""
        return self._door.refused

    def memory_of(self, account: Account) -> ChunkMemory:
        """The memory of an application."""
        return self._memories.setdefault(account.key.name, ChunkMemory(self._most))

    def given_to(self, account: Account) -> GivenBytes:
        """The bytes that readers of an application got, over connections that have ended and those there are."""
        found = self._given.get(account.key.name, GivenBytes())
        for session in self._sessions.values():
            if session.account is account:
                found = found.and_of(session)
        return found

    def memory_bytes(self, account: Account) -> int:
        """The bytes that an application's memory takes now."""
        found = self._memories.get(account.key.name)
        return 0 if found is None else found.bytes

    async def open(self, address: str, path: Path, protection: Protection) -> str:
        """Listen; the address with its port. SettingError where it can't be had."""
        if len(str(path).encode()) > _SOCKET_PATH:
            raise SettingError(f"{path} is too long for a Unix socket: set --socket to a shorter path")
        if _is_listened_to(path):
            raise SettingError(f"another process listens at {path}: stop it, or give this service another --socket")
        try:
            self._listeners.append(SocketListener(_listening_to_all(path), str(path), self._came))
            self._bound = path, _number_of(path)
            transport = protection.transport()
            listener = await transport.listen(address.replace("tcp", transport.scheme, 1), self._door.come)
        except OSError as error:
            raise SettingError(
                f"the host service can't listen at {address} and {path}: {error}. See --host, --port and --socket"
            ) from error
        self._listeners.append(listener)
        return listener.address

    def close(self) -> None:
        """Close the doors and all connections; idempotent."""
        for listener in self._listeners:
            listener.close()
        if self._bound is not None:
            path, number = self._bound
            if _number_of(path) == number:
                path.unlink()
            self._bound = None
        self._door.close()
        for connection in list(self._sessions):
            connection.close()

    def _enter(self, endpoint: Endpoint, identity: str) -> None:
        account = self._keeper.accounts.find(identity)
        if account is None:
            raise PenstockError("its application has just ended")
        self._serve(endpoint, account)

    def _came(self, connected: socket.socket, _: object) -> None:
        try:
            user = user_of(connected)
        except OSError as error:
            log.debug("somebody has come and gone: %s", error)
            connected.close()
            return
        connection = self._serve(SocketEndpoint(connected, f"a task of user {user}"), None)
        first = self._strangers.enter(connection, str(user))
        asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._look_at, connection)
        if first is not None:
            self._look_at(first)

    def _look_at(self, connection: FrameConnection[Message]) -> None:
        """Close the connection of one that has not said which application it is."""
        self._strangers.leave(connection)
        session = self._sessions.get(connection)
        if session is not None and session.account is None:
            log.warning("%s has not said which application it is", connection.peer)
            connection.close()

    def _serve(self, endpoint: Endpoint, account: Account | None) -> FrameConnection[Message]:
        session = ClientSession(self._keeper, endpoint, account, self.memory_of)
        connection = FrameConnection(endpoint, session, self._closed)
        self._sessions[connection] = session
        return connection

    def _closed(self, connection: FrameConnection[Message], error: BaseException | None) -> None:
        session = self._sessions.pop(connection, None)
        self._strangers.leave(connection)
        if isinstance(error, ProtocolError | VersionError):
            self._refusals.say(connection.peer, error)
        if session is None or session.account is None:
            return
        account = session.account
        name = account.key.name
        self._given[name] = self._given.get(name, GivenBytes()).and_of(session)
        if not account.connections:
            self._memories.pop(name, None)
            if self._keeper.accounts.find(name) is None:
                self._given.pop(name, None)


def _number_of(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0


def _is_listened_to(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)  # the line of one that stands still may be full
        try:
            caller.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


def _listening_to_all(path: Path) -> socket.socket:
    """A socket for every user of this host: the kernel says who comes, and a key says for which application."""
    listening = unix_listening(path)
    path.chmod(0o666)
    return listening
