# SPDX-License-Identifier: Apache-2.0
"""The `remote` service, and its master in the driver.

The master names partitions to the manager, has them released, and hears of what is lost. It keeps no rows and no
names of partitions: the manager does. The modules for tasks are imported in tasks: a driver starts without them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import zlib
from collections import defaultdict, deque
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ControlError, PenstockError, ProtocolError, QuotaError, StorageError
from penstock.services.described_results import packed_result, unpacked_result
from penstock.services.remote.metrics import METRICS
from penstock.services.remote.places import Breadth
from penstock.settings import Settings
from penstock.shuffle import (
    Capabilities,
    JobShuffleContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)

if TYPE_CHECKING:
    from penstock.services.remote.client import RemoteClient
    from penstock.shuffle.requests import Request

NAME = "remote"
_CLOSE_SECONDS = 3.0
_REACH_SECONDS = 3.0
AGAIN_SECONDS = 1.0
_WATCH_SECONDS = 60.0
"""The manager answers when it has something to say, or after some seconds, whatever `retryTimeout` is."""
_IDENTITY_BYTES = 16
_LEVEL = 1
_MOST_KEPT = 2 << 20
"""The bytes of a result's description, packed, and of the names of its partitions: the most of one question."""
_LOG = logging.getLogger(__name__)


class RemoteShuffleService:
    """The plug-in registered as `remote`."""

    name = NAME
    capabilities = Capabilities(
        (PartitionKind.BLOCKING_SORT_MERGE, PartitionKind.BLOCKING_HASH, PartitionKind.BLOCKING_PERSISTENT),
        outlives_executors=True,
        uses_data_plane=False,
        keeps_by_name=True,
    )
    """All are kept the same way: merged by consumer."""
    metrics = METRICS

    def stand_in(self, settings: Settings) -> tuple[str, str]:
        """This service; or `local`, and why, where the manager can't be reached and the user has allowed that."""
        if settings.remote.fallback != "local":
            return NAME, ""
        from penstock.services.remote.lines import manager_place

        try:
            socket.create_connection(manager_place(settings.remote), _REACH_SECONDS).close()
        except OSError as error:
            return "local", (
                f"the manager of the remote shuffle service at {settings.remote.manager} can't be reached ({error}):"
                " the service 'local' takes its place (spark.penstock.remote.fallback)"
            )
        return NAME, ""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> RemoteMaster:
        """The driver side."""
        return RemoteMaster(context)

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """The side of a task."""
        from penstock.services.remote.environment import RemoteEnvironment

        return RemoteEnvironment(context)

    def preload(self) -> None:
        """Import what writes and reads."""
        from penstock.services.remote import environment  # noqa: F401 - imported ahead, nothing else


