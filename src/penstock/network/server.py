# SPDX-License-Identifier: Apache-2.0
"""The data server of one environment: accepts, authenticates, and serves partitions over each connection.

Rules. A connection counts only after its handshake, which has a deadline; until then it costs one small task, and
there are at most `max_handshakes` of them, few of one host: for a new one the first one goes
(`link/unauthenticated`). A request for a partition that is not produced yet waits `request_timeout` seconds for it
and is then answered *not produced*. Losing a connection releases all its views. A peer that takes
nothing of what waits for it for `stall_timeout` seconds is given up: what was read for it would be kept from others.
`close` leaves no task, socket, timer or callback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.link.handshake import Handshake, Role
from penstock.link.unauthenticated import MOST, Unauthenticated
from penstock.network.connection import FrameConnection, WaterMarks, authenticate
from penstock.network.frames import OutgoingFrame
from penstock.network.messages import Message, PartitionRequest
from penstock.network.sender import PartitionRequestQueue
from penstock.network.transport import Endpoint, Listener, Transport
from penstock.network.views import PartitionProvider
from penstock.shuffle.errors import AuthenticationError, EnvironmentLostError, ProtocolError

logger = logging.getLogger("penstock.network")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a data server. Times in seconds."""

    handshake_timeout: float = 10.0
    request_timeout: float = 10.0
    stall_timeout: float = 60.0
    max_handshakes: int = MOST
    marks: WaterMarks = field(default_factory=WaterMarks)


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """A snapshot of a data server."""

    connections_accepted: int
    connections_refused: int
    connections: int
    readers: int
    bytes_sent: int
    bytes_pending: int


class _ServedConnection:
    """The serving core plus its deadlines: what a FrameConnection drives."""

    def __init__(self, queue: PartitionRequestQueue, request_timeout: float) -> None:
        self._queue = queue
        self._request_timeout = request_timeout
        self._loop = asyncio.get_running_loop()
        self._deadlines: dict[int, asyncio.TimerHandle] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._sent = -1
        self.decoder = queue.decoder
        self.next_frame: Callable[[], OutgoingFrame | None] = queue.next_frame
        self.farewell = queue.farewell
        self.close: Callable[[], None] = lambda: None

    @property
    def wake(self) -> Callable[[], None]:
        """The core's wake."""
        return self._queue.wake

    @wake.setter
    def wake(self, wake: Callable[[], None]) -> None:
        self._queue.wake = wake

    @property
    def readers(self) -> int:
        """The core's readers."""
        return self._queue.readers

    def receive(self, message: Message) -> None:
        """Hand to the core; start a deadline where it waits for a partition."""
        self._queue.receive(message)
        if isinstance(message, PartitionRequest) and self._queue.is_waiting(message.receiver):
            self._deadlines[message.receiver] = self._loop.call_later(
                self._request_timeout, self._expire, message.receiver
            )
        if self._queue.is_close_requested:
            self.close()

    def connection_lost(self, error: BaseException | None = None) -> None:
        """Cancel the deadlines, release the views."""
        for handle in self._deadlines.values():
            handle.cancel()
        self._deadlines.clear()
        if self._watch is not None:
            self._watch.cancel()
        self._queue.connection_lost(error)

    def watch(self, connection: FrameConnection, patience: float) -> None:
        """Give the connection up when bytes wait for a whole `patience` and none is taken."""
        if connection.is_closed:
            return
        if connection.pending and connection.bytes_sent == self._sent:
            gone = f"{connection.peer} has taken nothing for {patience:g} s: it hangs or was lost"
            connection.close(EnvironmentLostError(gone))
            return
        self._sent = connection.bytes_sent
        self._watch = self._loop.call_later(patience, self.watch, connection, patience)

    def _expire(self, receiver: int) -> None:
        self._deadlines.pop(receiver, None)
        self._queue.expire(receiver)


class DataServer:
    """Serves the partitions of a provider to peers that know the secret."""

    def __init__(
        self,
        transport: Transport,
        provider: PartitionProvider,
        secret: bytes,
        identity: str,
        settings: ServerSettings = ServerSettings(),
    ) -> None:
        self._transport = transport
        self._provider = provider
        self._secret = secret
        self._identity = identity
        self._settings = settings
        self._listener: Listener | None = None
        self._greetings: dict[asyncio.Task[None], Endpoint] = {}
        self._unauthenticated = Unauthenticated[asyncio.Task[None]](settings.max_handshakes)
        self._connections: dict[FrameConnection, _ServedConnection] = {}
        self._is_closed = False
        self._accepted = self._refused = self._bytes_sent = 0

    async def start(self, address: str) -> str:
        """Listen; returns the address that peers connect to."""
        self._listener = await self._transport.listen(address, self._on_connection)
        return self._listener.address

    def statistics(self) -> ServerStatistics:
        """Counters and what is open now."""
        return ServerStatistics(
            self._accepted,
            self._refused,
            len(self._connections),
            sum(served.readers for served in self._connections.values()),
            self._bytes_sent + sum(connection.bytes_sent for connection in self._connections),
            sum(connection.pending for connection in self._connections),
        )

    async def close(self) -> None:
        """Stop accepting and close every connection. Idempotent."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.close()
        greetings = list(self._greetings)
        for greeting in greetings:
            greeting.cancel()
        await asyncio.gather(*greetings, return_exceptions=True)

    def _on_connection(self, endpoint: Endpoint) -> None:
        if self._is_closed:
            self._refused += 1
            endpoint.close()
            return
        greeting = asyncio.get_running_loop().create_task(self._greet(endpoint))
        self._greetings[greeting] = endpoint
        greeting.add_done_callback(self._greeted)
        first = self._unauthenticated.enter(greeting, endpoint.peer.rpartition(":")[0])
        if first is not None:
            self._refused += 1
            self._greetings[first].close()  # it may not have begun
            first.cancel()

    def _greeted(self, greeting: asyncio.Task[None]) -> None:
        self._unauthenticated.leave(greeting)
        del self._greetings[greeting]

    async def _greet(self, endpoint: Endpoint) -> None:
        try:
            await self._shake(endpoint)
        except BaseException:
            endpoint.close()
            raise

    async def _shake(self, endpoint: Endpoint) -> None:
        handshake = Handshake(Role.SERVER, self._secret, self._identity, endpoint.peer)
        try:
            async with asyncio.timeout(self._settings.handshake_timeout):
                await authenticate(endpoint, handshake)
        except (AuthenticationError, TimeoutError) as error:
            endpoint.close()
            self._refused += 1
            logger.warning("refused a connection from %s: %s", endpoint.peer, str(error) or "no handshake in time")
        else:
            self._serve(endpoint)

    def _serve(self, endpoint: Endpoint) -> None:
        self._accepted += 1
        queue = PartitionRequestQueue(self._provider)
        served = _ServedConnection(queue, self._settings.request_timeout)
        connection = FrameConnection(endpoint, served, self._on_closed, self._settings.marks)
        served.close = connection.close
        self._connections[connection] = served
        served.watch(connection, self._settings.stall_timeout)

    def _on_closed(self, connection: FrameConnection, error: BaseException | None) -> None:
        self._bytes_sent += connection.bytes_sent
        self._connections.pop(connection, None)
        if isinstance(error, ProtocolError):
            logger.warning("closed the connection from %s: %s", connection.peer, error)
