# SPDX-License-Identifier: Apache-2.0
"""A task's input gate on the environment's side: channels, fairness, and the small window handed to the task.

A channel is local (a view of a subpartition of this environment, never through TCP), remote, unknown (its producer
has not been deployed yet), or ended. Channels with something to read stand in one queue, each at most once, and
give one thing a turn. About `WINDOW` slices of a gate are out at the task, an equal share per channel, so that no
channel's data fills the window before the others have any. Events cost nothing, and pass a full window; so do rows of
a remote channel in front of a barrier that overtook others at their sender.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.buffer import BufferSlice, DataType, Holdings
from penstock.buffer.view import BufferOrEvent, SubpartitionView
from penstock.environment.partitions.found import Partitions
from penstock.environment.task_frames import TaskFrames
from penstock.environment.turn import Turn
from penstock.errors import (
    PartitionNotProducedError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
    ProtocolError,
    StaleError,
)
from penstock.link.calls import OpenGate
from penstock.shuffle import EndOfData, EndOfPartition, PartitionId, ShuffleDescriptor
from penstock.shuffle.events import ProducerIs, encode_event

WINDOW = 16
"""Slices out at a task: enough for it to copy without waiting, few enough for a barrier to split them cheaply."""

_END_OF_PARTITION = b"\x02"
_PRODUCER_GONE = (ProducerFailedError, PartitionReleasedError, StaleError)
"""A producer's attempt is over; no reader of the partition elsewhere is at fault."""


@dataclass(slots=True)
class Channel:
    """One channel of a gate. `source` is None until the producer is there, and after the end."""

    index: int
    descriptor: ShuffleDescriptor
    subpartition: int
    count: int
    source: SubpartitionView | None = None
    out: int = 0
    is_queued: bool = False
    is_ended: bool = False
    is_remote: bool = False
    figures: Callable[[], dict[str, float]] | None = None
    """Tells the buffers of a remote one in detail."""


@dataclass(frozen=True, slots=True)
class GateParts:
    """The parts that all gates of the environment `host` use.

    `leave` is told of a gate that closes, `open_remote` opens a channel to another environment.
    """

    host: str
    partitions: Partitions
    turn: Turn
    leave: Callable[[GatePort], None]
    open_remote: Callable[[GatePort, Channel], None]


