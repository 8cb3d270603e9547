# SPDX-License-Identifier: Apache-2.0
"""The `remote` service as the conformance suite wants it: real processes, and hosts that are names.

A host is lost with the workers that have its rows.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from memory_harness import Job
from penstock.connection.principals import own_secret
from penstock.remote.messages import FindPartitions, ListOfHost
from penstock.services.remote import RemoteShuffleService
from penstock.services.remote.client import RemoteClient
from penstock.services.remote.lines import RemoteAccess
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    PartitionId,
    ProducerDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)
from penstock.shuffle.requests import Request
from penstock.testing.conformance import JOB
from penstock.testing.memory_host import MemoryHost
from remote_cluster import RemoteCluster

A = TypeVar("A")


class RemoteHarness:
    """A started service of one application; tests may share it."""

    def __init__(self, cluster: RemoteCluster, application: str, conf: dict[str, str] | None = None) -> None:
        self.cluster = cluster
        self.application = application
        self.conf = {
            **cluster.conf(),
            "spark.penstock.remote.retryTimeout": "10s",
            "spark.penstock.remote.requestTimeout": "9s",
            **(conf or {}),
        }
        self.service = RemoteShuffleService()
        _, self.secret = own_secret(self.settings().access, application, b"")
        context = ShuffleMasterContext(application, self.settings(), lambda e: pytest.fail(str(e)), self.secret)
        self.master = self.service.create_shuffle_master(context)
        asyncio.run(self.master.start())
        self.master.register_job(Job())
        self._hosts: dict[ShuffleEnvironment, MemoryHost] = {}

    def settings(self) -> Settings:
        """The settings of all."""
        return Settings.from_conf(self.conf)

    def environment(self, name: str) -> ShuffleEnvironment:
        """A new attachment."""
        host = MemoryHost(name)
        context = ShuffleEnvironmentContext(self.application, self.secret, self.settings(), host)
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

    def holders(self, *partitions: PartitionId) -> set[str]:
        """The addresses of the workers that have rows of these."""
        found = self._asked(FindPartitions(partitions))
        return {
            located.addresses[worker].removeprefix("tcp://")
            for located in found.located.values()
            for story in found.stories
            for worker in story.workers
            if worker in located.addresses
        }

    def lose_environment(self, name: str) -> None:
        """Kill the workers that have rows of this host."""
        lost = self.holders(*self._asked(ListOfHost(name)).partitions)
        assert lost, f"no worker has rows of {name}"
        for worker in self.cluster.workers:
            if worker.address in lost:
                worker.kill()

    def _asked(self, request: Request[A]) -> A:
        access = RemoteAccess.of(self.settings(), self.application, "test", self.secret)
        client = RemoteClient(access, "remote-harness")
        try:
            return client.call(client.ask(request))
        finally:
            client.close()

    def forget_hosts(self) -> None:
        """Between two tests: nobody is to be told anything."""
        self._hosts.clear()

    def close(self) -> None:
        """End the job and the application."""
        self.master.unregister_job(JOB)
        asyncio.run(self.master.close())
