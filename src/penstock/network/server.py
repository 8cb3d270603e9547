# SPDX-License-Identifier: Apache-2.0
"""The data server of one environment: serves partitions over each connection that has come in by its door.

Rules. A request for a partition that is not produced yet waits `request_timeout` seconds for it and is then answered
*not produced*. Losing a connection releases all its views. A peer that takes
nothing of what waits for it for `stall_timeout` seconds is given up: what was read for it would be kept from others.
`close` leaves no task, socket, timer or callback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.connection.door import Door, DoorSettings
from penstock.connection.frame_connection import FrameConnection, WaterMarks
from penstock.connection.frames import OutgoingFrame
from penstock.connection.handshake import Credentials, Service
from penstock.connection.transport import Endpoint, Listener, PatientEndpoint, Transport
from penstock.errors import EnvironmentLostError, ProtocolError
from penstock.network.flow import FlowControl
from penstock.network.messages import Message, PartitionRequest
from penstock.network.sender import PartitionRequestQueue
from penstock.network.views import PartitionProvider

logger = logging.getLogger("penstock.network")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a data server. Times in seconds, sizes in bytes.

    `marks` are those of connections whose flow control has none of its own.
    """

    segment_size: int = 512 << 10
    request_timeout: float = 10.0
    stall_timeout: float = 60.0
    door: DoorSettings = field(default_factory=DoorSettings)
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
        self.adopt: Callable[[FlowControl], None] = lambda _: None
        """Called with the flow control of each request, which is always the same."""

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
        if isinstance(message, PartitionRequest):
            self.adopt(self._queue.flow)
            if self._queue.is_waiting(message.receiver):
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

    def watch(self, connection: FrameConnection[Message], patience: float) -> None:
        """Give the connection up when bytes wait for a whole `patience` and none is taken, if that is a fault."""
        if connection.is_closed:
            return
        if connection.pending and connection.bytes_sent == self._sent and not self._queue.flow.is_stopped_by_window:
            gone = f"{connection.peer} has taken nothing for {patience:g} s: it hangs or was lost"
            connection.close(EnvironmentLostError(gone))
            return
        self._sent = connection.bytes_sent
        self._watch = self._loop.call_later(patience, self.watch, connection, patience)

    def _expire(self, receiver: int) -> None:
        self._deadlines.pop(receiver, None)
        self._queue.expire(receiver)


class DataServer:
    """Serves the partitions of a provider to peers that know the secret. Made on its event loop."""

    def __init__(
        self,
        transport: Transport,
        provider: PartitionProvider,
        credentials: Credentials,
        settings: ServerSettings = ServerSettings(),
    ) -> None:
        self._transport = transport
        self._provider = provider
        self._settings = settings
        self._door = Door(Service.PARTITIONS, credentials, self._serve, settings.door)
        self._listener: Listener | None = None
        self._connections: dict[FrameConnection[Message], _ServedConnection] = {}
        self._accepted = self._bytes_sent = 0

    async def start(self, address: str) -> str:
        """Listen; returns the address that peers connect to."""
        self._listener = await self._transport.listen(address, self._door.come)
        return self._listener.address

    def statistics(self) -> ServerStatistics:
        """Counters and what is open now."""
        return ServerStatistics(
            self._accepted,
            self._door.refused,
            len(self._connections),
            sum(served.readers for served in self._connections.values()),
            self._bytes_sent + sum(connection.bytes_sent for connection in self._connections),
            sum(connection.pending for connection in self._connections),
        )

    def close(self) -> None:
        """Stop accepting and close every connection. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        self._door.close()
        for connection in list(self._connections):
            connection.close()

    def _serve(self, endpoint: Endpoint, _: str) -> None:
        self._accepted += 1
        queue = PartitionRequestQueue(self._provider)
        served = _ServedConnection(queue, self._settings.request_timeout)
        connection = FrameConnection(endpoint, served, self._on_closed, self._settings.marks)
        served.close = connection.close
        served.adopt = lambda flow: self._adopt(endpoint, connection, flow)
        self._connections[connection] = served
        served.watch(connection, self._settings.stall_timeout)

    def _adopt(self, endpoint: Endpoint, connection: FrameConnection[Message], flow: FlowControl) -> None:
        marks = flow.marks(self._settings.segment_size)
        if marks is not None:
            connection.set_marks(marks)
        if flow.is_stopped_by_window and isinstance(endpoint, PatientEndpoint):
            endpoint.wait_for_window()

    def _on_closed(self, connection: FrameConnection[Message], error: BaseException | None) -> None:
        self._bytes_sent += connection.bytes_sent
        self._connections.pop(connection, None)
        if isinstance(error, ProtocolError):
            logger.warning("closed the connection from %s: %s", connection.peer, error)
