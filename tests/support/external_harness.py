# SPDX-License-Identifier: Apache-2.0
"""The `external` service as the conformance suite wants it: each host has a real service process of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from external_process import ExternalProcess
from memory_harness import Job
from penstock.services.external.environment import ExternalEnvironment
from penstock.services.external.service import ExternalMaster, ExternalShuffleService
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

SECRET = b"the secret of an application"


class ExternalHostsMaster(ExternalMaster):
    """Every host has its service at a port of its own."""

    def __init__(self, context: ShuffleMasterContext, hosts: dict[str, ExternalProcess]) -> None:
        super().__init__(context)
        self.hosts = hosts

    def address_of(self, host: str, producer: ProducerDescriptor) -> str:
        """At the port of the producer's host."""
        return f"tcp://127.0.0.1:{self.hosts[producer.environment].port}"


class ExternalHarness:
    """A started application over the services of some hosts, and of others when somebody attaches.

    Tests may share it.
    """

    def __init__(
        self,
        folder: Path,
        application: str,
        secret: bytes = SECRET,
        hosts: Sequence[str] = ("a", "b"),
        tls: str = "auto",
        patience: int = 10,
    ) -> None:
        self.folder = folder
        self.application = application
        self.secret = secret
        self.conf = {"spark.penstock.external.retryTimeout": f"{patience}s"}
        self.conf["spark.penstock.external.requestTimeout"] = f"{patience - 1}s"
        self.conf["spark.penstock.tls.mode"] = tls
        self.hosts: dict[str, ExternalProcess] = {}
        self.options: dict[str, tuple[str, ...]] = {}
        """By host: other options than the usual ones of its service."""
        self.folders: dict[str, Path] = {}
        """By host: another folder than the usual one of its service."""
        self.service = ExternalShuffleService()
        context = ShuffleMasterContext(
            application, Settings.from_conf(self.conf), lambda error: pytest.fail(str(error)), secret
        )
        self.master = ExternalHostsMaster(context, self.hosts)
        asyncio.run(self.master.start())
        self.master.register_job(Job())
        self._waits: dict[ShuffleEnvironment, MemoryHost] = {}
        for name in hosts:
            self.host(name)

    def join(self, name: str, other: str) -> None:
        """The tasks of both names run on one host, with one service."""
        self.hosts[name] = self.host(other)

    def host(self, name: str) -> ExternalProcess:
        """The service of a host."""
        if name not in self.hosts:
            options = self.options.get(name, ("--reserve", "1m"))
            self.hosts[name] = ExternalProcess(self.folders.get(name, self.folder / name), *options)
        return self.hosts[name]

    def environment(self, name: str) -> ExternalEnvironment:
        """A new attachment."""
        conf = {**self.conf, "spark.penstock.external.socket": str(self.host(name).socket)}
        host = MemoryHost(name)
        context = ShuffleEnvironmentContext(self.application, self.secret, Settings.from_conf(conf), host)
        environment = self.service.create_shuffle_environment(context)
        assert isinstance(environment, ExternalEnvironment)
        self._waits[environment] = host
        return environment

    def waiting(self, environment: ShuffleEnvironment) -> MemoryHost:
        """The wait of a task with this attachment."""
        return self._waits[environment]

    def producer(self, attempt: AttemptId, name: str) -> ProducerDescriptor:
        """An attempt beside a host."""
        self.host(name)
        return ProducerDescriptor(attempt, name, "tcp://127.0.0.1:1")

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt: every task, since nobody here knows which one works on it."""
        for host in self._waits.values():
            host.cancel(f"{attempt} was told to stop")

    def lose_environment(self, name: str) -> None:
        """Lose a host: its service and its folder."""
        lost = self.hosts.pop(name)
        lost.close()
        shutil.rmtree(lost.folder)
        self.master.hosts = {name: lost, **self.hosts}

    def forget_hosts(self) -> None:
        """Between two tests: nobody is to be told anything."""
        self._waits.clear()

    def close(self) -> None:
        """End the job, the application and the services; a service keeps nothing of it."""
        self.master.unregister_job(JOB)
        asyncio.run(self.master.close())
        codes = [host.stop() for host in set(self.hosts.values())]  # it ends when all is removed
        assert not any(codes)
        assert not [folder for host in self.hosts.values() for folder in host.folders()]
