# SPDX-License-Identifier: Apache-2.0
"""The environment's exchange with other environments: serves its partitions, opens channels to theirs.

All channels between two environments share one connection, whatever task or job they belong to. A remote channel
receives straight into segments: exclusive ones of its own and floating ones of its gate. If memory is little for the
number of channels, the later ones do without exclusive ones: that is slower, and no channel is refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.buffer import BufferSlice, DataType
from penstock.buffer.local_pool import LocalBufferPool, LocalPoolStatistics
from penstock.buffer.view import BufferOrEvent, ServableView
from penstock.connection.protection import HostAccess
from penstock.environment.memory import HostMemory
from penstock.environment.partitions.found import Partitions
from penstock.environment.peers.addresses import DataAddresses
from penstock.environment.ports.inputs import Channel, GatePort
from penstock.environment.supervision import Supervisor
from penstock.errors import (
    EnvironmentLostError,
    PartitionLostError,
    PartitionNotProducedError,
    PenstockError,
    SettingError,
)
from penstock.network.client import ConnectionManager
from penstock.network.flow import FlowControl, ReceiverBuffers, flow_control
from penstock.network.receiver import ChannelRequest, RemoteInputChannel
from penstock.network.server import DataServer, ServerSettings
from penstock.network.uncredited import WaterLevel
from penstock.network.views import Outgoing
from penstock.settings import NetworkSettings
from penstock.shuffle import PartitionId

log = logging.getLogger("penstock.environment")

EXCLUSIVE_SHARE = 2
"""Exclusive buffers are given until this part of the memory is guaranteed: who comes later needs some too."""


class RemoteExchange:
    """Server and client of one environment."""

    def __init__(
        self,
        access: HostAccess,
        partitions: Partitions,
        memory: HostMemory,
        network: NetworkSettings,
        supervisor: Supervisor,
    ) -> None:
        transport = access.protection.transport(network.transport, network.socket_buffer)
        self._memory = memory
        self._network = network
        self._supervisor = supervisor
        provider = HostPartitions(partitions, memory)
        self._scheme = transport.scheme
        serving = ServerSettings(segment_size=network.segment_size)
        self._server = DataServer(transport, provider, access.credentials, serving)
        self._client = ConnectionManager(transport, access.credentials)
        self._gates: dict[GatePort, GateBuffers] = {}
        self.on_flag: Callable[[GatePort, bool], None] = lambda _, __: None
        """Called when a gate with throttled channels raises its flag, or takes it down."""

    async def listen(self, addresses: DataAddresses) -> str:
        """Serve at the first of these that is free; returns what others connect to. Raises SettingError."""
        failure: OSError | None = None
        choices = addresses.choices(self._scheme)
        for address in choices:
            try:
                return addresses.seen_from_outside(await self._server.start(address), self._scheme)
            except OSError as error:
                failure = error
        tried = choices[0] if len(choices) == 1 else f"{choices[0]} and the ports up to {addresses.ports[-1]}"
        raise SettingError(
            f"the environment cannot listen at {tried}: {failure}."
            " See spark.penstock.environment.bindAddress and .port"
        )

    def open(self, gate: GatePort, channel: Channel) -> None:
        """Open a channel to a partition of another environment; what goes wrong is told to the gate."""
        self._supervisor.run(lambda: self._open(gate, channel), gate.give_up)

    def floating(self, gate: GatePort) -> LocalPoolStatistics | None:
        """The floating buffers of a gate; None for one that has none, because it reads nothing from elsewhere."""
        buffers = self._gates.get(gate)
        return None if buffers is None else buffers.floating.statistics()

    def statistics(self) -> dict[str, float]:
        """Counters of both sides."""
        client, server = self._client.statistics(), self._server.statistics()
        return {
            "connections_opened": client.connections_opened,
            "connections_accepted": server.connections_accepted,
            "connections": client.connections,
            "remote_bytes_in": client.bytes_received,
            "remote_bytes_out": server.bytes_sent,
        }

    async def close(self) -> None:
        """End all connections; idempotent."""
        await self._client.close()
        self._server.close()

    async def _open(self, gate: GatePort, channel: Channel) -> None:
        source, wanted = None, channel.descriptor
        if gate.is_closed and wanted.kind.reattaches:
            return  # its place may be another reader's by now
        try:
            flow = flow_control(gate.flow_control)
            source = RemoteSource(self._memory, gate, channel, self._credit(flow, gate, channel))
            source.remote = await self._request(channel, source, flow)
        except PenstockError as error:
            if source is not None:
                source.credit.release()
            if channel.descriptor is wanted:
                gate.fail_channel(channel, lost(channel, error))
            return
        if channel.descriptor is not wanted:  # a newer attempt of the producer has come meanwhile
            source.release()
            return
        channel.figures = source.figures
        gate.attach(channel, source)

    async def _request(self, channel: Channel, source: RemoteSource, flow: FlowControl) -> RemoteInputChannel:
        descriptor, first = channel.descriptor, channel.subpartition
        request = ChannelRequest(descriptor.partition, first, first + channel.count - 1)
        return await self._client.request_partition(descriptor.address, request, source, source.credit, flow)

    def _credit(self, flow: FlowControl, gate: GatePort, channel: Channel) -> ReceiverBuffers:
        """No buffers for a gate that is closed: its channel only tells a producer that its reader has left."""
        if gate.is_closed:
            return flow.receiver((), ChannelBuffers(), WaterLevel(1, 0, lambda _: None))
        network, pool = self._network, self._memory.pool
        name = f"the gate of {gate.attempt}"
        of_gate = self._gates.get(gate) or self._open_gate(flow, gate, name)
        exclusive, count = None, network.exclusive_buffers_per_channel
        if count and pool.guaranteed + count <= pool.total // EXCLUSIVE_SHARE:
            exclusive = pool.reserve_exclusive(count, owner=f"channel {channel.index} of {name}")
            gate.on_close(exclusive.lazy_destroy)
        buffers = ChannelBuffers(of_gate.floating, exclusive)
        return flow.receiver(buffers.exclusive, buffers, of_gate.level)

    def _open_gate(self, flow: FlowControl, gate: GatePort, name: str) -> GateBuffers:
        count = max(1, flow.floating(self._network))
        floating = self._memory.pool.create_local_pool(1, count, owner=name)
        found = GateBuffers(floating, flow.level(count, lambda is_raised: self.on_flag(gate, is_raised)))
        self._gates[gate] = found
        gate.on_close(lambda: self._forget(gate))
        return found

    def _forget(self, gate: GatePort) -> None:
        found = self._gates.pop(gate, None)
        if found is not None:
            found.level.end()
            found.floating.lazy_destroy()


@dataclass(frozen=True, slots=True)
class GateBuffers:
    """The buffers that the remote channels of a gate share, and how many of them all are held."""

    floating: LocalBufferPool
    level: WaterLevel


class ChannelBuffers:
    """The buffers of one remote channel: a `FloatingSource` over the gate's pool, and its own exclusive ones."""

    def __init__(self, floating: LocalBufferPool | None = None, exclusive: LocalBufferPool | None = None) -> None:
        self._floating = floating
        self._exclusive = exclusive
        self.exclusive: list[int] = []
        while exclusive is not None and (segment := exclusive.request()) is not None:
            self.exclusive.append(segment)

    def request_floating(self) -> int | None:
        """A free floating segment, or None."""
        return None if self._floating is None or self._floating.is_destroyed else self._floating.request()

    def return_floating(self, segment: int) -> None:
        """A floating segment comes back."""
        if self._floating is not None:
            self._floating.recycle(segment)

    def return_exclusive(self, segment: int) -> None:
        """An exclusive segment of a released channel comes back."""
        if self._exclusive is not None:
            self._exclusive.recycle(segment)

    def add_listener(self, listener: Callable[[int | None], bool]) -> bool:
        """Offer the listener a segment later."""
        return self._floating is None or self._floating.add_listener(listener)


