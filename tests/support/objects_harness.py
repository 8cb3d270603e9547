# SPDX-License-Identifier: Apache-2.0
"""The `objects` service as the conformance suite wants it: hosts are names, and what is lost is removed."""

from __future__ import annotations

import asyncio

import pytest

from memory_harness import Job
from penstock.services.objects import ObjectsShuffleService
from penstock.services.objects.places import ObjectFolder
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    ProducerDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)
from penstock.testing.conformance import JOB
from penstock.testing.memory_host import MemoryHost


class ObjectsHarness:
    """A started service; every attachment is a host of its own that can be told to stop."""

    def __init__(self, uri: str, application: str) -> None:
        self.application = application
        self.settings = Settings.from_conf(
            {"spark.penstock.objects.uri": uri, "spark.penstock.objects.requestTimeout": "2s"}
        )
        self.folder = ObjectFolder(uri, application)
        self.service = ObjectsShuffleService()
        context = ShuffleMasterContext(application, self.settings, lambda error: pytest.fail(str(error)))
        self.master = self.service.create_shuffle_master(context)
        asyncio.run(self.master.start())
        self.master.register_job(Job())
        self._hosts: dict[ShuffleEnvironment, MemoryHost] = {}

    def environment(self, name: str) -> ShuffleEnvironment:
        """A new attachment."""
        host = MemoryHost(name)
        context = ShuffleEnvironmentContext(self.application, b"", self.settings, host)
        environment = self.service.create_shuffle_environment(context)
        self._hosts[environment] = host
        return environment

    def waiting(self, environment: ShuffleEnvironment) -> MemoryHost:
        """The wait of a task with this attachment."""
        return self._hosts[environment]

    def producer(self, attempt: AttemptId, name: str) -> ProducerDescriptor:
        """An attempt beside a host."""
        return ProducerDescriptor(attempt, name, "")

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt: every task, since nobody here knows which one works on it."""
        for host in self._hosts.values():
            host.cancel(f"{attempt} was told to stop")

    def lose_environment(self, name: str) -> None:
        """Lose what was written on a host."""
        for partition in self.folder.held(name):
            self.folder.remove_folder(self.folder.place(partition))

    def forget_hosts(self) -> None:
        """Between two tests: nobody is to be told anything."""
        self._hosts.clear()

    def close(self) -> None:
        """End the job and the application."""
        self.master.unregister_job(JOB)
        asyncio.run(self.master.close())
