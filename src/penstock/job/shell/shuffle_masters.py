# SPDX-License-Identifier: Apache-2.0
"""The driver sides of the shuffle services in use, started when a job first needs one.

Runs on the JobMaster's event loop. A service is asked for every partition before its producer is deployed, is
told of each job once, and is closed last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import SettingError
from penstock.job.core.instructions import RegisterPartition
from penstock.shuffle import (
    Metric,
    NamedResults,
    PartitionId,
    ShuffleDescriptor,
    ShuffleMaster,
    ShuffleMasterContext,
    declared_metrics,
    load_service,
)

_LOG = logging.getLogger(__name__)
_CLOSE_SECONDS = 5.0

Lost = Callable[[tuple[PartitionId, ...], str], None]


@dataclass(frozen=True, slots=True)
class _JobContext:
    """The calls that a ShuffleMaster may make on us for one job."""

    job: str
    lost: Lost

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Say that partitions are gone."""
        self.lost(tuple(partitions), cause)


class ShuffleMasters:
    """All ShuffleMasters of one application."""

    def __init__(self, context: ShuffleMasterContext, lost: Lost) -> None:
        self._context = context
        self._lost = lost
        self._starting: dict[str, asyncio.Task[ShuffleMaster]] = {}
        self._jobs: dict[str, set[str]] = {}
        self.metrics: dict[str, Metric] = {}
        """The metrics that services declare, by the figures they are made from."""

    async def register(self, instruction: RegisterPartition) -> ShuffleDescriptor:
        """Register a partition with its service; raises what the service raises."""
        job = instruction.producer.attempt.job
        master = await self._master(instruction.service)
        services = self._jobs.setdefault(job, set())
        if instruction.service not in services:
            services.add(instruction.service)
            master.register_job(_JobContext(job, self._lost))
        return await master.register_partition_with_producer(job, instruction.partition, instruction.producer)

    async def release(self, descriptors: Iterable[ShuffleDescriptor]) -> None:
        """Release what is held outside the hosts."""
        for descriptor in descriptors:
            try:
                master = await self._master(descriptor.service)
                await master.release_partition_externally(descriptor)
            except Exception:  # noqa: BLE001 - a plug-in's failure must not keep the other partitions
                _LOG.exception("%s could not be released by service %s", descriptor.partition, descriptor.service)

    async def unregister_job(self, job: str) -> None:
        """A job is over."""
        for service in self._jobs.pop(job, set()):
            (await self._master(service)).unregister_job(job)

    async def named_results(self, service: str) -> NamedResults:
        """The results that a service keeps by name; SettingError where it keeps none."""
        master: Any = await self._master(service)
        if not load_service(service).capabilities.keeps_by_name:
            raise SettingError(
                f"the shuffle service {service!r} keeps no results by name, beyond their application: use"
                " service='external' or 'remote'"
            )
        results: NamedResults = master
        return results

    async def close(self) -> None:
        """Close all; idempotent."""
        starting, self._starting = self._starting, {}
        for name, task in starting.items():
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await (await task).close()
            except Exception:  # noqa: BLE001 - a plug-in's failure must not keep the others open
                _LOG.exception("shuffle service %s could not be closed", name)

    async def _master(self, service: str) -> ShuffleMaster:
        task = self._starting.get(service)
        if task is None:
            task = self._starting[service] = asyncio.ensure_future(self._start(service))
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._starting.get(service) is task:
                del self._starting[service]
            raise

    async def _start(self, service: str) -> ShuffleMaster:
        found = load_service(service)
        master = found.create_shuffle_master(self._context)
        await master.start()
        self.metrics.update((metric.figure, metric) for metric in declared_metrics(found))
        return master
