# SPDX-License-Identifier: Apache-2.0
"""One client's part in an application: the service's master, as a driver has it, and writers and gates as tasks have.

The master lives in a loop of its own thread, and keeps the application's lease. Each writer and each reader has an
environment of the service for itself, so one of them can be told to stop. A client that joined an application leaves
it when it is closed. The one that began it ends it, with all that is under no name, unless it is shared by name.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

from penstock.client.access import ClientAccess
from penstock.client.host import ClientHost
from penstock.connection.loop_thread import LoopThread
from penstock.connection.transport import host_in, join_host
from penstock.errors import PenstockError
from penstock.shuffle import (
    AttemptId,
    ClientMaster,
    DatasetId,
    MetricGroup,
    NamedResults,
    OwnerContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMaster,
    ShuffleMasterContext,
    load_service,
)

A = TypeVar("A")
KIND = PartitionKind.BLOCKING_PERSISTENT


class KeepingMaster(ShuffleMaster, ClientMaster, NamedResults, Protocol):
    """The master of a service that clients can use."""


@dataclass(frozen=True, slots=True)
class _ClientJob:
    """The job of one part, for the master. What is lost is not recomputed here: readers hear of it."""

    job: str

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Do nothing."""


class Membership:
    """A client in an application; `owns` says that it has begun it. Any thread."""

    def __init__(self, access: ClientAccess, *, owns: bool) -> None:
        self.access = access
        self.settings = access.settings
        self._owns = owns
        self._service = load_service(access.service)
        self._process = os.getpid()
        self._thread = LoopThread("penstock-client", lambda: None)
        self._lock = threading.Lock()
        self._open: dict[Closable, None] = {}
        self._is_closed = False
        context = ShuffleMasterContext(access.application, self.settings, lambda _: None, access.secret)
        self._master = cast("KeepingMaster", self._service.create_shuffle_master(context))
        try:
            self.call(self._arrive())
        except BaseException:
            self._thread.close()
            raise

    def call(self, coroutine: Coroutine[Any, Any, A], check: Callable[[], object] = lambda: None) -> A:
        """Run this beside the master, and wait for it."""
        try:
            self._check_usable()
        except BaseException:
            coroutine.close()
            raise
        return self._thread.call(coroutine, check)

    def host(self) -> ClientHost:
        """The host of a new writer or reader; PenstockError where this client can't be used any more."""
        self._check_usable()
        return ClientHost(self.access.environment)

    def environment(self, host: ClientHost, sort_buffer: int = 0, *, waits: bool = True) -> ShuffleEnvironment:
        """The service's environment for one writer or reader.

        A writer may sort in so many bytes, and a reader need not wait for what is not there.
        """
        self._check_usable()
        settings = self.settings
        if sort_buffer:
            settings = replace(settings, blocking=replace(settings.blocking, sort_buffer=sort_buffer))
        if not waits:
            external = replace(settings.external, request_timeout=0.0)
            settings = replace(settings, external=external, remote=replace(settings.remote, request_timeout=0.0))
        context = ShuffleEnvironmentContext(self.access.application, self.access.secret, settings, host)
        return self._service.create_shuffle_environment(context)

    def owner(self, job: str) -> OwnerContext:
        """The owner of one writer or reader."""
        return OwnerContext(AttemptId(job, 0, 0, 0), f"client of {self.access.application}", MetricGroup("client"))

    def begin(self, job: str, subpartitions: int) -> tuple[PartitionDescriptor, ShuffleDescriptor]:
        """A partition that is to be written here, alone in its job."""
        dataset = DatasetId(job, 0, is_result=True)
        described = PartitionDescriptor(dataset, 0, KIND, subpartitions)
        return described, self.call(self._register(described, self.access.host))

    def release(self, descriptor: ShuffleDescriptor, subpartitions: int) -> None:
        """Have a partition removed, whichever client of the application has written it; idempotent."""
        host = host_in(descriptor.address) if descriptor.address else self.access.host
        described = PartitionDescriptor(descriptor.partition.dataset, descriptor.partition.index, KIND, subpartitions)
        self.call(self._release(described, host))

    def master(self) -> KeepingMaster:
        """The master; its coroutines are for `call`."""
        return self._master

    def note(self, item: Closable, *, is_open: bool) -> None:
        """Close this with the client, unless it is said before that it is closed; idempotent."""
        with self._lock:
            self._open.pop(item, None)
            if is_open:
                self._open[item] = None

    def close(self) -> None:
        """Give up what is being written, and leave or end the application; idempotent."""
        with self._lock:
            if self._is_closed or self._process != os.getpid():
                return
            items = list(self._open)
        for item in items:
            item.cancel()  # another thread may be in it
            item.close()
        self._is_closed = True
        is_over = self._owns and not self.access.lasts
        try:
            self._thread.call(self._master.close() if is_over else self._master.leave())
        finally:
            self._thread.close()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise PenstockError("this client is closed: connect again")
        if self._process != os.getpid():
            raise PenstockError(
                "this client belongs to the process that connected, and a forked one can't use it: pass its `access`"
                " to the other process, and `penstock.client.join(access)` there"
            )

    async def _arrive(self) -> None:
        master, own = self._master, self.settings.environment.advertised_host
        try:
            await master.start()
            host = await master.arrive([own] if own else [socket.gethostname(), "127.0.0.1"])
        except BaseException:
            await master.leave()
            raise
        self.access = replace(self.access, host=host)

    async def _register(self, described: PartitionDescriptor, host: str) -> ShuffleDescriptor:
        job = described.dataset.job
        self._master.register_job(_ClientJob(job))
        attempt = AttemptId(job, 0, described.index, 0)
        producer = ProducerDescriptor(attempt, self.access.environment, join_host(host, 0))
        return await self._master.register_partition_with_producer(job, described, producer)

    async def _release(self, described: PartitionDescriptor, host: str) -> None:
        await self._master.release_partition_externally(await self._register(described, host))
        self._master.unregister_job(described.dataset.job)


class Closable(Protocol):
    """A writer or a reader."""

    def cancel(self) -> None:
        """Have the call under way stop. Any thread."""

    def close(self) -> None:
        """Give back what it holds; idempotent."""


def new_job() -> str:
    """The job of a part: no other one ever has this name."""
    return f"part-{secrets.token_hex(8)}"
