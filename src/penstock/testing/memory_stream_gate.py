# SPDX-License-Identifier: Apache-2.0
"""The gate of a streaming query in the `memory` shuffle service: polled, fair, each epoch's sums compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from penstock.shuffle import (
    EndOfPartition,
    EpochAhead,
    EpochEnd,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    Received,
    ShuffleDescriptor,
)
from penstock.shuffle.endpoints import GateEvent, GateLifecycle, GateState
from penstock.shuffle.errors import EnvironmentLostError, IncompleteDataError, PenstockError, TaskCancelledError
from penstock.shuffle.sums import Sums
from penstock.testing.memory_gate import Channel, GateContext
from penstock.testing.memory_partition import Stored, decode


class MemoryStreamGate:
    """A `StreamInputGate` over the registry."""

    def __init__(self, context: GateContext, owner: OwnerContext, descriptor: InputGateDescriptor) -> None:
        self.environment = context.environment
        self._registry = context.registry
        self._owner = owner
        self._descriptor = descriptor
        self._channels = [Channel(index, channel) for index, channel in enumerate(descriptor.channels)]
        self._open: deque[Channel] = deque(self._channels)
        self._positions = [0] * len(self._channels)
        self._marks: deque[tuple[Channel, EpochEnd]] = deque()
        """Barriers that were announced, and stand where their channels have been read to."""
        self._due: dict[int, list[EpochEnd]] = {}
        """By channel the ends of epochs that came ahead of some of their messages."""
        self._lost: str | None = None
        self._lifecycle = GateLifecycle(f"stream gate {descriptor.gate} of {owner.name}")

    @property
    def descriptor(self) -> InputGateDescriptor:
        """What this gate was made from."""
        return self._descriptor

    @property
    def is_ended(self) -> bool:
        """Whether every channel has ended and all of it was given."""
        return not (self._open or self._marks)

    @property
    def positions(self) -> list[int]:
        """How many messages of each channel were given so far."""
        return list(self._positions)

    def setup(self) -> None:
        """Become known to `update_partition_info`."""
        with self._registry.changing():
            self._lifecycle.move(GateEvent.SET_UP)
            self._registry.gates.setdefault(self._owner.attempt, []).append(self)

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """What is there now; None where there is nothing."""
        with self._registry.changing():
            self._check()
            ahead = self._take_ahead()
            if ahead is not None:
                return ahead
            if self._marks:
                channel, mark = self._marks.popleft()
                return Received(channel.index, event=mark)
            for _ in range(len(self._open)):
                channel = self._open[0]
                self._open.rotate(-1)
                stored = channel.take(self._registry) if channels is None or channel.index in channels else None
                if stored is not None:
                    self._account(channel, stored)
                    break
            else:
                return None
        if stored.data is None:
            return Received(channel.index, event=stored.event)
        return Received(channel.index, batch=decode(stored.data))

    def poll_ahead(self) -> Received | None:
        """The next priority event or EpochAhead."""
        with self._registry.changing():
            self._check()
            return self._take_ahead()

    def resume_consumption(self, channel: int) -> None:
        """Let a channel that a blocking event stopped go on."""
        with self._registry.changing():
            self._check()
            found = self._channels[channel]
            if found.partition is not None:
                found.partition.resume(found.subpartition)
                self._registry.tell(self._owner.attempt)

    def close(self) -> None:
        """End all open channels: their producers drop what they still write for them; idempotent."""
        with self._registry.changing():
            if self._lifecycle.state is GateState.OPEN:
                for channel in self._open:
                    self._leave(channel)
                self._registry.forget_gate(self._owner.attempt, self)
            self._lifecycle.move(GateEvent.CLOSE)
            self._open.clear()

    def replace_unknown(self, descriptor: ShuffleDescriptor) -> None:
        """Take the real producer of the channels that wait for it; a channel that has one keeps it."""
        wanted = (descriptor.partition.dataset, descriptor.partition.index)
        for channel in self._open:
            known = channel.source.partition
            if channel.source.is_unknown and (known.dataset, known.index) == wanted:
                channel.source = descriptor

    def lose(self, cause: str) -> None:
        """The environment beside this gate is gone."""
        self._lost = cause

    def reads(self, partition: PartitionId) -> bool:
        """Whether an open channel reads this partition."""
        return any(channel.source.partition == partition for channel in self._open)

    def _take_ahead(self) -> Received | None:
        for channel in self._open:
            stored = channel.take_ahead(self._registry)
            if stored is None or stored.event is None:
                continue
            if not isinstance(stored.event, EpochEnd):
                return Received(channel.index, event=stored.event)
            self._marks.append((channel, stored.event))
            self._due.setdefault(channel.index, []).append(stored.event)
            self._end_reached(channel)
            return Received(channel.index, event=EpochAhead(stored.event.payload))
        return None

    def _end_reached(self, channel: Channel) -> None:
        """Compare the epochs that end behind the message that came last."""
        due = self._due.get(channel.index, [])
        while due and (due[0].messages or 0) <= self._positions[channel.index]:
            self._compare(channel, due.pop(0))

    def _check(self) -> None:
        if self._owner.attempt in self._registry.cancelled:
            raise TaskCancelledError(f"gate {self._descriptor.gate}: the task was told to stop")
        if self._lost is not None:
            raise EnvironmentLostError(f"gate {self._descriptor.gate}: environment {self.environment}: {self._lost}")
        if self._lifecycle.state is not GateState.OPEN:
            raise PenstockError(f"gate {self._descriptor.gate} is {self._lifecycle.state.value}")

    def _account(self, channel: Channel, stored: Stored) -> None:
        if stored.event is None:
            received = Stored(stored.data, stored.rows, None)  # hashes what arrived, not what was promised
            channel.figures.add(received.rows, received.bytes, received.checksum)
            self._registry.tell_writer(channel.source.partition)
            self._positions[channel.index] += 1
            self._end_reached(channel)
        elif isinstance(stored.event, EndOfPartition | EpochEnd):
            if isinstance(stored.event, EndOfPartition):
                self._open.remove(channel)
                self._leave(channel)
            self._compare(channel, stored.event)

    def _compare(self, channel: Channel, event: EndOfPartition | EpochEnd) -> None:
        arrived, channel.figures = channel.figures.end_of_partition(), Sums()
        if arrived != EndOfPartition(event.rows, event.bytes, event.checksum):
            raise IncompleteDataError(
                f"gate {self._descriptor.gate}, channel {channel.index}: subpartition {channel.subpartition} of "
                f"{channel.source.partition} on {channel.source.environment} arrived as {arrived}, its writer "
                f"counted {event}"
            )

    def _leave(self, channel: Channel) -> None:
        channel.leave(self._registry)
        self._registry.tell_writer(channel.source.partition)
