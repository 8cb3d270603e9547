# SPDX-License-Identifier: Apache-2.0
"""Memory for the buffers in which sort-merge writers collect their rows, out of the network memory's budget.

The buffers themselves are the tasks' own memory. So that both together stay within `spark.penstock.network.memory`,
as many segments as a buffer is large are reserved here and stay unused while the writer writes. An eighth of all
stays for gates and pipelined partitions. Of what else is not guaranteed to others a writer gets what it wants, but at
most an eighth, so that those who come later get something too (`LEAST` bytes at the least); where not even that is
free it waits, with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.buffer import NetworkBufferPool
from penstock.errors import InsufficientBuffersError, TaskCancelledError

LEAST = 1 << 20
"""Bytes below which a region would be too small to be worth its place in the index."""

SHARE = 8
"""One writer takes at most this part of what is free, and all of them leave this part of the whole."""
PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class SortGrant:
    """The grant of one writer; `give_back` once."""

    bytes: int
    give_back: Callable[[], None]


class SortBuffers:
    """The sort buffers of one environment's writers."""

    def __init__(self, pool: NetworkBufferPool, segment_size: int, patience: float = PATIENCE_SECONDS) -> None:
        self._pool = pool
        self._segment = segment_size
        self._patience = patience

    async def reserve(self, wanted: int, owner: str, is_cancelled: Callable[[], bool]) -> SortGrant:
        """Memory for one writer; raises InsufficientBuffersError after the deadline, TaskCancelledError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while (buffer := self._try(wanted, owner)) is None:
            if is_cancelled():
                raise TaskCancelledError(f"{owner} was told to stop while it waited for a sort buffer")
            if loop.time() > deadline:
                raise self._too_little(owner)
            await asyncio.sleep(_LOOK_SECONDS)
        return buffer

    def _try(self, wanted: int, owner: str) -> SortGrant | None:
        figures = self._pool.statistics()
        free = figures.total - figures.guaranteed - figures.total // SHARE
        least = -(-LEAST // self._segment)
        if free < least:
            return None
        count = min(max(least, -(-wanted // self._segment)), max(least, free // SHARE))
        reserved = self._pool.reserve_exclusive(count, owner=owner)
        return SortGrant(min(wanted, count * self._segment), reserved.lazy_destroy)

    def _too_little(self, owner: str) -> InsufficientBuffersError:
        figures = self._pool.statistics()
        left = (figures.total - figures.guaranteed) * self._segment
        return InsufficientBuffersError(
            f"{owner} needs a sort buffer of at least {LEAST} bytes, but of {figures.total * self._segment} bytes of "
            f"network memory only {left} are not guaranteed to others, and no more came free in {self._patience:.0f} "
            "s. Raise spark.penstock.network.memory, or lower spark.penstock.blocking.sortBuffer."
        )
