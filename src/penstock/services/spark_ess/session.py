# SPDX-License-Identifier: Apache-2.0
"""A connection to a shuffle service without its socket: login, requests and their answers, chunks. Pure.

Rules: what is asked before the login has ended waits for it. Answers come by number, chunks in the order in which
they were asked for; anything else is a ProtocolError. A login that the other side refuses is an AuthenticationError.
After a login that ends in encryption nothing goes out in plain text, and nothing that comes so is taken.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

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

if TYPE_CHECKING:
    from penstock.services.spark_ess.seals import WireSeal

_LOGIN = 0
"""The number of the requests of a login; others count from 1."""
_HINTS = {
    "Expected SaslMessage": "It does not encrypt, and nothing falls back to plain text here: set"
    " spark.network.crypto.enabled=true for the service, too, or to false for this application",
    "Unknown challenge": "It wants the login of spark.network.crypto.enabled=true: set it for this application, too",
}
_OTHER_HINT = "The secret (spark.authenticate.secret) must be the service's own, and the application's id known to it"


class Login(Protocol):
    """A way to prove who is there."""

    name: str
    seal: WireSeal | None
    """The encryption of all that follows, once it has ended, if it ends in one."""

    def first(self) -> bytes:
        """The body of the first request."""

    def answer(self, body: bytes) -> bytes | None:
        """The body of the next request, or None: this side believes the other."""


class Session:
    """One connection."""

    __slots__ = (
        "_due",
        "_has_opened",
        "_login",
        "_most",
        "_numbers",
        "_open",
        "_outgoing",
        "_reader",
        "_seal",
        "_waiting",
    )

    def __init__(self, login: Login | None, most: int) -> None:
        self._most = most
        self._reader = message_reader(most)
        self._seal: WireSeal | None = None
        self._has_opened = False
        """Something that was encrypted has come, and made sense."""
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
        found, self._outgoing = b"".join(self._outgoing), []
        return self._seal.sealed(found) if found and self._seal is not None else found

    def closed(self) -> str:
        """The meaning of an end of the connection."""
        if self._seal is None or self._has_opened:
            return "the shuffle service closed the connection"
        return (
            "the shuffle service closed the connection after the login: its spark.network.crypto.cipher and"
            " .authEngineVersion must be those of this application"
        )

    def room(self) -> memoryview:
        """The memory that the next bytes go to."""
        return self._reader.room() if self._seal is None else self._seal.room()

    def received(self, count: int) -> list[Message]:
        """So many bytes have come to `room()`; the messages that they complete."""
        if self._seal is None:
            return self._taken(self._reader.received(count))
        found: list[Message] = []
        for plain in self._seal.opened(count):
            left = plain
            while left:
                room = self._reader.room()
                size = min(len(room), len(left))
                room[:size], left = left[:size], left[size:]
                found += self._taken(self._reader.received(size))
        return found

    def _taken(self, messages: list[Message]) -> list[Message]:
        """The messages that are not about the session itself."""
        seal, found = self._seal, []
        for message in messages:
            if self._seal is not seal:
                raise ProtocolError("a message came in plain text after a login that ends in encryption")
            if self._is_for_others(message):
                found.append(message)
        self._has_opened = self._has_opened or (seal is not None and bool(messages))
        return found

    def _send(self, frame: bytes) -> None:
        (self._outgoing if self.is_ready else self._waiting).append(frame)

    def _is_for_others(self, message: Message) -> bool:
        match message:
            case Answer(request, body) if request == _LOGIN and self._login is not None:
                self._go_on(self._login, body)
                return False
            case Failure(request, text) if request == _LOGIN and self._login is not None:
                raise _refused(self._login, text)
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
        if login.seal is not None:
            self._seal, self._reader = login.seal, message_reader(self._most)
        self._outgoing += self._waiting
        self._waiting.clear()


def _refused(login: Login, text: str) -> AuthenticationError:
    """The error for a login that the service refuses, with the settings that may be wrong."""
    hint = next((hint for word, hint in _HINTS.items() if word in text), _OTHER_HINT)
    return AuthenticationError(f"the shuffle service refused the login by {login.name}: {text.rstrip('.')}. {hint}")
