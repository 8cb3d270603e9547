# SPDX-License-Identifier: Apache-2.0
"""The producers that gates wait to hear of, where the gates are a service's own: in the gate, and in its environment.

A job may start a consumer ahead of its producers. Their channels are unknown until
`update_partition_info` names them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.shuffle import AttemptId, ChannelDescriptor, InputGate, PartitionId, ShuffleDescriptor


class AwaitedProducers:
    """The channels of one gate without a producer. `learn` is called by any thread, all else by the task's."""

    def __init__(self) -> None:
        self._channels: dict[int, ChannelDescriptor] = {}
        self._learned: deque[tuple[int, ShuffleDescriptor]] = deque()

    def __bool__(self) -> bool:
        """True while a channel has no producer."""
        return bool(self._channels)

    def known(self, channels: Sequence[ChannelDescriptor]) -> list[tuple[int, ChannelDescriptor]]:
        """The channels, with their numbers, whose producers are known; the others are awaited from now on."""
        numbered = list(enumerate(channels))
        self._channels.update((number, channel) for number, channel in numbered if channel.source.is_unknown)
        return [(number, channel) for number, channel in numbered if not channel.source.is_unknown]

    def learn(self, real: ShuffleDescriptor) -> bool:
        """Hear of a producer; False where no channel waits for it."""
        wanted = PartitionId(real.partition.dataset, real.partition.index, -1)
        found = [number for number, channel in list(self._channels.items()) if channel.source.partition == wanted]
        self._learned.extend((number, real) for number in found)
        return bool(found)

    def arrived(self) -> list[tuple[int, ChannelDescriptor]]:
        """The channels whose producers became known since the last call; each is given once."""
        found = []
        while self._learned:
            number, real = self._learned.popleft()
            if (channel := self._channels.pop(number, None)) is not None:
                found.append((number, ChannelDescriptor(real, channel.subpartition, channel.count)))
        return found

    def clear(self) -> None:
        """Wait for none any more."""
        self._channels.clear()


class UpdatedGate(InputGate, Protocol):
    """A gate that hears of its producers from its environment."""

    def update(self, real: ShuffleDescriptor) -> bool:
        """Put a producer where it is unknown; False where this gate does not wait for it. Any thread."""


class GatesOfTasks:
    """The gates that an environment has made."""

    def __init__(self) -> None:
        self._gates: list[tuple[AttemptId, UpdatedGate]] = []

    def add(self, consumer: AttemptId, gates: Iterable[UpdatedGate]) -> None:
        """Gates of a task."""
        self._gates += [(consumer, gate) for gate in gates]

    def update(self, consumer: AttemptId, real: ShuffleDescriptor) -> bool:
        """Tell all gates of a task; False where none waits for it. Any thread."""
        updated = [gate.update(real) for attempt, gate in self._gates if attempt == consumer]
        return any(updated)
