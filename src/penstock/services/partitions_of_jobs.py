# SPDX-License-Identifier: Apache-2.0
"""The partitions that a service's master has named, by job, and the end of a job: then all of it is forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.shuffle import PartitionId, ShuffleDescriptor


class PartitionsOfJobs:
    """The partitions that are not released. `forget(job)` runs once: the job is over, and nothing of it is held."""

    def __init__(self, forget: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self._forget = forget
        self._held: dict[str, dict[PartitionId, ShuffleDescriptor]] = {}
        self._over: set[str] = set()
        """The jobs that are over, and have partitions yet."""
        self._releasing: Counter[str] = Counter()
        self._forgetting: set[asyncio.Task[None]] = set()

    def begin(self, job: str) -> None:
        """A job begins."""
        self._held.setdefault(job, {})

    def add(self, descriptor: ShuffleDescriptor) -> None:
        """Hold a partition."""
        self._held.setdefault(descriptor.partition.job, {})[descriptor.partition] = descriptor

    async def release(
        self, descriptor: ShuffleDescriptor, release: Callable[[ShuffleDescriptor], Coroutine[Any, Any, None]]
    ) -> None:
        """Have a partition released that is held; its job is not forgotten meanwhile, but after it."""
        job = descriptor.partition.job
        if self._held.get(job, {}).pop(descriptor.partition, None) is None:
            return
        self._releasing[job] += 1
        try:
            await release(descriptor)
        finally:
            self._releasing[job] -= 1
            if self._is_done(job):
                await self._forget(job)

    def end(self, job: str) -> None:
        """A job is over. Its partitions that are held stay; where there is none, the job is forgotten soon."""
        self._over.add(job)
        if self._is_done(job):
            try:
                task = asyncio.get_running_loop().create_task(self._forget(job))
            except RuntimeError:  # no loop runs any more: the application is about to end, and all of it goes
                return
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    def clear(self) -> list[ShuffleDescriptor]:
        """Hold nothing; what was held."""
        held = [descriptor for job in self._held.values() for descriptor in job.values()]
        self._held.clear()
        return held

    def _is_done(self, job: str) -> bool:
        if job not in self._over or self._held.get(job) or self._releasing[job]:
            return False
        self._over.discard(job)
        self._held.pop(job, None)
        del self._releasing[job]
        return True