class GatePort:
    """One gate that a task is reading."""

    def __init__(self, reading: GateParts, to_task: TaskFrames, holdings: Holdings, request: OpenGate) -> None:
        self.port = request.port
        self.attempt = request.attempt
        self.flow_control = request.flow_control
        self._reading = reading
        self._to_task = to_task
        self._holdings = holdings
        self._ready: deque[Channel] = deque()
        self._out: dict[int, list[tuple[Channel, Callable[[], None] | None]]] = {}
        self._share = max(2, WINDOW // max(1, len(request.channels)))
        self._closed = False
        self.bytes_local = self.bytes_remote = 0
        """Handed over so far, out of this environment and from others."""
        self.queued = 0
        """Buffers that have come from others and were not handed over."""
        self._releases: list[Callable[[], None]] = []
        self.channels = [
            Channel(index, channel.source, channel.subpartition, channel.count)
            for index, channel in enumerate(request.channels)
        ]

    @property
    def is_closed(self) -> bool:
        """True if its task does not read it any more."""
        return self._closed

    def open(self) -> None:
        """Request every partition that is known already."""
        for channel in self.channels:
            self._request(channel)

    def update(self, descriptor: ShuffleDescriptor) -> bool:
        """The real producer of channels that wait for it, or a newer attempt of one; False where there is none."""
        found = False
        for channel in self.channels:
            known, wanted = channel.descriptor.partition, descriptor.partition
            waits = channel.descriptor.is_unknown or (
                channel.descriptor.kind.reattaches and known.attempt < wanted.attempt
            )
            if waits and not channel.is_ended and (known.dataset, known.index) == (wanted.dataset, wanted.index):
                self._let_go(channel)
                channel.descriptor = descriptor
                self._request(channel)
                found = True
        return found

    @property
    def is_complete(self) -> bool:
        """True if all producers of channels that have not ended are known."""
        return not any(channel.descriptor.is_unknown and not channel.is_ended for channel in self.channels)

    def give_up(self, error: Exception) -> None:
        """Handing over has failed: the session ends."""
        self._to_task.give_up(error)

    def take_turn(self) -> None:
        """Hand over what the window allows, channel after channel."""
        while self._ready and not self._closed:
            channel = self._ready[0]
            source = channel.source
            failure = None if source is None else source.failure
            if source is None or (failure is None and channel.out >= self._share and not source.next_is_event):
                self._leave_queue()  # in the second case until the task recycles one of its slices, or an event comes
                continue
            item = source.poll() if failure is None else None
            if item is not None:
                self._ready.rotate(-1)
                self._deliver(channel, item)
                continue
            self._leave_queue()
            if failure is not None and source.is_available:
                self.fail_channel(channel, failure)

    def recycle(self, segments: tuple[int, ...]) -> None:
        """The task has copied these slices; raises ProtocolError for one it was not given."""
        for segment in segments:
            channels = self._out.get(segment)
            if not channels:
                raise ProtocolError(f"gate {self.port} recycles segment {segment}, which it was not given")
            channel, returned = channels.pop(0)
            if not channels:
                del self._out[segment]
            channel.out -= 1
            self._holdings.recycle(segment)
            if returned is not None:
                returned()
            if channel.source is not None:
                self.available(channel)

    def resume(self, channel: int) -> None:
        """Let a blocked channel go on; without effect on one that is not blocked."""
        source = self._channel(channel).source
        if source is not None:
            with contextlib.suppress(ProtocolError):
                source.resume()
            self.available(self.channels[channel])

    def close(self) -> None:
        """Give everything back; idempotent.

        Producers that are not known yet, or have not registered, are still told when they come that this reader
        has left: otherwise their subpartition would fill up and stop them.
        """
        if self._closed:
            return
        self._closed = True
        self._reading.leave(self)
        for channel in self.channels:
            if channel.source is not None:
                channel.source.release()
                channel.source = None
        self._ready.clear()
        out, self._out = self._out, {}
        for segment, channels in out.items():
            for _, returned in channels:
                self._holdings.recycle(segment)
                if returned is not None:
                    returned()
        for release in self._releases:
            release()

    def available(self, channel: Channel) -> None:
        """A channel has something, or has failed."""
        if not channel.is_queued and not self._closed:
            channel.is_queued = True
            self._ready.append(channel)
            self._reading.turn.pump(self)

    def on_close(self, release: Callable[[], None]) -> None:
        """Register something to be given back when the gate closes."""
        self._releases.append(release)

    def attach(self, channel: Channel, source: SubpartitionView) -> None:
        """Give a channel its source."""
        if self._closed or channel.is_ended:
            source.release()
            return
        channel.source = source
        if source.is_available:
            self.available(channel)

    def fail_channel(self, channel: Channel, error: BaseException) -> None:
        """A channel can't be read; the task is told in order with what was delivered before.

        The end of a producer that may begin anew alone is no news: the channel waits for its next attempt.
        """
        if self._closed or channel.is_ended:
            return
        if channel.descriptor.kind.reattaches and isinstance(error, _PRODUCER_GONE):
            self._let_go(channel)
        else:
            self._fail(channel, error)

    def _channel(self, index: int) -> Channel:
        if not 0 <= index < len(self.channels):
            raise ProtocolError(f"gate {self.port} has no channel {index}")
        return self.channels[index]

    def _leave_queue(self) -> None:
        self._ready.popleft().is_queued = False

    def _request(self, channel: Channel) -> None:
        descriptor = channel.descriptor
        if descriptor.empty:
            if not self._closed:
                self._end_empty(channel)
            return
        if descriptor.is_unknown or (self._closed and descriptor.kind.reattaches):
            return  # in the second case it would take the place of the reader that came after it
        if channel.descriptor.kind.reattaches:
            producer = encode_event(ProducerIs(descriptor.partition.attempt))
            self._to_task.event(self.port, DataType.EVENT, channel.index, producer)
        if descriptor.environment in ("", self._reading.host):
            self._request_local(channel, descriptor.partition)
        else:
            channel.is_remote = True
            self._reading.open_remote(self, channel)

    def _request_local(self, channel: Channel, partition: PartitionId) -> None:
        first, count = channel.subpartition, channel.count
        try:
            view = self._reading.partitions.local_view(partition, first, count, lambda: self.available(channel))
        except PartitionNotProducedError:
            self._reading.partitions.wait(partition, lambda error: self._waited(channel, partition, error))
            return
        except PenstockError as error:
            self.fail_channel(channel, error)
            return
        self.attach(channel, view)

    def _waited(self, channel: Channel, partition: PartitionId, error: PenstockError | None) -> None:
        if partition != channel.descriptor.partition or (self._closed and channel.descriptor.kind.reattaches):
            return  # a newer attempt has taken its place, or may have taken this reader's
        if error is not None:
            self.fail_channel(channel, error)
        else:
            self._request_local(channel, partition)

    def _end_empty(self, channel: Channel) -> None:
        channel.is_ended = True
        self._to_task.event(self.port, DataType.EVENT, channel.index, encode_event(EndOfData()))
        self._to_task.event(self.port, DataType.EVENT, channel.index, encode_event(EndOfPartition(0, 0, 0)))

    def _deliver(self, channel: Channel, item: BufferOrEvent) -> None:
        payload = item.payload
        if isinstance(payload, BufferSlice):
            self._holdings.deliver(payload.segment)
            self._out.setdefault(payload.segment, []).append((channel, item.recycle))
            channel.out += 1
            if channel.is_remote:
                self.bytes_remote += payload.length
            else:
                self.bytes_local += payload.length
            self._to_task.deliver((self.port, channel.index, payload.segment, payload.offset, payload.length))
            return
        self._to_task.event(self.port, item.data_type, channel.index, payload)
        if payload[:1] == _END_OF_PARTITION:
            self._end(channel)

    def _end(self, channel: Channel) -> None:
        channel.is_ended = True
        source, channel.source = channel.source, None
        if source is not None:
            source.release()

    def _let_go(self, channel: Channel) -> None:
        """Drop what has come of a producer that is gone; what the task was given stays with it."""
        source, channel.source = channel.source, None
        if source is not None:
            source.release()

    def _fail(self, channel: Channel, error: BaseException) -> None:
        self._end(channel)
        if isinstance(error, PenstockError) and not channel.descriptor.is_unknown:
            error.partition = channel.descriptor.partition.to_wire()
        self._to_task.error(self.port, channel.index, error)
