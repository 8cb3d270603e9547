# SPDX-License-Identifier: Apache-2.0
"""The receiving side: one remote input channel, and the many channels that share a connection.

Events in: messages of the server (`receive`), calls of the consumer (recycle, resume, release ...), loss of the
connection. Out: `next_frame()`, and `wake()` whenever there is something for it; calls of each channel's sink.

Rules. Sequence numbers, checksums and credit are checked for each channel; a fault fails that channel, is told to its
sink once, and cancels its request; the others go on. A failed connection is told to each channel exactly once. A
payload arrives straight in the segment that the sink gave; where the channel ends in the middle, the rest is skipped
and the segment goes back at once. The amount of an ADD_CREDIT is read when the frame is written, and messages of
channels that have ended meanwhile are dropped.

Limits: of each channel one request, one credit and one cancel at most wait to be written; the rest is the consumer's
doing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.buffer.data_types import DataType
from penstock.connection.frames import OutgoingFrame
from penstock.errors import EnvironmentLostError, PenstockError, ProtocolError
from penstock.lifecycle.table import Lifecycle
from penstock.network.decoder import WAIT, FrameDecoder
from penstock.network.flow import CREDIT, FlowControl, ReceiverBuffers
from penstock.network.frames import SERVER_TYPES, outgoing, payload_checksum
from penstock.network.lifecycle import CHANNEL_TABLE, ChannelEvent, ChannelState
from penstock.network.messages import (
    AddCredit,
    BacklogAnnouncement,
    BufferHeader,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    ErrorResponse,
    Message,
    PartitionRequest,
    Ping,
    Pong,
    ResumeConsumption,
    code_to_error,
)
from penstock.shuffle.ids import PartitionId

_SEQUENCES: Final = 1 << 32


class ChannelSink(Protocol):
    """The receiver of a channel's buffers and events. Called on the event loop; must neither block nor raise."""

    def take_buffer(self, length: int) -> tuple[int, memoryview] | None:
        """A segment for incoming data, from `ReceiverCredit.take`, and its memory; None fails the channel."""

    def on_buffer(self, segment: int, length: int, backlog: int) -> None:
        """A data buffer is complete; the consumer recycles the segment through the channel."""

    def on_event(self, data_type: int, payload: bytes) -> None:
        """An event, in order with the data."""

    def on_error(self, error: BaseException) -> None:
        """The channel failed: nothing follows. Called at most once, never after `release`."""


@dataclass(frozen=True, slots=True)
class ChannelRequest:
    """The wish of a channel: subpartitions `first` to `last` of a partition, both inclusive."""

    partition: PartitionId
    first: int
    last: int