class RemoteMaster:
    """A `ShuffleMaster`, and a `NamedResults`."""

    def __init__(self, context: ShuffleMasterContext) -> None:
        from penstock.services.remote.client import RemoteClient
        from penstock.services.remote.lines import RemoteAccess

        access = RemoteAccess.of(context.settings, context.application, "driver", context.secret)
        self._client: RemoteClient = RemoteClient(access, "penstock-remote-master")
        self._jobs: dict[str, JobShuffleContext] = {}
        self._untold: list[Request[Any]] = []
        """The releases that the manager has not heard. In the loop thread."""

    async def start(self) -> None:
        """Begin to listen for losses. ControlError where the manager does not answer."""
        from penstock.remote.messages import FindPartitions

        await self._call(self._client.ask(FindPartitions(())))
        self._client.begin(self._watch())

    async def close(self) -> None:
        """Have everything removed; what can't be goes when the manager misses this driver."""
        from penstock.remote.messages import CloseApplication

        try:
            await self._call(self._client.ask(CloseApplication(), _CLOSE_SECONDS))
        except PenstockError as error:
            _LOG.warning("the remote shuffle service removes this application's rows later: %s", error)
        await asyncio.to_thread(self._client.close)

    async def arrive(self, names: Sequence[str]) -> str:
        """The manager has answered; readers need no name of this host."""
        return names[0]

    async def leave(self) -> None:
        """Hang up; the application goes on while another of its processes is there, or its lease."""
        await asyncio.to_thread(self._client.close)

    def register_job(self, context: JobShuffleContext) -> None:
        """A job begins."""
        self._jobs[context.job] = context

    def unregister_job(self, job: str) -> None:
        """A job is over; results of it that are still held stay."""
        from penstock.remote.messages import EndJob

        self._jobs.pop(job, None)
        self._client.begin(self._let_go(EndJob(job)))

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """A partition lies where the manager says."""
        from penstock.remote.messages import NamePartition

        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        extent = Breadth(partition.subpartitions, 1 if partition.broadcast else partition.subpartitions)
        await self._call(self._client.ask(NamePartition(identity, extent.files)))
        return ShuffleDescriptor(identity, NAME, partition.kind, location=str(extent))

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Have the manager release it."""
        from penstock.remote.messages import DropPartitions

        await self._call(self._let_go(DropPartitions((descriptor.partition,))))

    async def keep_result(
        self, name: str, schema: bytes, partitions: Sequence[ShuffleDescriptor]
    ) -> list[ShuffleDescriptor]:
        """Have the manager keep these under a name; the words that find them."""
        from penstock.remote.messages import KeepResult, packed_partitions

        result = secrets.token_hex(_IDENTITY_BYTES)
        kept = [each if each.empty else _as_kept(each, result) for each in partitions]
        there = packed_partitions(each.partition for each in kept if not each.empty)
        description = zlib.compress(packed_result(schema, kept), _LEVEL)
        if (size := len(description) + sum(map(len, there.values()))) > _MOST_KEPT:
            raise QuotaError(
                f"the result {name} can't be kept: its description and the names of its {len(kept):,} partitions have"
                f" {size:,} bytes, and the remote shuffle service takes {_MOST_KEPT:,}: keep fewer partitions"
            )
        await self._call(self._client.ask(KeepResult(name, result, description, there)))
        return kept

    async def find_result(self, name: str) -> tuple[bytes, list[ShuffleDescriptor]] | None:
        """The schema and partitions of a result, as the manager knows it."""
        from penstock.remote.messages import FindResult

        found = await self._call(self._client.ask(FindResult(name)))
        if not found.result:
            return None
        try:
            return unpacked_result(name, zlib.decompress(found.description))
        except zlib.error as error:
            raise ProtocolError(f"the description of the result {name} can't be read: {error}") from error

    async def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(self._client.begin(coroutine))

    async def _let_go(self, request: Request[Any]) -> bool:
        """Have something removed: True if the manager has heard it. If not, it hears it when it answers again.

        In the loop thread.
        """
        try:
            await self._client.ask(request)
        except (ControlError, StorageError) as error:
            _LOG.warning("the remote shuffle service is told of %s again, later: %s", request.METHOD, error)
            self._untold.append(request)
            return False
        except PenstockError as error:
            _LOG.warning("the remote shuffle service keeps what %s names: %s", request.METHOD, error)
        return True

    async def _tell_again(self) -> None:
        """Tell the manager of releases that it has not heard, until it fails to answer. In the loop thread."""
        untold, self._untold = deque(self._untold), []
        while untold and await self._let_go(untold.popleft()):
            continue
        self._untold += untold

    async def _watch(self) -> None:
        """Hear of what is lost, as long as this driver lives. In the loop thread."""
        from penstock.remote.messages import WatchLosses

        last = 0
        while True:
            try:
                losses = await self._client.ask(WatchLosses(last), _WATCH_SECONDS)
            except PenstockError as error:
                _LOG.warning("the remote shuffle service can't say what it has lost: %s", error)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            last = losses.last
            by_job: dict[str, list[PartitionId]] = defaultdict(list)
            for partition in losses.partitions:
                by_job[partition.job].append(partition)
            for job, partitions in by_job.items():
                if (context := self._jobs.get(job)) is not None:
                    context.report_lost_partitions(partitions, losses.cause)
            await self._tell_again()


def _as_kept(descriptor: ShuffleDescriptor, result: str) -> ShuffleDescriptor:
    return replace(descriptor, location=str(replace(Breadth.from_text(descriptor.location), kept=result)))
