# SPDX-License-Identifier: Apache-2.0
"""The two doors of the host service, and the connections that have come in.

Rules: a socket at which another process listens is left alone. Over the port a handshake proves the application's key
(`connection/door.py`). Over the Unix socket there are few who have not said who they are, few of one user, and for
ten seconds. The memory of a user goes after his last connection, when no disk has any of it. A connection that would
be more than its user's share is closed (`budgets`), and so is one whose question does not come whole within
`HALF_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from pathlib import Path
from typing import NamedTuple

from penstock.connection.budgets import UserBudgets
from penstock.connection.door import Door
from penstock.connection.frame_connection import FrameConnection
from penstock.connection.handshake import Service
from penstock.connection.opening import HANDSHAKE_SECONDS
from penstock.connection.protection import Protection
from penstock.connection.refusals import RefusalLog
from penstock.connection.sockets import SocketEndpoint, SocketListener, unix_listening
from penstock.connection.transport import Endpoint, Listener
from penstock.connection.unauthenticated import Unauthenticated
from penstock.errors import PenstockError, ProtocolError, QuotaError, SettingError, VersionError
from penstock.external.accounts import Account
from penstock.external.chunk_memory import ChunkMemory
from penstock.external.clients import ClientSession, Message, user_of
from penstock.external.keeper import Keeper
from penstock.external.requests import CHUNK_BYTES

log = logging.getLogger("penstock.external")

HALF_SECONDS = 30.0
_LOOK_SECONDS = 5.0
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
    """The doors over one keeper. `memory` bytes for each user."""

    def __init__(self, keeper: Keeper, memory: int, budgets: UserBudgets) -> None:
        self._keeper = keeper
        self._budgets = budgets
        self._most = memory // CHUNK_BYTES
        self._memories: dict[int, ChunkMemory] = {}
        self._sessions: dict[FrameConnection[Message], ClientSession] = {}
        self._users: dict[FrameConnection[Message], int] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._strangers = Unauthenticated[FrameConnection[Message]](_STRANGERS, _STRANGERS_OF_ONE)
        self._listeners: list[Listener | SocketListener] = []
        self._refusals = RefusalLog()
        self._door = Door[Endpoint](Service.EXTERNAL, keeper, self._enter)
        self._bound: tuple[Path, int] | None = None
        """The Unix socket, and the number of its file."""
        self._given: dict[str, GivenBytes] = {}
        """The bytes given over connections that have ended, by application."""

    @property
    def refused(self) -> int:
        """Those who could not prove who they are."""
        return self._door.refused

    def given(self) -> dict[str, GivenBytes]:
        """The bytes that readers of applications got, over connections that have ended and those there are."""
        found = dict(self._given)
        for session in self._sessions.values():
            if session.account is not None:
                name = session.account.key.name
                found[name] = found.get(name, GivenBytes()).and_of(session)
        return found

    def memory_bytes(self) -> dict[int, int]:
        """The bytes that each user's memory takes now."""
        return {user: memory.bytes for user, memory in self._memories.items()}

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
        self._look()
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
        if self._looking is not None:
            self._looking.cancel()
        for connection in list(self._sessions):
            connection.close()

    def _enter(self, endpoint: Endpoint, identity: str) -> None:
        account = self._keeper.accounts.find(identity)
        if account is None:
            raise PenstockError("its application has just ended")
        self._serve(endpoint, account, account.user)

    def _came(self, connected: socket.socket, _: object) -> None:
        try:
            user = user_of(connected)
        except OSError as error:
            log.debug("somebody has come and gone: %s", error)
            connected.close()
            return
        try:
            connection = self._serve(SocketEndpoint(connected, f"a task of user {user}"), None, user)
        except QuotaError as error:
            self._refusals.say(f"a task of user {user}", error)
            return
        first = self._strangers.enter(connection, str(user))
        asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._look_at, connection)
        if first is not None:
            self._look_at(first)

    def _look_at(self, connection: FrameConnection[Message]) -> None:
        """Close the connection of one that has not said which application it is."""
        self._strangers.leave(connection)
        session = self._sessions.get(connection)
        if session is not None and session.account is None and not session.is_introducing:
            log.warning("%s has not said which application it is", connection.peer)
            connection.close()

    def _serve(self, endpoint: Endpoint, account: Account | None, user: int) -> FrameConnection[Message]:
        share = self._budgets.enter(user)
        if share is None:
            endpoint.close()
            raise QuotaError(
                f"user {user} has as many connections as one may have here, {self._budgets.of_one} where nobody else"
                " has any. Run fewer tasks at a time, or ask for a larger LimitNOFILE and --memory"
            )
        memory = self._memories.setdefault(user, ChunkMemory(self._most))
        session = ClientSession(self._keeper, endpoint, account, memory, share)
        connection = FrameConnection(endpoint, session, self._closed)
        session.connection = connection
        self._sessions[connection], self._users[connection] = session, user
        return connection

    def _forget_memory(self, user: int) -> None:
        """Let the memory of a user go who has no connection, if no disk has any of it: else he has it twice."""
        memory = self._memories.get(user)
        if memory is not None and memory.is_idle and user not in self._budgets:
            del self._memories[user]

    def _look(self) -> None:
        """Close connections whose question has come in part, and does not go on."""
        for user in list(self._memories):
            self._forget_memory(user)
        self._looking = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        late = time.monotonic() - HALF_SECONDS
        for connection, session in list(self._sessions.items()):
            if 0 < session.questions.since < late and connection.is_reading:
                connection.close(ProtocolError(f"a question has not come whole within {HALF_SECONDS:.0f} s"))

    def _closed(self, connection: FrameConnection[Message], error: BaseException | None) -> None:
        session = self._sessions.pop(connection, None)
        user = self._users.pop(connection, None)
        if user is not None:
            self._budgets.leave(user)
            self._forget_memory(user)
        self._strangers.leave(connection)
        if isinstance(error, ProtocolError | VersionError):
            self._refusals.say(connection.peer, error)
        if session is None or session.account is None:
            return
        account = session.account
        name = account.key.name
        self._given[name] = self._given.get(name, GivenBytes()).and_of(session)
        if not account.connections and self._keeper.accounts.find(name) is None:
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