class RemoteInputChannel:
    """One channel of a connection; its public methods are the consumer's."""

    def __init__(
        self,
        connection: ConnectionCore,
        receiver: int,
        request: ChannelRequest,
        sink: ChannelSink,
        credit: ReceiverBuffers,
    ) -> None:
        self._connection = connection
        self._lifecycle = Lifecycle(f"channel {receiver} of {request.partition}", CHANNEL_TABLE, ChannelState.OPEN)
        self._sink = sink
        self._received = 0
        self.receiver = receiver
        self.request = request
        self.credit = credit
        self.subpartition = request.first
        """The subpartition of the message that is being delivered."""
        credit.on_unannounced = lambda: connection.announce_credit(self)

    @property
    def expected_sequence(self) -> int:
        """The sequence number of the next message."""
        return self._received % _SEQUENCES

    @property
    def state(self) -> str:
        """Name of the channel's state."""
        return self._lifecycle.state.name

    @property
    def is_open(self) -> bool:
        """True if messages are still received and sent."""
        return self._lifecycle.state in (ChannelState.OPEN, ChannelState.BLOCKED)

    def recycle(self, segment: int) -> None:
        """The consumer has copied a buffer out. Allowed, and needed, after an error and after `release` too."""
        self.credit.recycle(segment)

    def resume(self) -> None:
        """Go on after an aligned barrier; without effect on a channel that is not blocked."""
        if self._lifecycle.allows(ChannelEvent.RESUME):
            self._lifecycle.move(ChannelEvent.RESUME)
            self.credit.withdraw()
            self._send(ResumeConsumption(self.receiver))

    def release(self) -> None:
        """End the channel: cancel the request, give free buffers back. Idempotent."""
        if self._lifecycle.state is ChannelState.RELEASED:
            return
        self._lifecycle.move(ChannelEvent.RELEASE)
        self.credit.on_unannounced = lambda: None
        self._connection.forget(self)
        self.credit.release()

    def fail(self, error: BaseException) -> None:
        """End the channel with an error for its sink. Without effect on one that has ended."""
        if self._lifecycle.allows(ChannelEvent.FAIL):
            self._lifecycle.move(ChannelEvent.FAIL)
            self._connection.forget(self)
            self.credit.release()
            self._sink.on_error(error)

    def take_buffer(self, header: BufferHeader) -> tuple[int, memoryview] | None:
        """The place for the payload of this header; None (after failing the channel) if it must be skipped."""
        try:
            self._check_header(header)
            held = self.credit.held
            taken = self._sink.take_buffer(header.length)
            if taken is None:
                raise ProtocolError(
                    f"{self._lifecycle}: no buffer for {header.length} bytes although there was credit"
                )
            if self.credit.held != held + 1:
                raise AssertionError(f"{self._lifecycle}: the sink's buffer does not come from the channel's credit")
            segment, memory = taken
            if len(memory) < header.length:
                self.credit.recycle(segment)
                raise ProtocolError(f"{self._lifecycle}: {header.length} bytes for a segment of {len(memory)}")
        except Exception as error:  # noqa: BLE001 - one channel's fault must not end the connection
            self.fail(error)
            return None
        return segment, memory[: header.length]

    def on_data(self, header: BufferHeader, segment: int, payload: memoryview) -> None:
        """A payload is complete in its segment."""
        if payload_checksum(payload) != header.checksum:
            self.credit.recycle(segment)
            self.fail(ProtocolError(f"{self._lifecycle}: the checksum of buffer {header.sequence} does not match"))
            return
        self._deliver(header, lambda: self._sink.on_buffer(segment, header.length, header.backlog))

    def on_inline(self, header: BufferHeader, payload: bytes) -> None:
        """An event, or an empty data buffer: that one costs a credit, whose buffer is free again at once."""
        empty = None
        try:
            self._check_header(header)
            if payload_checksum(payload) != header.checksum:
                raise ProtocolError(f"{self._lifecycle}: the checksum of event {header.sequence} does not match")
            if header.data_type == DataType.DATA:
                empty = self.credit.take_empty()
        except ProtocolError as error:
            self.fail(error)
            return
        if header.data_type == DataType.DATA:
            self._deliver(header, lambda: None)
            if empty is not None:
                self.credit.recycle(empty)
            return
        if header.data_type == DataType.ALIGNED_BARRIER:
            self._lifecycle.move(ChannelEvent.BARRIER)
            self.credit.withdraw()
        self._deliver(header, lambda: self._sink.on_event(header.data_type, payload))

    def on_backlog(self, backlog: int) -> None:
        """The sender has so many buffers that wait."""
        if self._lifecycle.state is ChannelState.OPEN:
            try:
                self.credit.require(backlog)
            except Exception as error:  # noqa: BLE001 - a destroyed pool ends this channel only
                self.fail(error)

    def _check_header(self, header: BufferHeader) -> None:
        if header.sequence != self.expected_sequence:
            raise ProtocolError(
                f"{self._lifecycle}: sequence {header.sequence} arrived where {self.expected_sequence} was expected"
            )
        if not self.request.first <= header.subpartition <= self.request.last:
            raise ProtocolError(f"{self._lifecycle}: data of subpartition {header.subpartition} was not requested")
        if self._lifecycle.state is ChannelState.BLOCKED:
            raise ProtocolError(f"{self._lifecycle}: message {header.sequence} arrived while the channel was blocked")
        if header.data_type == DataType.ALIGNED_BARRIER and header.backlog:
            raise ProtocolError(f"{self._lifecycle}: a barrier with a backlog of {header.backlog}")

    def _deliver(self, header: BufferHeader, give: Callable[[], None]) -> None:
        self._received += 1
        self.subpartition = header.subpartition
        try:
            give()
        except Exception as error:  # noqa: BLE001 - one channel's fault must not end the connection
            self.fail(error)
        self.on_backlog(header.backlog)

    def _send(self, message: Message) -> None:
        if self.is_open:
            self._connection.send(self, message)


