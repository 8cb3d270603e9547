# SPDX-License-Identifier: Apache-2.0
"""The gate of a streaming query in the `memory` shuffle service: polled, fair, each epoch's sums compared."""

from __future__ import annotations

from collections import deque

from penstock.shuffle import (
    EndOfPartition,
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
        self._lost: str | None = None
        self._lifecycle = GateLifecycle(f"stream gate {descriptor.gate} of {owner.name}")

    @property
    def descriptor(self) -> InputGateDescriptor:
        """What this gate was made from."""
        return self._descriptor

    @property
    def is_ended(self) -> bool:
        """Whether every channel has ended and all of it was given."""
        return not self._open

    @property
    def positions(self) -> list[int]:
        """How many messages of each channel were given so far."""
        return list(self._positions)

    def setup(self) -> None:
        """Become known to `update_partition_info`."""
        with self._registry.changing():
            self._lifecycle.move(GateEvent.SET_UP)
            self._registry.gates.setdefault(self._owner.attempt, []).append(self)

    def poll(self) -> Received | None:
        """What is there now; None where there is nothing."""
        with self._registry.changing():
            self._check()
            for _ in range(len(self._open)):
                channel = self._open[0]
                self._open.rotate(-1)
                stored = channel.take(self._registry)
                if stored is not None:
                    self._account(channel, stored)
                    break
            else:
                return None
        if stored.data is None:
            return Received(channel.index, event=stored.event)
        self._positions[channel.index] += 1
        return Received(channel.index, batch=decode(stored.data))

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
        elif isinstance(stored.event, EndOfPartition | EpochEnd):
            event, arrived = stored.event, channel.figures.end_of_partition()
            channel.figures = Sums()
            if isinstance(event, EndOfPartition):
                self._open.remove(channel)
                self._leave(channel)
            if arrived != EndOfPartition(event.rows, event.bytes, event.checksum):
                raise IncompleteDataError(
                    f"gate {self._descriptor.gate}, channel {channel.index}: subpartition {channel.subpartition} of "
                    f"{channel.source.partition} on {channel.source.environment} arrived as {arrived}, its writer "
                    f"counted {event}"
                )

    def _leave(self, channel: Channel) -> None:
        channel.leave(self._registry)
        self._registry.tell_writer(channel.source.partition)
