# SPDX-License-Identifier: Apache-2.0
"""The driver sides of the shuffle services in use, started when a job first needs one.

Runs on the JobMaster's event loop. A service is asked for every partition before its producer is deployed, is
told of each job once, and is closed last. It hears that a job is over when it has answered for all partitions of that
job: none is registered or released after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
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
CALL_SECONDS = 60.0
"""So long a job that is over waits for what services were asked for it."""

Lost = Callable[[tuple[PartitionId, ...], str], None]


@dataclass(frozen=True, slots=True)
class _JobContext:
    """The calls that a ShuffleMaster may make on us for one job."""

    job: str
    lost: Lost

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Say that partitions are gone."""
        self.lost(tuple(partitions), cause)


class _KnownJob:
    """A job that services know, and the calls for it that have not returned."""

    def __init__(self) -> None:
        self.services: set[str] = set()
        self.calls = 0
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        """A call begins."""
        self.calls += 1
        self._none.clear()

    def end(self) -> None:
        """A call has returned."""
        self.calls -= 1
        if not self.calls:
            self._none.set()

    async def wait_none(self) -> None:
        """Wait until none is under way."""
        while self.calls:
            await self._none.wait()


class ShuffleMasters:
    """All ShuffleMasters of one application."""

    def __init__(self, context: ShuffleMasterContext, lost: Lost) -> None:
        self._context = context
        self._lost = lost
        self._starting: dict[str, asyncio.Task[ShuffleMaster]] = {}
        self._jobs: dict[str, _KnownJob] = {}
        self.metrics: dict[str, Metric] = {}
        """The metrics that services declare, by the figures they are made from."""

    async def register(self, instruction: RegisterPartition) -> ShuffleDescriptor:
        """Register a partition with its service; raises what the service raises."""
        job = instruction.producer.attempt.job
        known = self._jobs.setdefault(job, _KnownJob())
        known.begin()
        try:
            master = await self._master(instruction.service)
            if instruction.service not in known.services:
                known.services.add(instruction.service)
                master.register_job(_JobContext(job, self._lost))
            return await master.register_partition_with_producer(job, instruction.partition, instruction.producer)
        finally:
            known.end()

    def release(self, job: str, descriptors: Iterable[ShuffleDescriptor]) -> Coroutine[Any, Any, None]:
        """Release what is held of a job outside the hosts; of one that is over nothing is.

        The release counts as under way from this call on, and not from when it is first awaited.
        """
        known = self._jobs.get(job)
        if known is None:
            return _nothing()
        known.begin()
        return self._release(known, descriptors)

    async def unregister_job(self, job: str) -> None:
        """A job is over: tell its services, when all that they were asked for it has returned."""
        known = self._jobs.get(job)
        if known is None:
            return
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await known.wait_none()
        except TimeoutError:
            what = f"{known.calls} registrations and releases of its partitions are under way"
            _LOG.warning("job %s is unregistered, though %s after %g s", job, what, CALL_SECONDS)
        if self._jobs.pop(job, None) is not known:
            return
        for service in known.services:
            try:
                (await self._master(service)).unregister_job(job)
            except Exception:  # noqa: BLE001 - a plug-in's failure must not keep the job of the others
                _LOG.exception("%s could not be unregistered from service %s", job, service)

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

    async def _release(self, known: _KnownJob, descriptors: Iterable[ShuffleDescriptor]) -> None:
        try:
            for descriptor in descriptors:
                try:
                    master = await self._master(descriptor.service)
                    await master.release_partition_externally(descriptor)
                except Exception:  # noqa: BLE001 - a plug-in's failure must not keep the other partitions
                    _LOG.exception("%s could not be released by %s", descriptor.partition, descriptor.service)
        finally:
            known.end()

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


async def _nothing() -> None:
    """Nothing is held."""
