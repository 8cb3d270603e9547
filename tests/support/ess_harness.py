# SPDX-License-Identifier: Apache-2.0
"""The `spark_ess` service as the conformance suite wants it: hosts are folders of one real shuffle service.

Host `c`, which is lost, is reached through a proxy that is cut.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path

import pytest

from cuttable_proxy import CuttableProxy
from ess_process import EssProcess
from memory_harness import Job
from penstock.services.spark_ess.environment import EssEnvironment
from penstock.services.spark_ess.service import SparkEssMaster, SparkEssShuffleService
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    PartitionDescriptor,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)
from penstock.testing.conformance import JOB
from penstock.testing.memory_host import MemoryHost

_LOST = "c"


class HostsMaster(SparkEssMaster):
    """Every host has the service at a port of its own."""

    def __init__(self, context: ShuffleMasterContext, ports: dict[str, int]) -> None:
        super().__init__(context)
        self.ports = ports

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """At the port of the producer's host."""
        found = await super().register_partition_with_producer(job, partition, producer)
        port = self.ports.get(producer.environment)
        return found if port is None else dataclasses.replace(found, address=f"tcp://127.0.0.1:{port}")


class EssHarness:
    """A started service of one application; tests may share it."""

    def __init__(self, service: EssProcess, application: str, conf: dict[str, str] | None = None) -> None:
        self.process = service
        self.application = application
        self.conf = {
            "spark.penstock.ess.port": str(service.port),
            "spark.penstock.ess.application": application,
            "spark.penstock.ess.retryTimeout": "10s",
            "spark.penstock.ess.requestTimeout": "5s",
            **(conf or {}),
        }
        self.service = SparkEssShuffleService()
        self.ports: dict[str, int] = {}
        context = ShuffleMasterContext(application, self.settings(""), lambda error: pytest.fail(str(error)))
        self.master = HostsMaster(context, self.ports)
        asyncio.run(self.master.start())
        self.master.register_job(Job())
        self._hosts: dict[ShuffleEnvironment, MemoryHost] = {}
        self._proxies: dict[str, CuttableProxy] = {}

    def settings(self, name: str) -> Settings:
        """The settings of a host."""
        return Settings.from_conf({**self.conf, "spark.penstock.ess.directories": str(self.process.folder / name)})

    def folder(self, name: str) -> Path:
        """The folder of a host."""
        return self.process.folder / name

    def environment(self, name: str) -> EssEnvironment:
        """A new attachment."""
        self.folder(name).mkdir(exist_ok=True)
        if name == _LOST and name not in self._proxies:
            proxy = self._proxies[name] = CuttableProxy(f"127.0.0.1:{self.process.port}")
            self.ports[name] = int(proxy.address.rpartition(":")[2])
        host = MemoryHost(name)
        context = ShuffleEnvironmentContext(self.application, b"", self.settings(name), host)
        environment = self.service.create_shuffle_environment(context)
        assert isinstance(environment, EssEnvironment)
        self._hosts[environment] = host
        return environment

    def waiting(self, environment: ShuffleEnvironment) -> MemoryHost:
        """The wait of a task with this attachment."""
        return self._hosts[environment]

    def producer(self, attempt: AttemptId, name: str) -> ProducerDescriptor:
        """An attempt beside a host."""
        return ProducerDescriptor(attempt, name, "tcp://127.0.0.1:1")

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt: every task, since nobody here knows which one works on it."""
        for host in self._hosts.values():
            host.cancel(f"{attempt} was told to stop")

    def lose_environment(self, name: str) -> None:
        """Lose a host: nobody answers there any more, and its folder is gone."""
        self._proxies.pop(name).close()
        shutil.rmtree(self.folder(name))

    def forget_hosts(self) -> None:
        """Between two tests: nobody is to be told anything."""
        self._hosts.clear()

    def close(self) -> None:
        """End the job and the application."""
        self.master.unregister_job(JOB)
        asyncio.run(self.master.close())
        for proxy in self._proxies.values():
            proxy.close()
