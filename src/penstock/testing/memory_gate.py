# SPDX-License-Identifier: Apache-2.0
"""The input gate of the `memory` shuffle service: fair, synchronous, with figures checked at each channel's end.

Rules: one thread reads; `update_partition_info` and `close` may come from another. Channels are served in turn,
one entry each. A channel is *waiting* until its partition is known and may be read; while nobody writes that
partition, the request has a deadline and then PartitionNotProducedError. `close` before a channel's end makes
its producer drop the rest.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from penstock.shuffle import (
    ChannelDescriptor,
    EndOfData,
    EndOfPartition,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    Received,
    ShuffleDescriptor,
)
from penstock.shuffle.endpoints import GateEvent, GateLifecycle, GateState
from penstock.shuffle.errors import (
    EnvironmentLostError,
    IncompleteDataError,
    PartitionNotProducedError,
    PenstockError,
    TaskCancelledError,
)
from penstock.shuffle.sums import Sums, sum_of
from penstock.testing.memory_partition import MemoryPartition, Stored, decode
from penstock.testing.memory_registry import MemoryRegistry, remaining


class Channel:
    """One input channel: which partition it reads, how far it is, and what it has counted.

    A range is read one subpartition after the other; their ends are summed, and come once, behind the last.
    """

    __slots__ = (
        "_closing",
        "_ends",
        "count",
        "figures",
        "index",
        "partition",
        "position",
        "requested_at",
        "source",
        "subpartition",
    )  # fmt: skip

    def __init__(self, index: int, descriptor: ChannelDescriptor) -> None:
        self.index = index
        self.source = descriptor.source
        self.subpartition = descriptor.subpartition
        self.count = descriptor.count
        self._ends: list[EndOfPartition] = []
        self._closing: deque[Stored] = deque()
        self.partition: MemoryPartition | None = None
        self.position = 0
        self.figures = Sums()
        self.requested_at = time.monotonic()

    def take(self, registry: MemoryRegistry) -> Stored | None:
        """The next entry, or None; raises the PartitionError of a partition that cannot be read."""
        if self.source.empty:
            self.position += 1
            return Stored.of_event(EndOfData() if self.position == 1 else EndOfPartition(0, 0, 0))
        if self.partition is None and not self._attach(registry):
            return None
        if self.partition is None:
            return None
        self.partition.check_readable()
        return self._take_one(self.partition) if self.count == 1 else self._take_of_range(self.partition)

    def _take_one(self, partition: MemoryPartition) -> Stored | None:
        stored = partition.take(self.subpartition, self.position)
        if stored is not None:
            self.position += 1
        return stored

    def _take_of_range(self, partition: MemoryPartition) -> Stored | None:
        while len(self._ends) < self.count:
            stored = partition.take(self.subpartition + len(self._ends), self.position)
            if stored is None:
                return None
            self.position += 1
            if isinstance(stored.event, EndOfPartition):
                self._ends.append(stored.event)
                self.position = 0
            elif not isinstance(stored.event, EndOfData):
                return stored
            if len(self._ends) == self.count:
                self._closing.extend(Stored.of_event(event) for event in (EndOfData(), sum_of(self._ends)))
        return self._closing.popleft() if self._closing else None

    def take_ahead(self, registry: MemoryRegistry) -> Stored | None:
        """The next entry, if it goes ahead of the rows."""
        if self.source.empty or (self.partition is None and not self._attach(registry)) or self.partition is None:
            return None
        ahead = self.count == 1 and self.partition.subpartitions[self.subpartition].has_priority
        return self._take_one(self.partition) if ahead else None

    def is_unproduced(self, registry: MemoryRegistry) -> bool:
        """Whether a real partition was asked for that nobody writes."""
        return not self.source.is_unknown and not self.source.empty and registry.find(self.source.partition) is None

    def leave(self, registry: MemoryRegistry) -> None:
        """Nobody reads this any more: what is left of it and all that follows is dropped, and its producer told."""
        if self.partition is not None:
            for subpartition in range(self.subpartition, self.subpartition + self.count):
                self.partition.end_reading(subpartition)
            registry.condition.notify_all()
        elif not self.source.is_unknown and not self.source.empty:
            self._leave_unattached(registry)

    def _leave_unattached(self, registry: MemoryRegistry) -> None:
        partition = registry.partitions.get(self.source.partition)
        for subpartition in range(self.subpartition, self.subpartition + self.count):
            if partition is None:
                registry.unwanted.add((self.source.partition, subpartition))
            elif partition.is_unread(subpartition):
                partition.end_reading(subpartition)

    def _attach(self, registry: MemoryRegistry) -> bool:
        if self.source.is_unknown:
            return False
        found = registry.find(self.source.partition)
        if found is None:
            return False
        found.check_readable()
        if found.is_consumable:
            found.attach(self.subpartition, self, self.count)
            self.partition = found
        return True


@dataclass(frozen=True, slots=True)
class GateContext:
    """Where a gate lives: the registry, its environment, and how long a request may stay unanswered."""

    registry: MemoryRegistry
    environment: str
    request_timeout: float


class MemoryInputGate:
    """Reads one input of a subtask; see `InputGate` for the promises."""

    def __init__(self, context: GateContext, owner: OwnerContext, descriptor: InputGateDescriptor) -> None:
        self.environment = context.environment
        self._registry = context.registry
        self._request_timeout = context.request_timeout
        self._owner = owner
        self._descriptor = descriptor
        self._channels: list[Channel] = []
        self._open: deque[Channel] = deque()
        self._lifecycle = GateLifecycle(f"gate {descriptor.gate} of {owner.name}")
        self._lost: str | None = None

    @property
    def descriptor(self) -> InputGateDescriptor:
        """What this gate was made from."""
        return self._descriptor

    def setup(self) -> None:
        """Become known to `update_partition_info` and start the clocks of the requests."""
        with self._registry.changing():
            self._lifecycle.move(GateEvent.SET_UP)
            self._channels = [Channel(i, channel) for i, channel in enumerate(self._descriptor.channels)]
            self._open = deque(self._channels)
            self._registry.gates.setdefault(self._owner.attempt, []).append(self)

    def next(self, timeout: float | None = None) -> Received | None:
        """The next batch or event of any channel, None behind the last; TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._registry.condition:
            while True:
                self._check()
                if not self._open:
                    return None
                found = self._poll()
                if found is not None:
                    break
                self._wait(deadline, timeout)
        channel, stored = found
        if stored.data is None:
            return Received(channel.index, event=stored.event)
        return Received(channel.index, batch=decode(stored.data))

    def send_task_event(self, channel: int, payload: bytes) -> None:
        """Queue an event for the writer of a channel; dropped where the producer is not known or has ended."""
        with self._registry.changing():
            self._check()
            source = self._channel(channel)
            partition = source.partition or (None if source.source.is_unknown else self._find(source))
            if partition is not None and partition.holds_resources:
                partition.task_events.append((source.subpartition, bytes(payload)))

    def resume_consumption(self, channel: int) -> None:
        """Let a blocked channel go on. No event of this version blocks one, so this only checks its argument."""
        with self._registry.condition:
            self._check()
            self._channel(channel)

    def close(self) -> None:
        """End all open channels: their producers drop what they still write for them."""
        with self._registry.changing():
            if self._lifecycle.state is GateState.OPEN:
                for channel in self._open:
                    channel.leave(self._registry)
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
                channel.requested_at = time.monotonic()

    def lose(self, cause: str) -> None:
        """The environment beside this gate is gone."""
        self._lost = cause

    def reads(self, partition: PartitionId) -> bool:
        """Whether an open channel reads this partition."""
        return any(channel.source.partition == partition for channel in self._open)

    def __str__(self) -> str:
        return f"gate {self._descriptor.gate} of {self._owner.name}"

    def _check(self) -> None:
        if self._owner.attempt in self._registry.cancelled:
            raise TaskCancelledError(f"{self}: the task was told to stop")
        if self._lost is not None:
            raise EnvironmentLostError(f"{self}: environment {self.environment} is gone: {self._lost}")
        if self._lifecycle.state is not GateState.OPEN:
            raise PenstockError(f"{self} is {self._lifecycle.state.value}: it gives data between setup and close")

    def _channel(self, index: int) -> Channel:
        if not 0 <= index < len(self._channels):
            raise IndexError(f"{self} has no channel {index}: it has {len(self._channels)}")
        return self._channels[index]

    def _find(self, channel: Channel) -> MemoryPartition | None:
        return self._registry.find(channel.source.partition)

    def _poll(self) -> tuple[Channel, Stored] | None:
        for _ in range(len(self._open)):
            channel = self._open[0]
            self._open.rotate(-1)
            stored = channel.take(self._registry)
            if stored is not None:
                self._account(channel, stored)
                return channel, stored
        return None

    def _account(self, channel: Channel, stored: Stored) -> None:
        if stored.event is None:
            self._count(channel, stored)
        elif isinstance(stored.event, EndOfPartition):
            self._open.remove(channel)
            channel.leave(self._registry)
            arrived = channel.figures.end_of_partition()
            if arrived != stored.event:
                raise IncompleteDataError(
                    f"{self}, channel {channel.index}: subpartition {channel.subpartition} of "
                    f"{channel.source.partition} on {channel.source.environment} arrived as {arrived}, "
                    f"its writer counted {stored.event}"
                )

    def _count(self, channel: Channel, stored: Stored) -> None:
        received = Stored(stored.data, stored.rows, None)  # hashes what arrived, not what was promised
        channel.figures.add(received.rows, received.bytes, received.checksum)
        if not (channel.partition is not None and channel.partition.retained):
            self._registry.condition.notify_all()

    def _wait(self, deadline: float | None, timeout: float | None) -> None:
        left = remaining(deadline)
        if left == 0:
            raise TimeoutError(f"{self}: nothing arrived within {timeout} s from {len(self._open)} open channels")
        waiting = [channel for channel in self._open if channel.is_unproduced(self._registry)]
        for channel in waiting:
            unanswered = remaining(channel.requested_at + self._request_timeout)
            if unanswered == 0:
                raise PartitionNotProducedError(
                    f"{self}, channel {channel.index}: partition {channel.source.partition} was not produced within "
                    f"{self._request_timeout} s"
                )
            left = unanswered if left is None or unanswered is None else min(left, unanswered)
        began = time.monotonic()
        self._registry.condition.wait(left)
        self._owner.metrics.add("idle_seconds", time.monotonic() - began)
