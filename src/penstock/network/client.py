# SPDX-License-Identifier: Apache-2.0
"""The client side of one environment: one shared connection for each remote environment, many channels on each.

Rules. Concurrent requesters of an address wait for the same attempt and get the same outcome, each with an error of
its own; a failed attempt is forgotten, so that the next request tries anew; a requester that is cancelled does not
cancel the attempt of the others. A connection stays when its last channel has ended, for later tasks and jobs. A lost
connection is told to all its channels once and forgotten at once.

A connection on which nothing arrives for a while is pinged, and given up after MISSES unanswered intervals.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from penstock.connection.frame_connection import FrameConnection
from penstock.connection.handshake import Credentials, Service
from penstock.connection.opening import Opener, OpeningSettings
from penstock.connection.transport import Endpoint, Transport
from penstock.errors import EnvironmentLostError, PenstockError
from penstock.network.flow import CREDIT, FlowControl, ReceiverBuffers
from penstock.network.messages import Message
from penstock.network.receiver import ChannelRequest, ChannelSink, ConnectionCore, RemoteInputChannel

MISSES: Final = 3
"""Intervals without a byte from the peer: one may be a busy loop, three in a row are not."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Limits of a connection manager. Times in seconds."""

    opening: OpeningSettings = field(default_factory=OpeningSettings)
    keepalive_interval: float = 15.0


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """A snapshot of a connection manager."""

    connections_opened: int
    connections: int
    channels: int
    bytes_received: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class Route:
    """Connections are told apart by where they lead, and by their flow control."""

    address: str
    flow: FlowControl


class _ClientConnection:
    """A FrameConnection with its core and its keep-alive timer."""

    def __init__(self, endpoint: Endpoint, route: Route, manager: ConnectionManager, interval: float) -> None:
        self.route = route
        self.address = route.address
        self.core = ConnectionCore(route.address, flow=route.flow)
        self.frames = FrameConnection[Message](endpoint, self.core, lambda _, __: self._closed())
        self.core.stop_reading, self.core.go_on_reading = self.frames.stop_reading, self.frames.go_on_reading
        self._manager = manager
        self._interval = interval
        self._seen = self._misses = self._token = 0
        self._timer = asyncio.get_running_loop().call_later(interval, self._keep_alive)

    def _keep_alive(self) -> None:
        if self.frames.bytes_received != self._seen or not self.frames.is_reading:
            self._seen, self._misses = self.frames.bytes_received, 0
        else:
            self._misses += 1
        if self._misses > MISSES:
            silence = self._misses * self._interval
            self.frames.close(EnvironmentLostError(f"{self.address} did not answer for {silence:.0f} s: it was lost"))
            return
        if self._misses:
            self._token += 1
            self.core.ping(self._token)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._keep_alive)

    def _closed(self) -> None:
        self._timer.cancel()
        self._manager.forget(self)


class ConnectionManager:
    """Opens channels to remote partitions."""

    def __init__(
        self,
        transport: Transport,
        credentials: Credentials,
        settings: ClientSettings = ClientSettings(),
    ) -> None:
        self._opener = Opener(transport, Service.PARTITIONS, credentials, settings.opening)
        self._keepalive = settings.keepalive_interval
        self._attempts: dict[Route, asyncio.Task[_ClientConnection]] = {}
        self._connections: dict[Route, _ClientConnection] = {}
        self._is_closed = False
        self._bytes_received = self._bytes_sent = 0
        self.connections_opened = 0

    async def request_partition(
        self,
        address: str,
        request: ChannelRequest,
        sink: ChannelSink,
        credit: ReceiverBuffers,
        flow: FlowControl = CREDIT,
    ) -> RemoteInputChannel:
        """Open a channel; data, events and errors of the partition reach the sink.

        Raises EnvironmentLostError where the environment cannot be reached, AuthenticationError, SettingError.
        """
        connection = await self._connection(Route(address, flow))
        return connection.core.open_channel(request, sink, credit)

    def statistics(self) -> ClientStatistics:
        """Counters and what is open now."""
        connections = self._connections.values()
        return ClientStatistics(
            self.connections_opened,
            len(connections),
            sum(connection.core.channels for connection in connections),
            self._bytes_received + sum(connection.frames.bytes_received for connection in connections),
            self._bytes_sent + sum(connection.frames.bytes_sent for connection in connections),
        )

    async def close(self) -> None:
        """Close every connection; their channels get an EnvironmentLostError. Idempotent."""
        self._is_closed = True
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in list(self._connections.values()):
            connection.frames.close()

    def forget(self, connection: _ClientConnection) -> None:
        """A connection has ended: the next request opens another."""
        self._bytes_received += connection.frames.bytes_received
        self._bytes_sent += connection.frames.bytes_sent
        if self._connections.get(connection.route) is connection:
            del self._connections[connection.route]

    async def _connection(self, route: Route) -> _ClientConnection:
        if self._is_closed:
            raise EnvironmentLostError("the connection manager of this environment is closed")
        connection = self._connections.get(route)
        if connection is not None:
            return connection
        attempt = self._attempts.get(route)
        if attempt is None:
            attempt = asyncio.get_running_loop().create_task(self._open(route))
            self._attempts[route] = attempt
        try:
            return await asyncio.shield(attempt)
        except PenstockError as error:
            raise type(error)(*error.args) from error
        except asyncio.CancelledError:
            if self._is_closed and attempt.cancelled():
                raise EnvironmentLostError("the connection manager of this environment was closed") from None
            raise

    async def _open(self, route: Route) -> _ClientConnection:
        try:
            endpoint = await self._opener.open(route.address)
            connection = _ClientConnection(endpoint, route, self, self._keepalive)
            self._connections[route] = connection
            self.connections_opened += 1
            return connection
        finally:
            del self._attempts[route]