class RemoteSource:
    """A remote channel as its gate sees it, and the sink of what arrives."""

    def __init__(self, memory: HostMemory, gate: GatePort, channel: Channel, credit: ReceiverBuffers) -> None:
        self._memory = memory
        self._gate = gate
        self._channel = channel
        self._queue: deque[BufferOrEvent] = deque()
        self._marks = 0
        """Barriers in the queue that overtook rows at their sender: the task fetches what is in front of them."""
        self._error: BaseException | None = None
        self._released = False
        self.credit = credit
        self.remote: RemoteInputChannel | None = None

    @property
    def is_available(self) -> bool:
        """True if there is something to poll or a failure to pass on."""
        return not self._released and (bool(self._queue) or self._error is not None)

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more will come, once everything before was polled."""
        return None if self._queue else self._error

    @property
    def next_is_event(self) -> bool:
        """True if the next thing is an event, or rows in front of a barrier that overtook others."""
        return bool(self._queue) and (self._marks > 0 or not self._queue[0].is_buffer)

    def figures(self) -> dict[str, float]:
        """Its buffers in detail."""
        return {**self.credit.figures(), "queue": sum(item.is_buffer for item in self._queue)}

    def poll(self) -> BufferOrEvent | None:
        """The next buffer or event."""
        if not self._queue:
            return None
        item = self._queue.popleft()
        self._gate.queued -= item.is_buffer
        self._marks -= item.data_type == DataType.OVERTAKING_BARRIER
        return item

    def resume(self) -> None:
        """Go on after an aligned barrier."""
        if self.remote is not None:
            self.remote.resume()

    def release(self) -> None:
        """End the channel; idempotent."""
        if self._released:
            return
        self._released = True
        while self._queue:
            item = self._queue.popleft()
            self._gate.queued -= item.is_buffer
            if isinstance(item.payload, BufferSlice):
                self._memory.references.release(item.payload.segment)
        if self.remote is not None:
            self.remote.release()
        else:
            self.credit.release()

    def recycle(self, segment: int) -> None:
        """The segment is not needed any more: its credit is free again."""
        if self.remote is not None:
            self.remote.recycle(segment)

    def take_buffer(self, length: int) -> tuple[int, memoryview] | None:
        """A segment for incoming data."""
        segment = self.credit.take()
        return segment, self._memory.segments.view(segment)

    def on_buffer(self, segment: int, length: int, backlog: int) -> None:
        """Data is complete in its segment."""
        self._memory.references.receive(segment, self)
        if self._released:
            self._memory.references.release(segment)
            return
        self._gate.queued += 1
        self._queue.append(BufferOrEvent(DataType.DATA, BufferSlice(segment, 0, length), self._channel.subpartition))
        self._gate.available(self._channel)

    def on_event(self, data_type: int, payload: bytes) -> None:
        """An event, in order with the data, or ahead of it."""
        if not self._released:
            if data_type in (DataType.PRIORITY_EVENT, DataType.OVERTAKING_BARRIER):
                self._put_ahead(payload)
            if data_type != DataType.PRIORITY_EVENT:
                self._marks += data_type == DataType.OVERTAKING_BARRIER
                self._queue.append(BufferOrEvent(data_type, payload, self._channel.subpartition))
            self._gate.available(self._channel)

    def _put_ahead(self, payload: bytes) -> None:
        """An overtaking barrier is announced so, and comes again where it stands among the data."""
        behind = sum(each.data_type == DataType.PRIORITY_EVENT for each in self._queue)
        self._queue.insert(behind, BufferOrEvent(DataType.PRIORITY_EVENT, payload, self._channel.subpartition))

    def on_error(self, error: BaseException) -> None:
        """The channel failed."""
        self._error = lost(self._channel, error)
        self._gate.available(self._channel)


def lost(channel: Channel, error: BaseException) -> BaseException:
    """The error that a reader gets: if the producer's environment is gone, its partition is lost."""
    if not isinstance(error, EnvironmentLostError):
        return error
    descriptor = channel.descriptor
    return PartitionLostError(
        f"partition {descriptor.partition} is lost with its environment {descriptor.environment}: {error}"
    )


class HostPartitions:
    """The `PartitionProvider` of the data server: this environment's partitions, out of shared segments."""

    def __init__(self, partitions: Partitions, memory: HostMemory) -> None:
        self._partitions = partitions
        self._memory = memory

    def request_view(
        self, partition: PartitionId, first: int, last: int, listener: Callable[[], None]
    ) -> ServableView:
        """A view of a subpartition, or of a range where the partition allows; see the protocol."""
        try:
            return self._partitions.served_view(partition, first, last - first + 1, listener)
        except PartitionNotProducedError:
            self._partitions.wait(partition, lambda _: listener())
            raise

    def outgoing(self, item: BufferOrEvent) -> Outgoing:
        """A slice as memory, which goes back when it was sent. Events, and data out of files, are bytes."""
        payload = item.payload
        if not isinstance(payload, BufferSlice):
            return Outgoing(payload, item.recycle)
        segment, returned = payload.segment, item.recycle

        def recycle() -> None:
            self._memory.references.release(segment)
            if returned is not None:
                returned()

        return Outgoing(self._memory.segments.view(segment, payload.offset, payload.length), recycle)
