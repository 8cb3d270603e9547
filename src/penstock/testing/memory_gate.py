# SPDX-License-Identifier: Apache-2.0
"""The input gate of the `memory` shuffle service: fair, synchronous, with figures checked at each channel's end.

Rules: one thread reads; `update_partition_info` and `close` may come from another. While nobody writes a channel's
partition, the request has a deadline and then PartitionNotProducedError. `close` before a channel's end makes its
producer drop the rest.
"""

from __future__ import annotations

import time

from penstock.shuffle import InputGateDescriptor, OwnerContext, Received
from penstock.shuffle.errors import PartitionNotProducedError
from penstock.testing.memory_channels import GateChannels, GateContext
from penstock.testing.memory_partition import decode
from penstock.testing.memory_registry import remaining


class MemoryInputGate:
    """Reads one input of a subtask; see `InputGate` for the promises."""

    def __init__(self, context: GateContext, owner: OwnerContext, descriptor: InputGateDescriptor) -> None:
        self._registry = context.registry
        self._request_timeout = context.request_timeout
        self._metrics = owner.metrics
        self._descriptor = descriptor
        self._channels = GateChannels(context, owner, descriptor)

    @property
    def descriptor(self) -> InputGateDescriptor:
        """The descriptor that this gate was made from."""
        return self._descriptor

    def setup(self) -> None:
        """Become known to `update_partition_info` and start the clocks of the requests."""
        self._channels.set_up()

    def next(self, timeout: float | None = None) -> Received | None:
        """The next batch or event of any channel, None after the last; TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._registry.condition:
            while True:
                self._channels.check()
                if not self._channels.open:
                    return None
                found = self._channels.take()
                if found is not None:
                    break
                self._wait(deadline, timeout)
        channel, stored = found
        if stored.data is None:
            return Received(channel.index, event=stored.event)
        return Received(channel.index, batch=decode(stored.data))

    def resume_consumption(self, channel: int) -> None:
        """Let a blocked channel go on. No event of a batch job blocks one, so this only checks its argument."""
        with self._registry.condition:
            self._channels.check()
            self._channels[channel]

    def close(self) -> None:
        """End all open channels: their producers drop what they still write for them."""
        self._channels.close()

    def _wait(self, deadline: float | None, timeout: float | None) -> None:
        left, channels = remaining(deadline), self._channels
        if left == 0:
            raise TimeoutError(
                f"{channels}: nothing arrived within {timeout} s from {len(channels.open)} open channels"
            )
        waiting = [channel for channel in channels.open if channel.is_unproduced(self._registry)]
        for channel in waiting:
            unanswered = remaining(channel.requested_at + self._request_timeout)
            if unanswered == 0:
                raise PartitionNotProducedError(
                    f"{channels}, channel {channel.index}: partition {channel.source.partition} was not produced"
                    f" within {self._request_timeout} s"
                )
            left = unanswered if left is None or unanswered is None else min(left, unanswered)
        began = time.monotonic()
        self._registry.condition.wait(left)
        self._metrics.add("idle_seconds", time.monotonic() - began)
