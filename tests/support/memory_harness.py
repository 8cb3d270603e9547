# SPDX-License-Identifier: Apache-2.0
"""The memory service as the conformance suite wants it: the smallest harness there can be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    PartitionId,
    ProducerDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)
from penstock.testing import MemoryShuffleService
from penstock.testing.conformance import JOB
from penstock.testing.memory_host import MemoryHost
from penstock.testing.memory_service import MemoryShuffleEnvironment

REQUEST_TIMEOUT = 0.2


class Job:
    """The job the suite runs under; remembers what it was told is lost."""

    job = JOB

    def __init__(self) -> None:
        self.lost: list[PartitionId] = []

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Remember."""
        self.lost.extend(partitions)


class MemoryHarness:
    """A started memory service: the smallest `ServiceUnderTest` there can be."""

    def __init__(self, application: str) -> None:
        self.application = application
        self.service = MemoryShuffleService(request_timeout=REQUEST_TIMEOUT)
        self.job = Job()
        self._hosts: dict[ShuffleEnvironment, MemoryHost] = {}
        self.master = self.service.create_shuffle_master(
            ShuffleMasterContext(application, Settings(), lambda error: pytest.fail(str(error)))
        )
        asyncio.run(self.master.start())
        self.master.register_job(self.job)

    def environment(self, name: str) -> MemoryShuffleEnvironment:
        """A new attachment."""
        host = MemoryHost(name)
        context = ShuffleEnvironmentContext(self.application, b"", Settings(), host)
        environment = self.service.create_shuffle_environment(context)
        self._hosts[environment] = host
        return environment

    def waiting(self, environment: ShuffleEnvironment) -> MemoryHost:
        """The wait of a task with this attachment."""
        return self._hosts[environment]

    def producer(self, attempt: AttemptId, name: str) -> ProducerDescriptor:
        """An attempt beside a host; nothing has an address here."""
        return ProducerDescriptor(attempt, name, "")

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt: every task, since nobody here knows which one works on it."""
        for host in self._hosts.values():
            host.cancel(f"{attempt} was told to stop")
        environment = self.environment("a")
        environment.cancel(attempt)
        environment.close()

    def lose_environment(self, name: str) -> None:
        """Lose a host."""
        environment = self.environment(name)
        environment.lose()
        environment.close()

    def close(self) -> None:
        """End the job and the application."""
        self.master.unregister_job(JOB)
        asyncio.run(self.master.close())
