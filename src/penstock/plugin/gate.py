# SPDX-License-Identifier: Apache-2.0
"""The gate over stored partitions, whichever service stores them: what each of them does but for the fetching.

Rules: a channel is opened when its producer is known. An error that a poll has raised is raised by each later one.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from penstock.errors import PartitionError, PenstockError
from penstock.lifecycle.endpoints import GateEvent, GateLifecycle
from penstock.plugin.awaited_producers import AwaitedProducers
from penstock.shuffle import (
    ChannelDescriptor,
    InputGateDescriptor,
    OwnerContext,
    Received,
    ShuffleDescriptor,
    TaskHost,
)


class StoredGate:
    """The base of an `InputGate`: a service says how a channel is opened, gives what is there, and lets go."""

    def __init__(self, host: TaskHost, owner: OwnerContext, descriptor: InputGateDescriptor) -> None:
        self.descriptor = descriptor
        self._host = host
        self._metrics = owner.metrics
        self._awaited = AwaitedProducers()
        self._error: PenstockError | None = None
        self._lifecycle = GateLifecycle(f"gate {descriptor.gate} of {owner.name}")

    def has_open(self) -> bool:
        """Tell whether a channel that was opened has not ended."""
        raise NotImplementedError

    def open(self, channels: Sequence[tuple[int, ChannelDescriptor]]) -> None:
        """Begin with channels whose producers are known; PartitionError for one that can't be read."""
        raise NotImplementedError

    def next(self) -> Received | None:
        """The batch or event that is there; None, and the task's wait ends when there may be one."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Fetch no more; idempotent."""
        raise NotImplementedError

    def setup(self) -> None:
        """Begin with the partitions that are known already."""
        self._lifecycle.move(GateEvent.SET_UP)
        try:
            self.open(self._awaited.known(self.descriptor.channels))
        except PartitionError as error:
            self._error = error  # a reader hears of it where it reads

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""
        return not (self._error or self._awaited or self.has_open())

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """Take the batch or event that is there, or do what can be done for one; None if nothing is there."""
        self._host.check_cancelled()
        if self._error is not None:
            raise self._error
        try:
            if arrived := self._awaited.arrived():
                self.open(arrived)
            received = self.next()
        except PenstockError as error:
            self._error = error
            raise
        if received is not None and received.batch is not None:
            self._metrics.add("rows_in", received.batch.num_rows)
        return received

    def poll_ahead(self) -> None:
        """Nothing overtakes rows."""

    def resume_consumption(self, channel: int) -> None:
        """No channel is ever blocked."""

    def close(self) -> None:
        """Fetch no more; idempotent."""
        self._lifecycle.move(GateEvent.CLOSE)
        self._awaited.clear()
        self.let_go()

    def update(self, real: ShuffleDescriptor) -> bool:
        """Put a producer where it is unknown; False where this gate does not wait for it. Any thread."""
        is_awaited = self._awaited.learn(real)
        if is_awaited:
            self._host.waker()()
        return is_awaited
