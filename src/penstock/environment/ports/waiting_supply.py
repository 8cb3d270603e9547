# SPDX-License-Identifier: Apache-2.0
"""The segments of a pipelined partition's writer, which waits where its readers give none back.

With few subpartitions each has a segment of its own open at the writer. With more than the memory allows the writer
*packs*: all share one open segment, so it is guaranteed two segments, however many subpartitions there are. Which of
the two is decided here, once. Cost: a segment is free again when all have read what is in it.

A writer that has nothing to write holds no more than what it is guaranteed and a few segments ahead of need: else the
first writers would take what those that come later, perhaps the ones they wait for, are guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.buffer.local_pool import LocalPoolStatistics
from penstock.environment.memory import Allowance, HostMemory, packs
from penstock.environment.ports.grants import Grants
from penstock.errors import ProtocolError
from penstock.link.calls import STREAM_BUILDERS, OpenWriter
from penstock.settings import NetworkSettings

AHEAD = 8
"""Segments that are granted ahead of need at most."""


@dataclass(frozen=True, slots=True)
class WaitingMemory:
    """The parts that all these supplies use."""

    memory: HostMemory
    ahead: Allowance
    network: NetworkSettings


class WaitingSupply:
    """A `Supply` out of a pool that readers refill."""

    def __init__(self, parts: WaitingMemory, grants: Grants, request: OpenWriter) -> None:
        network, pool = parts.network, parts.memory.pool
        own = 1 if request.broadcast else request.subpartitions
        self.is_packed = not request.streams and packs(pool, own)
        builders = 1 if self.is_packed else min(own, STREAM_BUILDERS) if request.streams else own
        self._allowance = parts.ahead
        self._grants = grants
        self._is_open = True
        self._is_paused = False
        self._pool = grants.pool = pool.create_local_pool(
            builders + 1,
            own * network.exclusive_buffers_per_channel + network.floating_buffers_per_gate,
            network.overdraft_buffers_per_gate,
            owner=f"the writer of partition {request.partition}",
        )
        self._ahead = self._allowance.grant(min(AHEAD, self._pool.limits.maximum - self._pool.limits.required))

    @property
    def pool(self) -> LocalPoolStatistics:
        """Its buffers."""
        return self._pool.statistics()

    def refill(self) -> None:
        """Grant up to what the writer is to have at hand; what is missing comes when readers give it back."""
        while self._is_open and not self._has_enough and not self._pool.has_listeners:
            segment = self._pool.request()
            if segment is not None:
                self._grants.grant(segment)
            elif self._pool.add_listener(self._on_segment):
                return

    def pause(self, *, is_paused: bool) -> None:
        """Grant nothing more for the time being, or go on."""
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            self.refill()

    def overdraw(self) -> None:
        """One segment more, if the overdraft allows it."""
        segment = self._pool.request_overdraft() if self._is_open else None
        if segment is not None:
            self._grants.grant(segment)

    def check_stores(self) -> None:
        """Raise ProtocolError: the writer stores nothing."""
        raise ProtocolError("the writer of a pipelined partition stores nothing")

    def stored(self) -> None:
        """Never said."""

    def close(self) -> None:
        """Give up pool and allowance; idempotent."""
        if self._is_open:
            self._is_open = False
            self._allowance.take_back(self._ahead)
            self._pool.lazy_destroy()

    @property
    def _has_enough(self) -> bool:
        return self._is_paused or len(self._grants) >= self._pool.limits.required + self._ahead

    def _on_segment(self, segment: int | None) -> bool:
        if segment is None or not self._is_open or self._is_paused:
            return False
        self._grants.grant(segment)
        if not self._has_enough:
            self._pool.add_listener(self._on_segment)
        return True
