# SPDX-License-Identifier: Apache-2.0
"""A local buffer pool: the share of the network memory that one gate or one result partition may use.

Rules:

- It hands out segment indices, at most `size` at a time. The network pool sets `size` between `required`
  (guaranteed) and `maximum`, and changes it while segments are out.
- It keeps no idle segments of its own: what comes back goes to the network pool's free list, newest on top, unless
  a listener of this pool takes it. So availability can't get out of step with the segments.
- Overdraft lets a task that is in the middle of a batch finish it: up to `overdraft` segments above the size, taken
  only from what is free. A pool in overdraft, or shrunk below what is out, is unavailable until enough came back.
- A destroyed pool refuses requests with TaskCancelledError; its segments that are still out come back one by one.

One thread only (the environment's event loop). Listeners are called when all books are straight, so they may call
back into any pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import TaskCancelledError

Listener = Callable[[int | None], bool]
"""Called once with a segment (True: taken, it is now out; False: not wanted, the next listener is asked) or with
None when the pool is destroyed. To be called again it must be added again, but not from within a call that refuses:
that would ask for what was just declined. It must not raise."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The segments that a pool is guaranteed, those that it may have at most, and its overdraft on top."""

    required: int
    maximum: int
    overdraft: int = 0

    def __post_init__(self) -> None:
        if self.required < 1 or self.maximum < self.required or self.overdraft < 0:
            raise ValueError(
                f"a pool of {self.required} to {self.maximum} segments with an overdraft of {self.overdraft}: "
                "it takes required >= 1, maximum >= required and overdraft >= 0"
            )


@dataclass(frozen=True, slots=True)
class LocalPoolStatistics:
    """A snapshot of one pool, in segments; `excess` is what is out above the size."""

    owner: str
    required: int
    maximum: int
    overdraft: int
    size: int
    requested: int
    excess: int
    listeners: int


class SegmentSource(Protocol):
    """The methods of the network pool that a local pool calls."""

    def take(self, pool: LocalBufferPool) -> int | None:
        """A free segment, now owned by `pool`."""

    def put_back(self, segment: int, pool: LocalBufferPool) -> None:
        """A segment of `pool` is free again; raises ValueError when it is not the pool's."""

    def wait(self, pool: LocalBufferPool) -> None:
        """The pool has a listener and no segment for it."""

    def serve(self, first: LocalBufferPool | None) -> None:
        """Offer free segments to waiting pools, `first` before the others."""

    def drop(self, pool: LocalBufferPool) -> None:
        """The pool was destroyed: its guarantee is free for others."""

    @property
    def free(self) -> int:
        """The number of free segments."""


class LocalBufferPool:
    """One gate's or partition's share. Made by `NetworkBufferPool.create_local_pool`, ended by `lazy_destroy`."""

    __slots__ = ("_destroyed", "_listeners", "_requested", "_size", "_source", "limits", "owner")

    def __init__(self, source: SegmentSource, limits: PoolLimits, owner: str) -> None:
        self._source = source
        self.limits = limits
        self.owner = owner
        self._size = limits.required
        self._requested = 0
        self._listeners: deque[Listener] = deque()
        self._destroyed = False

    @property
    def size(self) -> int:
        """The number of segments that the pool may have out at the moment, overdraft apart."""
        return self._size

    @property
    def requested(self) -> int:
        """The number of segments that are out."""
        return self._requested

    @property
    def is_destroyed(self) -> bool:
        """True once `lazy_destroy` was called."""
        return self._destroyed

    @property
    def is_available(self) -> bool:
        """True if `request` would give a segment."""
        return not self._destroyed and self._requested < self._size and self._source.free > 0

    @property
    def has_listeners(self) -> bool:
        """True if a listener waits."""
        return bool(self._listeners)

    @property
    def wants(self) -> bool:
        """True if a listener waits for a segment that the pool may have."""
        return bool(self._listeners) and self._requested < self._size

    def request(self) -> int | None:
        """A segment, or None when the size is used up or none is free. TaskCancelledError when destroyed."""
        return self._take(self._size)

    def request_overdraft(self) -> int | None:
        """Like `request`, but may go above the size by the overdraft."""
        return self._take(self._size + self.limits.overdraft)

    def _take(self, limit: int) -> int | None:
        if self._destroyed:
            raise TaskCancelledError(
                f"the buffer pool of {self.owner} is destroyed: its task has ended or was stopped"
            )
        if self._requested >= limit:
            return None
        segment = self._source.take(self)
        if segment is not None:
            self._requested += 1
        return segment

    def recycle(self, segment: int) -> None:
        """Give a segment back; the pool's own listeners come first, then other waiting pools."""
        self._source.put_back(segment, self)
        self._requested -= 1
        self._source.serve(self)

    def add_listener(self, listener: Listener) -> bool:
        """Register for one notification. False, and not registered, when a segment is to be had or never will be."""
        if self._destroyed or self.is_available:
            return False
        self._listeners.append(listener)
        self._source.wait(self)
        return True

    def offer(self) -> bool:
        """Take a free segment and offer it to the listeners that wait now, oldest first; True when one took it."""
        segment = self._take(self._size)
        if segment is None:
            return False
        accepted = False
        try:
            # Counted beforehand: a listener that refuses and registers anew is not asked twice for one segment.
            for _ in range(len(self._listeners)):
                if not self._listeners or accepted:
                    break
                accepted = self._listeners.popleft()(segment)
        finally:
            if not accepted:
                self._source.put_back(segment, self)
                self._requested -= 1
        return accepted

    def set_size(self, size: int) -> None:
        """Called by the network pool. Shrinking takes nothing away: the excess goes back as it is recycled."""
        if size < self.limits.required:
            raise ValueError(f"{size} segments are below the {self.limits.required} guaranteed to {self.owner}")
        self._size = min(size, self.limits.maximum)

    def lazy_destroy(self) -> None:
        """End the pool and tell its listeners; idempotent. Segments that are out come back by `recycle`."""
        if self._destroyed:
            return
        self._destroyed = True
        listeners, self._listeners = self._listeners, deque()
        self._source.drop(self)
        for listener in listeners:
            listener(None)

    def statistics(self) -> LocalPoolStatistics:
        """The sizes and counts at this moment."""
        return LocalPoolStatistics(
            owner=self.owner,
            required=self.limits.required,
            maximum=self.limits.maximum,
            overdraft=self.limits.overdraft,
            size=self._size,
            requested=self._requested,
            excess=max(0, self._requested - self._size),
            listeners=len(self._listeners),
        )