class ConnectionCore:
    """Core of the client side of one connection. Single-threaded, no I/O; see the module's rules."""

    def __init__(self, peer: str, wake: Callable[[], None] = lambda: None, flow: FlowControl = CREDIT) -> None:
        self._peer = peer
        self._flow = flow
        self._waits_for: RemoteInputChannel | None = None
        """The channel without a buffer for which nothing is read."""
        self.stop_reading: Callable[[], None] = lambda: None
        self.go_on_reading: Callable[[], None] = lambda: None
        self._channels: dict[int, RemoteInputChannel] = {}
        self._outbound: deque[tuple[RemoteInputChannel | None, Message | None]] = deque()
        self._receiving: tuple[RemoteInputChannel, int] | None = None
        self._next_receiver = 1
        self._lost: BaseException | None = None
        self.wake = wake
        self.last_pong = -1
        buffer_for = self._buffer_or_wait if flow.is_stopped_by_window else self._buffer_for
        self.decoder = FrameDecoder(SERVER_TYPES, buffer_for)

    @property
    def channels(self) -> int:
        """Channels that use this connection."""
        return len(self._channels)

    @property
    def is_open(self) -> bool:
        """True if channels can be opened."""
        return self._lost is None

    def open_channel(self, request: ChannelRequest, sink: ChannelSink, credit: ReceiverBuffers) -> RemoteInputChannel:
        """Request subpartitions; answers and errors reach the sink."""
        if self._lost is not None:
            raise EnvironmentLostError(f"the connection to {self._peer} is closed: {self._lost}")
        receiver = self._next_receiver
        self._next_receiver += 1
        channel = RemoteInputChannel(self, receiver, request, sink, credit)
        self._channels[receiver] = channel
        # Sent even if the channel is released at once: the cancellation after it then tells the producer that this
        # reader will never come, instead of leaving its subpartition to fill up.
        range_of = (request.partition, request.first, request.last)
        self.send(None, PartitionRequest(receiver, *range_of, credit.initial, self._flow.code))
        return channel

    def receive(self, message: Message) -> None:
        """Handle one message of the server. Raises a PenstockError where the connection cannot go on."""
        match message:
            case BufferResponse(header, payload):
                self._buffer_response(header, payload)
            case BacklogAnnouncement(receiver, backlog):
                channel = self._channels.get(receiver)
                if channel is not None:
                    channel.on_backlog(backlog)
            case ErrorResponse(receiver, code, text):
                error = code_to_error(code, f"{text} (said by {self._peer})")
                if receiver is None:
                    raise error
                channel = self._channels.get(receiver)
                if channel is not None:
                    channel.fail(error)
            case Pong(token):
                self.last_pong = token
            case _:
                raise ProtocolError(f"{self._peer} sent {type(message).__name__} to a client")

    def next_frame(self) -> OutgoingFrame | None:
        """The next frame to send, or None until `wake` is called."""
        while self._outbound:
            channel, message = self._outbound.popleft()
            if channel is not None and not channel.is_open:
                continue
            if message is None and channel is not None:
                amount = channel.credit.drain()
                message = AddCredit(channel.receiver, amount) if amount else None
            if message is not None:
                return outgoing(message)
        return None

    def connection_lost(self, error: BaseException | None = None) -> None:
        """Tell every channel, each with an error of its own. Idempotent."""
        if self._lost is not None:
            return
        self._lost = error or EnvironmentLostError(f"the connection to {self._peer} was closed")
        self._outbound.clear()
        faults = []
        for channel in list(self._channels.values()):
            try:
                channel.fail(_own_error(self._lost, self._peer))
            except Exception as fault:  # noqa: BLE001 - a sink that raises must not keep the news from the others
                faults.append(fault)
        if faults:
            raise ExceptionGroup(f"sinks raised when the connection to {self._peer} was lost", faults)

    def send(self, channel: RemoteInputChannel | None, message: Message) -> None:
        """Queue a message; one of a channel is dropped if the channel ends before it is written."""
        if self._lost is None:
            self._outbound.append((channel, message))
            self.wake()

    def announce_credit(self, channel: RemoteInputChannel) -> None:
        """Queue an ADD_CREDIT whose amount is read when it is written."""
        if self._lost is None and channel.is_open:
            self._outbound.append((channel, None))
            self.wake()

    def ping(self, token: int) -> None:
        """Ask the peer for a sign of life; see `last_pong`."""
        self.send(None, Ping(token))

    def farewell(self, error: BaseException | None) -> OutgoingFrame | None:
        """The last frame for the server before the connection is closed: it is not used any more."""
        return outgoing(CloseRequest()) if error is None else None

    def forget(self, channel: RemoteInputChannel) -> None:
        """The channel has ended: nothing more is delivered, its half-received segment goes back."""
        if self._channels.pop(channel.receiver, None) is None:
            return
        if self._receiving is not None and self._receiving[0] is channel:
            segment = self._receiving[1]
            self._receiving = None
            self.decoder.abandon_payload()
            channel.credit.recycle(segment)
        self.send(None, CancelPartitionRequest(channel.receiver))

    def _buffer_or_wait(self, receiver: int, header: BufferHeader) -> memoryview | None:
        """As `_buffer_for`; where the channel has no buffer, nothing of any channel is read until it has."""
        channel = self._channels.get(receiver)
        if channel is not None and not channel.credit.await_buffer(self._go_on):
            self._waits_for = channel
            self.stop_reading()
            return WAIT
        return self._buffer_for(receiver, header)

    def _go_on(self) -> None:
        if self._waits_for is not None:
            self._waits_for = None
            if self._lost is None:
                self.go_on_reading()

    def _buffer_for(self, receiver: int, header: BufferHeader) -> memoryview | None:
        channel = self._channels.get(receiver)
        taken = None if channel is None else channel.take_buffer(header)
        if taken is None or channel is None:
            return None
        self._receiving = (channel, taken[0])
        return taken[1]

    def _buffer_response(self, header: BufferHeader, payload: memoryview | bytes | None) -> None:
        channel = self._channels.get(header.receiver)
        receiving, self._receiving = self._receiving, None
        if channel is None:
            return
        if isinstance(payload, bytes):
            channel.on_inline(header, payload)
        elif payload is not None and receiving is not None:
            channel.on_data(header, receiving[1], payload)


def _own_error(error: BaseException, peer: str) -> PenstockError:
    if isinstance(error, PenstockError):
        own = type(error)(*error.args)
    else:
        own = EnvironmentLostError(f"the connection to {peer} was lost: {str(error) or type(error).__name__}")
    own.__cause__ = error
    return own
