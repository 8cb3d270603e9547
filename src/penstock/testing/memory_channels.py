# SPDX-License-Identifier: Apache-2.0
"""The channels of a gate of the `memory` shuffle service: what its reader takes, and what the registry tells it.

A channel is *waiting* until its partition is known and may be read. Channels are served in turn, one entry each.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container
from dataclasses import dataclass

from penstock.errors import EnvironmentLostError, IncompleteDataError, PenstockError, TaskCancelledError
from penstock.lifecycle.endpoints import GateEvent, GateLifecycle, GateState
from penstock.shuffle import (
    ChannelDescriptor,
    EndOfData,
    EndOfPartition,
    EpochEnd,
    InputGateDescriptor,
    OwnerContext,
    ShuffleDescriptor,
    TaskHost,
)
from penstock.shuffle.sums import EpochEnds, Sums, sum_of
from penstock.testing.memory_partition import MemoryPartition, Stored
from penstock.testing.memory_registry import MemoryRegistry


class MemoryChannel:
    """One input channel: which partition it reads, how far it is, and what it has counted.

    A range is read one subpartition after the other; their ends are summed, and come once, after the last.
    """

    __slots__ = (
        "_closing",
        "_ends",
        "count",
        "ends",
        "figures",
        "index",
        "messages",
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
        self.messages = 0
        """Batches that were given."""
        self.figures = Sums()
        self.ends = EpochEnds(f"channel {index} of partition {descriptor.source.partition}")
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
        """Tell whether a real partition was asked for that no task writes."""
        return not self.source.is_unknown and not self.source.empty and registry.find(self.source.partition) is None

    def leave(self, registry: MemoryRegistry) -> None:
        """The reader leaves: what is left and all that follows is dropped, and the producer told."""
        if self.partition is not None:
            for subpartition in range(self.subpartition, self.subpartition + self.count):
                self.partition.end_reading(subpartition)
            registry.wake_all()
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
    """The surroundings of a gate: the registry, its task's host, and how long a request may stay unanswered."""

    registry: MemoryRegistry
    host: TaskHost
    request_timeout: float


class GateChannels:
    """A gate's channels, under the registry's lock but for `set_up` and `close`; `open` have not ended."""

    def __init__(self, context: GateContext, owner: OwnerContext, descriptor: InputGateDescriptor) -> None:
        self.environment = context.host.environment
        self.all = [MemoryChannel(index, channel) for index, channel in enumerate(descriptor.channels)]
        self.open = deque(self.all)
        self._registry = context.registry
        self._owner = owner
        self._lost: str | None = None
        self._lifecycle = GateLifecycle(f"gate {descriptor.gate} of {owner.name}")

    def __str__(self) -> str:
        return self._lifecycle.name

    def __getitem__(self, index: int) -> MemoryChannel:
        if not 0 <= index < len(self.all):
            raise IndexError(f"{self} has no channel {index}: it has {len(self.all)}")
        return self.all[index]

    def set_up(self) -> None:
        """Become known to `update_partition_info`, and start the clocks of the requests."""
        with self._registry.changing():
            self._lifecycle.move(GateEvent.SET_UP)
            for channel in self.all:
                channel.requested_at = time.monotonic()
            self._registry.gates.setdefault(self._owner.attempt, []).append(self)

    def close(self) -> None:
        """End all open channels: their producers drop what they still write for them; idempotent."""
        with self._registry.changing():
            if self._lifecycle.state is GateState.OPEN:
                for channel in self.open:
                    self._leave(channel)
                self._registry.forget_gate(self._owner.attempt, self)
            self._lifecycle.move(GateEvent.CLOSE)
            self.open.clear()

    def check(self) -> None:
        """Raise what ends the reading, where that has come."""
        if self._owner.attempt in self._registry.cancelled:
            raise TaskCancelledError(f"{self}: the task was told to stop")
        if self._lost is not None:
            raise EnvironmentLostError(f"{self}: environment {self.environment} is gone: {self._lost}")
        if self._lifecycle.state is not GateState.OPEN:
            raise PenstockError(f"{self} is {self._lifecycle.state.value}: it gives data between setup and close")

    def take(self, wanted: Container[int] | None = None) -> tuple[MemoryChannel, Stored] | None:
        """The next entry of any channel, or of these, counted; IncompleteDataError where sums differ at an end."""
        for _ in range(len(self.open)):
            channel = self.open[0]
            self.open.rotate(-1)
            stored = channel.take(self._registry) if wanted is None or channel.index in wanted else None
            if stored is not None:
                self.account(channel, stored)
                return channel, stored
        return None

    def account(self, channel: MemoryChannel, stored: Stored) -> None:
        """Count what was taken of a channel; IncompleteDataError where sums differ at the place of an end."""
        ends: list[EpochEnd] | list[EndOfPartition] = []
        if stored.event is None:
            self._count(channel, stored)
            ends = channel.ends.reached(channel.messages)
        elif isinstance(stored.event, EpochEnd):
            ends = channel.ends.came(stored.event, channel.messages)
        elif isinstance(stored.event, EndOfPartition):
            self.open.remove(channel)
            self._leave(channel)
            channel.ends.finish(channel.messages)
            ends = [stored.event]
        for end in ends:
            self._compare(channel, end)

    def _compare(self, channel: MemoryChannel, event: EndOfPartition | EpochEnd) -> None:
        arrived = channel.figures.end_of_partition()
        if arrived != EndOfPartition(event.rows, event.bytes, event.checksum):
            raise IncompleteDataError(
                f"{self}, channel {channel.index}: subpartition {channel.subpartition} of "
                f"{channel.source.partition} on {channel.source.environment} arrived as {arrived}, "
                f"its writer counted {event}"
            )

    def replace_unknown(self, descriptor: ShuffleDescriptor) -> None:
        """Take the real producer of the channels that wait for it; a channel that has one keeps it."""
        wanted = (descriptor.partition.dataset, descriptor.partition.index)
        for channel in self.open:
            known = channel.source.partition
            if channel.source.is_unknown and (known.dataset, known.index) == wanted:
                channel.source = descriptor
                channel.requested_at = time.monotonic()

    def lose(self, cause: str) -> None:
        """The environment beside this gate is gone."""
        self._lost = cause

    def _count(self, channel: MemoryChannel, stored: Stored) -> None:
        received = Stored(stored.data, stored.rows, None)  # hashes what arrived, not what was promised
        channel.figures.add(received.rows, received.bytes, received.checksum)
        channel.messages += 1

    def _leave(self, channel: MemoryChannel) -> None:
        channel.leave(self._registry)
