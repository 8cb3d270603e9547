# SPDX-License-Identifier: Apache-2.0
"""The socket of a session with a shuffle service: nothing here waits but `wait`, and that has a deadline.

A connection that is refused or broken is a ConnectionError, whatever the system calls it; whether to try again is the
caller's.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable
from typing import Any, TypeVar, cast

from penstock.connection.protection import Protection
from penstock.services.fetching.parts import WireSession

T = TypeVar("T")
Address = tuple[str, int]

_UNDER_WAY = (0, errno.EINPROGRESS)
_MOST_AT_ONCE = 32
"""The reads from the socket in one `move`, so that several services take turns."""


class Wire:
    """One connection; it is being made when the constructor returns. With a protection it may be one of TLS."""

    def __init__(self, address: Address, session: WireSession, protection: Protection | None = None) -> None:
        self.session = session
        self._stream = session
        self._unsent = memoryview(b"")
        self.is_connecting = True
        """True until the connection is made."""
        host, port = address
        try:
            family, kind, number, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise ConnectionError(f"{host} is no host that is known here: {error}") from error
        certificate = protection.certificate_for(str(place[0])) if protection is not None else None
        if certificate is not None:
            from penstock.services.fetching.sealed import BoundSession, SealedSession

            self._stream = SealedSession(cast("BoundSession", session), certificate)
        self._socket = socket.socket(family, kind | socket.SOCK_CLOEXEC, number)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = self._socket.connect_ex(place)
        if begun not in _UNDER_WAY:
            self.close()
            raise ConnectionError(f"no connection to {host}:{port}: {errno.errorcode.get(begun, begun)}")

    def fileno(self) -> int:
        """The socket's descriptor, for `select`."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """True if it can go on when the socket takes bytes."""
        return self.is_connecting or bool(self._unsent)

    def move(self) -> list[Any]:
        """Send what can be sent, take what has come. ConnectionError when there is no connection any more."""
        return self._guarded(self._move)

    def flush(self) -> None:
        """Send what was asked meanwhile, as far as the socket takes it. Errors as of `move`."""
        if not self.is_connecting:
            self._guarded(self._send)

    def wait(self, seconds: float) -> None:
        """Wait until something can be moved, or so long."""
        self._poll(seconds)

    def close(self) -> None:
        """Close it; idempotent."""
        self._socket.close()

    def _move(self) -> list[Any]:
        if self.is_connecting and not self._is_connected():
            return []
        self._send()
        found = self._receive()
        self._send()  # a login goes on at once
        return found

    @staticmethod
    def _guarded(action: Callable[[], T]) -> T:
        try:
            return action()
        except ConnectionError:
            raise
        except OSError as error:
            raise ConnectionError(f"the connection broke: {error}") from error

    def _is_connected(self) -> bool:
        if not self._poll(0):
            return False
        failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise ConnectionError(f"no connection: {errno.errorcode.get(failure, failure)}")
        self.is_connecting = False
        return True

    def _poll(self, seconds: float) -> bool:
        poll = select.poll()  # `select` takes no descriptor above 1023
        poll.register(
            self._socket, select.POLLOUT if self.is_connecting else select.POLLIN | select.POLLOUT * self.wants_write
        )
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def _send(self) -> None:
        while True:
            if not self._unsent:
                self._unsent = memoryview(self._stream.outgoing())
            if not self._unsent:
                return
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                return

    def _receive(self) -> list[Any]:
        found: list[Any] = []
        for _ in range(_MOST_AT_ONCE):
            try:
                count = self._socket.recv_into(self._stream.room())
            except BlockingIOError:
                break
            if not count:
                if found:
                    break  # said again the next time
                raise ConnectionResetError(self._stream.closed())
            found += self._stream.received(count)
        return found
