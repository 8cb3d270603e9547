# SPDX-License-Identifier: Apache-2.0
"""The side that is connected to: lets in only peers that prove the application's secret.

Rules. Of a connection 300 bytes are read before it has proved itself, and it has ten seconds for them, however it
spreads them. Those under way are few, and few of one source (`unauthenticated`): for a new one the first one goes.
Callbacks only: each costs a small object and a timer, and `close` leaves none. Refusals are logged (`refusals`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.connection.handshake import Handshake, Role, Secrets, Service
from penstock.connection.opening import HANDSHAKE_SECONDS
from penstock.connection.refusals import RefusalLog
from penstock.connection.transport import Endpoint, binding_of
from penstock.connection.unauthenticated import MOST, MOST_OF_ONE, Unauthenticated
from penstock.errors import PenstockError

log = logging.getLogger("penstock.connection")

E = TypeVar("E", bound=Endpoint)


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Limits of a door: seconds for a handshake; how many may be on the way in, and how many of one source."""

    handshake_timeout: float = HANDSHAKE_SECONDS
    most: int = MOST
    most_of_one: int = MOST_OF_ONE


class Door(Generic[E]):
    """The way in to one service; `enter` takes an endpoint that has proved itself, and its identity."""

    def __init__(
        self,
        service: Service,
        credentials: Secrets,
        enter: Callable[[E, str], None],
        settings: DoorSettings = DoorSettings(),
    ) -> None:
        self._service = service
        self._credentials = credentials
        self._enter = enter
        self._settings = settings
        self._waiting = Unauthenticated[_Greeting[E]](settings.most, settings.most_of_one)
        self._log = RefusalLog()
        self._is_closed = False
        self.refused = 0
        """The number of those that have come, and not come in."""

    @property
    def waiting(self) -> int:
        """The number of those on the way in."""
        return len(self._waiting)

    def come(self, endpoint: E) -> None:
        """A peer has connected."""
        if self._is_closed:
            self._refuse(endpoint, "it has come too late")
            return
        handshake = Handshake(Role.SERVER, self._service, self._credentials, endpoint.peer)
        greeting = _Greeting(endpoint, handshake, self._over)
        first = self._waiting.enter(greeting, endpoint.peer.rpartition(":")[0] or endpoint.peer)
        greeting.start(self._settings.handshake_timeout)
        if first is not None:
            first.end("it has proved nothing yet, and too many others want to")

    def close(self) -> None:
        """Let no peer in any more; those on the way are closed. Idempotent."""
        self._is_closed = True
        for greeting in list(self._waiting):
            greeting.end("this end is closing")

    def _over(self, greeting: _Greeting[E], cause: str | None) -> None:
        """A handshake has ended, well if there is no cause."""
        self._waiting.leave(greeting)
        if cause is not None:
            self._refuse(greeting.endpoint, cause)
            return
        try:
            self._enter(greeting.endpoint, greeting.identity)
        except PenstockError as error:
            self._refuse(greeting.endpoint, str(error))
        except BaseException:
            greeting.endpoint.close()
            raise

    def _refuse(self, endpoint: E, cause: str) -> None:
        endpoint.close()
        self.refused += 1
        if self._is_closed:
            return
        self._log.say(endpoint.peer, cause)


class _Greeting(Generic[E]):
    """One connection on its way in."""

    __slots__ = ("_deadline", "_handshake", "_over", "_unsent", "endpoint")

    def __init__(self, endpoint: E, handshake: Handshake, over: Callable[[_Greeting[E], str | None], None]) -> None:
        self.endpoint = endpoint
        self._handshake = handshake
        self._over = over
        self._unsent = memoryview(b"")
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> str:
        """The identity that it has proved."""
        return self._handshake.peer_identity

    def start(self, seconds: float) -> None:
        """Begin to listen to it."""
        late = f"it has not proved the application's secret within {seconds:g} s"
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.end, late)
        self.endpoint.set_readable(self._readable)

    def end(self, cause: str | None) -> None:
        """It is refused for this cause, or let in; once."""
        if self._deadline is None:
            return
        self._deadline.cancel()
        self._deadline = None
        self.endpoint.set_readable(None)
        self.endpoint.set_writable(None)
        self._over(self, cause)

    def _readable(self) -> None:
        if len(self._unsent):
            return  # it has not taken our last word, so it has nothing to say
        try:
            target = memoryview(bytearray(self._handshake.missing))
            count = self.endpoint.receive_nowait(target)
            if count is not None:
                self._handshake.bind(binding_of(self.endpoint))  # known with the first bytes
                self._handshake.feed(bytes(target[:count]))
                self._say()
        except PenstockError as error:
            self._last_word()
            self.end(str(error))
        except OSError as error:
            self.end(f"its connection broke: {error}")

    def _say(self) -> None:
        self._unsent = memoryview(self._handshake.outgoing())
        self._writable()

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[self.endpoint.send_nowait([self._unsent]) if len(self._unsent) else 0 :]
        except PenstockError as error:
            self.end(str(error))
            return
        except OSError as error:
            self.end(f"its connection broke: {error}")
            return
        if len(self._unsent):
            self.endpoint.set_readable(None)
            self.endpoint.set_writable(self._writable)
        elif self._handshake.is_done:
            self.end(None)
        else:
            self.endpoint.set_writable(None)
            self.endpoint.set_readable(self._readable)

    def _last_word(self) -> None:
        word = self._handshake.outgoing()
        if word:
            try:
                self.endpoint.send_nowait([word])
            except (OSError, PenstockError) as error:
                log.debug("%s has gone: %s", self.endpoint.peer, error)
