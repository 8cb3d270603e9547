# SPDX-License-Identifier: Apache-2.0
"""A connection to a shuffle service without its socket: login, requests and their answers, chunks. Pure.

Rules: what is asked before the login has ended waits for it. Answers come by number, chunks in the order in which
they were asked for; anything else is a ProtocolError. A login that the other side refuses is an AuthenticationError.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.errors import AuthenticationError, ProtocolError
from penstock.services.spark_ess.frames import (
    Answer,
    ChunkFailure,
    Failure,
    FetchedChunk,
    Message,
    chunk_request_frame,
    message_reader,
    request_frame,
)

_LOGIN = 0
"""The number of the requests of a login; others count from 1."""


class Login(Protocol):
    """A way to prove who is there."""

    name: str

    def first(self) -> bytes:
        """The body of the first request."""

    def answer(self, body: bytes) -> bytes | None:
        """The body of the next request, or None: this side believes the other."""


class Session:
    """One connection."""

    __slots__ = ("_due", "_login", "_numbers", "_open", "_outgoing", "_waiting", "reader")

    def __init__(self, login: Login | None, most: int) -> None:
        self.reader = message_reader(most)
        self._login = login
        self._numbers = _LOGIN
        self._open: set[int] = set()
        self._due: deque[tuple[int, int]] = deque()
        self._outgoing: list[bytes] = []
        self._waiting: list[bytes] = []
        if login is not None:
            self._outgoing.append(request_frame(_LOGIN, login.first()))

    @property
    def is_ready(self) -> bool:
        """True if the login has ended well, or none is needed."""
        return self._login is None

    @property
    def is_idle(self) -> bool:
        """True if nothing is due."""
        return self._login is None and not self._open and not self._due

    def ask(self, body: bytes) -> int:
        """Ask something; the number of the request."""
        self._numbers += 1
        self._open.add(self._numbers)
        self._send(request_frame(self._numbers, body))
        return self._numbers

    def fetch(self, stream: int, number: int) -> None:
        """Ask for a chunk."""
        self._due.append((stream, number))
        self._send(chunk_request_frame(stream, number))

    def outgoing(self) -> bytes:
        """The bytes to be sent now; they are given once."""
        found, self._outgoing = self._outgoing, []
        return b"".join(found)

    def closed(self) -> str:
        """The meaning of an end of the connection."""
        return "the shuffle service closed the connection"

    def room(self) -> memoryview:
        """The memory that the next bytes go to."""
        return self.reader.room()

    def received(self, count: int) -> list[Message]:
        """So many bytes have come to `reader.room()`; the messages for whoever asked."""
        return [message for message in self.reader.received(count) if self._is_for_others(message)]

    def _send(self, frame: bytes) -> None:
        (self._outgoing if self.is_ready else self._waiting).append(frame)

    def _is_for_others(self, message: Message) -> bool:
        match message:
            case Answer(request, body) if request == _LOGIN and self._login is not None:
                self._go_on(self._login, body)
                return False
            case Failure(request, text) if request == _LOGIN and self._login is not None:
                raise AuthenticationError(
                    f"the shuffle service refused the login by {self._login.name}: {text}. The secret"
                    " (spark.authenticate.secret) must be the service's own, and the application's id known to it"
                )
            case Answer(request) | Failure(request):
                if request not in self._open:
                    raise ProtocolError(f"an answer to request {request} came, which nobody has asked")
                self._open.remove(request)
            case FetchedChunk(stream, number) | ChunkFailure(stream, number):
                if not self._due or self._due.popleft() != (stream, number):
                    raise ProtocolError(f"chunk {number} of stream {stream} came out of turn")
        return True

    def _go_on(self, login: Login, body: bytes) -> None:
        following = login.answer(body)
        if following is not None:
            self._outgoing.append(request_frame(_LOGIN, following))
            return
        self._login = None
        self._outgoing += self._waiting
        self._waiting.clear()
