# SPDX-License-Identifier: Apache-2.0
"""The gate over partitions that services give on request: one connection to each service, read without threads.

Rules: nothing is received that no reader has asked for, so a task that is busy leaves bytes with the kernel and the
service, not in its own memory. Channels whose data is there take turns. A poll that gives nothing has the connections
watched, until one of them can go on or the next poll comes. A gate looks at its
connections every twentieth of a second: the time in which a service gives nothing is counted by looks.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Sequence

from penstock.plugin.gate import StoredGate
from penstock.services.fetching.line import ServiceLine
from penstock.services.fetching.parts import FetchedChannel, FetchedPiece, FetchSources
from penstock.shuffle import (
    ChannelDescriptor,
    InputGateDescriptor,
    OwnerContext,
    Received,
    TaskHost,
)

_LOOK_SECONDS = 0.05


class FetchingGate(StoredGate):
    """An `InputGate`."""

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: InputGateDescriptor,
        sources: FetchSources,
    ) -> None:
        super().__init__(host, owner, descriptor)
        self._sources = sources
        self._readers: dict[int, FetchedChannel] = {}
        self._turns: deque[int] = deque()
        self._lines: dict[str, ServiceLine] = {}
        self._watched: list[int] = []
        """The descriptors of connections that the host watches."""

    def has_open(self) -> bool:
        """Tell whether a channel that was opened has not ended."""
        return bool(self._readers)

    def open(self, channels: Sequence[tuple[int, ChannelDescriptor]]) -> None:
        """Begin with channels whose producers are known."""
        for number, channel in channels:
            self._readers[number] = self._sources.channel(number, channel, self.descriptor)
            self._turns.append(number)

    def next(self) -> Received | None:
        """Give what is there, or do what can be done without waiting, and give what that has brought."""
        self._unwatch()
        received = self._ready()
        if received is None:
            self._move()
            received = self._ready()
        if received is None and not self.is_ended:
            self._watch()
        return received

    def let_go(self) -> None:
        """Close the connections; idempotent."""
        self._unwatch()
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._readers.clear()
        self._sources.close()

    def _ready(self) -> Received | None:
        for _ in range(len(self._turns)):
            reader = self._readers[self._turns[0]]
            received = reader.next()
            if reader.is_over:
                del self._readers[self._turns.popleft()]
            else:
                self._turns.rotate(-1)
            if received is not None:
                return received
        return None

    def _move(self) -> None:
        now = time.monotonic()
        for reader in list(self._readers.values()):
            if wanted := reader.wants(now):
                self._line(reader).fetches.want(wanted)
        for line in list(self._lines.values()):
            for fetched in self._fetched(line, now):
                if (waiting := self._readers.get(fetched.wanted.channel)) is not None:
                    line.fetches.want(waiting.took(fetched, now))
                    self._metrics.add("bytes_in", 0 if fetched.data is None else fetched.data.size)

    def _fetched(self, line: ServiceLine, now: float) -> list[FetchedPiece]:
        try:
            return line.move(now)
        except TimeoutError as error:
            lost = [reader for reader in self._readers.values() if self._line(reader) is line and not reader.is_over]
            raise lost[0].lose(str(error)) from error

    def _watch(self) -> None:
        """Have the task's wait end when a connection can go on, or something is due."""
        now = time.monotonic()
        dues = [reader.due for reader in self._readers.values()] + [line.due for line in self._lines.values()]
        self._host.wake_in(max(0.001, min([_LOOK_SECONDS, *(due - now for due in dues if due is not None)])))
        for wire in [line.wire for line in self._lines.values() if line.wire is not None and line.fetches]:
            number = wire.fileno()
            self._watched.append(number)
            # Once: while the task does not ask this gate, its bytes must not end the task's wait again and again.
            self._host.watch(number, functools.partial(self._host.unwatch, number), writes=wire.wants_write)

    def _unwatch(self) -> None:
        while self._watched:
            self._host.unwatch(self._watched.pop())

    def _line(self, reader: FetchedChannel) -> ServiceLine:
        source = reader.wanted.source
        name = self._sources.line_name(source)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = self._sources.line(source)
        return line
