# SPDX-License-Identifier: Apache-2.0
"""The network buffer pool: which segment belongs to whom, and how the spare is shared. Indices only, no memory.

Rules:

- Every segment is in exactly one place: the free list, or out at one local pool. `check` asserts it.
- The sum of what pools are guaranteed never exceeds the total; a pool that does not fit is refused with the numbers.
- Segments that are not guaranteed are the spare. It is shared among the pools that can grow, in proportion to how
  much each can still use, whenever a pool comes or goes. Cumulative rounding leaves no segment undistributed.
- The free list is last in, first out: a warm segment is written an order of magnitude faster than a fresh one.
- Exclusive segments of remote channels are a pool of fixed size. One reservation per gate is the cheapest way.

One thread only. A guarantee can be late: when other pools shrink, their excess comes back as it is recycled, and
waiting pools are served from it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from penstock.buffer.local_pool import LocalBufferPool, PoolLimits
from penstock.errors import InsufficientBuffersError


@dataclass(frozen=True, slots=True)
class NetworkPoolStatistics:
    """A snapshot of the whole network memory, in segments."""

    total: int
    free: int
    in_use: int
    guaranteed: int
    pools: int
    waiting: int


class NetworkBufferPool:
    """All segments of one environment process."""

    __slots__ = (
        "_fixed",
        "_free",
        "_guaranteed",
        "_owners",
        "_resizable",
        "_serve_again",
        "_serving",
        "_total",
        "_waiting",
    )

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a network buffer pool of {total} segments: it takes at least one")
        self._total = total
        self._free = list(range(total - 1, -1, -1))
        self._owners: list[LocalBufferPool | None] = [None] * total
        self._guaranteed = 0
        # Dicts as ordered sets: shares and turns must not depend on hashes.
        self._resizable: dict[LocalBufferPool, None] = {}
        self._fixed: dict[LocalBufferPool, None] = {}
        self._waiting: dict[LocalBufferPool, None] = {}
        self._serving = False
        self._serve_again = False

    @property
    def total(self) -> int:
        """The number of segments."""
        return self._total

    @property
    def free(self) -> int:
        """The number of segments that no local pool holds."""
        return len(self._free)

    @property
    def guaranteed(self) -> int:
        """The number of segments that are guaranteed to pools."""
        return self._guaranteed

    def create_local_pool(
        self, required: int, maximum: int, overdraft: int = 0, owner: str = "a pool"
    ) -> LocalBufferPool:
        """A pool with a guarantee; raises InsufficientBuffersError when the guarantee does not fit."""
        pool = LocalBufferPool(self, PoolLimits(required, maximum, overdraft), owner)
        left = self._total - self._guaranteed
        if required > left:
            raise InsufficientBuffersError(
                f"{owner} needs {required} network buffers, but of {self._total} only {left} are not yet guaranteed "
                f"to the {len(self._resizable) + len(self._fixed)} pools there are. Raise "
                "spark.penstock.network.memory, lower spark.penstock.network.segmentSize, or use fewer partitions."
            )
        self._guaranteed += required
        (self._resizable if maximum > required else self._fixed)[pool] = None
        self._redistribute()
        return pool

    def reserve_exclusive(self, count: int, owner: str = "exclusive buffers") -> LocalBufferPool:
        """A pool of exactly `count` segments, as remote channels need them for their initial credit."""
        return self.create_local_pool(count, count, owner=owner)

    def close(self) -> None:
        """Destroy all pools; idempotent. Segments that are out still come back by `recycle`."""
        for pool in [*self._resizable, *self._fixed]:
            pool.lazy_destroy()

    def statistics(self) -> NetworkPoolStatistics:
        """The sizes and counts at this moment."""
        return NetworkPoolStatistics(
            total=self._total,
            free=len(self._free),
            in_use=self._total - len(self._free),
            guaranteed=self._guaranteed,
            pools=len(self._resizable) + len(self._fixed),
            waiting=len(self._waiting),
        )

    def take(self, pool: LocalBufferPool) -> int | None:
        """A free segment for a local pool."""
        if not self._free:
            return None
        segment = self._free.pop()
        self._owners[segment] = pool
        return segment

    def put_back(self, segment: int, pool: LocalBufferPool) -> None:
        """A local pool's segment is free again; raises ValueError when it was not the pool's."""
        if not 0 <= segment < self._total or self._owners[segment] is not pool:
            raise ValueError(f"segment {segment} is not out at the pool of {pool.owner}")
        self._owners[segment] = None
        self._free.append(segment)

    def wait(self, pool: LocalBufferPool) -> None:
        """Remember a pool that has a listener."""
        self._waiting[pool] = None

    def drop(self, pool: LocalBufferPool) -> None:
        """Forget a destroyed pool; its guarantee becomes spare."""
        self._resizable.pop(pool, None)
        self._fixed.pop(pool, None)
        self._waiting.pop(pool, None)
        self._guaranteed -= pool.limits.required
        self._redistribute()
        self.serve(None)

    def serve(self, first: LocalBufferPool | None) -> None:
        """Offer free segments to waiting pools, one each in turn. Calls out of a listener are put off, not nested."""
        if not self._waiting:
            return
        if self._serving:
            self._serve_again = True
            return
        self._serving = True
        try:
            self._serve_round(first)
            while self._serve_again:
                self._serve_again = False
                self._serve_round(None)
        finally:
            self._serving = self._serve_again = False

    def _serve_round(self, first: LocalBufferPool | None) -> None:
        turns = deque(self._waiting)
        if first in self._waiting and turns[0] is not first:
            turns.remove(first)
            turns.appendleft(first)
        while turns and self._free:
            pool = turns.popleft()
            if not pool.wants:
                continue
            # Taken out and put in again: who was served waits behind the others next time.
            del self._waiting[pool]
            try:
                accepted = pool.offer()
            finally:
                if pool.has_listeners:
                    self._waiting[pool] = None
            if accepted:
                turns.append(pool)

    def _redistribute(self) -> None:
        spare = self._total - self._guaranteed
        weights = [(pool, min(spare, pool.limits.maximum - pool.limits.required)) for pool in self._resizable]
        whole = sum(weight for _, weight in weights)
        shared = min(spare, whole)
        seen = given = 0
        for pool, weight in weights:
            seen += weight
            share = shared * seen // whole - given if whole else 0
            given += share
            pool.set_size(pool.limits.required + share)
        self.serve(None)

    def check(self) -> None:
        """Assert that the books are straight: used by tests after every step."""
        out = Counter(pool for pool in self._owners if pool is not None)
        pools = [*self._resizable, *self._fixed]
        rules = {
            "no segment is free twice": len(set(self._free)) == len(self._free),
            "a segment is free or out, never both": all(self._owners[segment] is None for segment in self._free),
            "no segment is nowhere": len(self._free) + out.total() == self._total,
            "pools count what is out": all(pool.requested == out[pool] for pool in {*pools, *out}),
            "guarantees fit": sum(pool.limits.required for pool in pools) == self._guaranteed <= self._total,
            "sizes fit": sum(pool.size for pool in pools) <= self._total,
            "sizes are within limits": all(p.limits.required <= p.size <= p.limits.maximum for p in pools),
            "only live pools wait": all(not pool.is_destroyed for pool in self._waiting),
            "nobody waits for what is free": not (self._free and any(pool.wants for pool in self._waiting)),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise AssertionError(f"network buffer pool: broken {', '.join(broken)}")
