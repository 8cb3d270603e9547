# SPDX-License-Identifier: Apache-2.0
"""The partitions of one environment as their readers find them: views, and waiting for what is not produced yet."""

from __future__ import annotations

from collections.abc import Callable

from penstock.buffer.view import DataListener, ServableView, SubpartitionView
from penstock.errors import PenstockError
from penstock.partition.registry import PartitionRegistry, Waiter
from penstock.shuffle import PartitionId


class Partitions:
    """The partitions that gates and the data server read from. `now` gives seconds."""

    def __init__(self, registry: PartitionRegistry, now: Callable[[], float]) -> None:
        self._registry = registry
        self._now = now

    def local_view(self, partition: PartitionId, first: int, count: int, listener: DataListener) -> SubpartitionView:
        """A view for a reader on this host; raises the answer that fits where there is none."""
        return self._registry.find(partition).create_local_view(first, listener, count)

    def served_view(self, partition: PartitionId, first: int, count: int, listener: DataListener) -> ServableView:
        """A view for a reader on another host; raises as `local_view`."""
        return self._registry.find(partition).create_view(first, listener, count)

    def missing(self, partition: PartitionId, cause: str) -> PenstockError:
        """A reader on this host found a file gone: what it is told; raises the answer where the partition is gone."""
        return self._registry.find(partition).lost(cause)

    def wait(self, partition: PartitionId, waiter: Waiter) -> None:
        """Call the waiter when a partition that was not produced yet is there, or with why it won't be."""
        self._registry.wait(partition, waiter, self._now())

    def expire_waiting(self) -> None:
        """Answer those who have waited too long."""
        self._registry.expire_waiting(self._now())
