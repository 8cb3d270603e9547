# SPDX-License-Identifier: Apache-2.0
"""The local service as the conformance suite wants it: real environment processes, one per host name."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import signal
from collections.abc import Iterable

import pytest

from penstock.network.rendezvous import sweep
from penstock.services.local import Attachment, EnvironmentLaunch, LocalShuffleService, attach
from penstock.services.local.service import LocalShuffleEnvironment
from penstock.shuffle import AttemptId, PartitionId, ProducerDescriptor, Settings, ShuffleMasterContext
from penstock.shuffle import ShuffleEnvironmentContext as Context
from penstock.testing.conformance import JOB

CONF = {
    "spark.penstock.environment.leaseTimeout": "20s",
    "spark.penstock.network.memory": "64m",
    "spark.penstock.blocking.hashMaxSubpartitions": "0",  # so that every sort-merge partition is one
}


class Job:
    """The job the suite runs under."""

    job = JOB

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Nobody to tell."""


class LocalHarness:
    """A started local service without a JobMaster: the harness speaks to each environment itself."""

    def __init__(self, application: str, conf: dict[str, str] | None = None) -> None:
        self.application = application
        self.secret = secrets.token_bytes(32)
        self.conf = {**CONF, **(conf or {})}
        self.settings = Settings.from_conf(self.conf)
        self.service = LocalShuffleService()
        self.master = self.service.create_shuffle_master(
            ShuffleMasterContext(application, self.settings, lambda error: pytest.fail(str(error)))
        )
        asyncio.run(self.master.start())
        self.master.register_job(Job())
        self._commanders: dict[str, Attachment] = {}

    def environment(self, name: str) -> LocalShuffleEnvironment:
        """A new attachment to a host."""
        self.commander(name)
        return self.service.create_shuffle_environment(
            Context(self.application, name, self.secret, "", self.settings)
        )

    def commander(self, name: str) -> Attachment:
        """The harness's own attachment to a host, which is started where there is none."""
        found = self._commanders.get(name)
        if found is None:
            launch = EnvironmentLaunch(self.application, self.secret, "", self.conf, name)
            found = self._commanders[name] = attach(launch)
        return found

    def pid(self, name: str) -> int:
        """The environment process of a host."""
        return int(self.commander(name).environment.rsplit("-", 2)[1])

    def producer(self, attempt: AttemptId, name: str) -> ProducerDescriptor:
        """An attempt beside a host."""
        commander = self.commander(name)
        return ProducerDescriptor(attempt, commander.environment, commander.address)

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt, wherever it is."""
        for name in list(self._commanders):
            launch = EnvironmentLaunch(self.application, self.secret, "", self.conf, name)
            attachment = attach(launch)
            attachment.call("local.cancel_task", {"attempt": attempt.to_wire(), "cause": "the suite cancels it"}, 10)
            attachment.close()

    def lose_environment(self, name: str) -> None:
        """Kill a host's environment process."""
        ended = os.pidfd_open(self.pid(name))
        os.kill(self.pid(name), signal.SIGKILL)
        wait_for_end(ended)
        self._commanders.pop(name).close()
        sweep()  # what the next environment of this host would do

    def close(self) -> None:
        """End the environments and wait for their processes."""
        ended = []
        for name, commander in self._commanders.items():
            ended.append(os.pidfd_open(self.pid(name)))
            commander.call("local.shut_down", {}, timeout=10)
            commander.close()
        for descriptor in ended:
            wait_for_end(descriptor)
        asyncio.run(self.master.close())


def wait_for_end(descriptor: int) -> None:
    """Wait for a process by its pidfd; whether its parent, which is not us, has reaped it does not matter."""
    try:
        readable, _, _ = select.select([descriptor], [], [], 10)
        assert readable, "an environment process did not end"
    finally:
        os.close(descriptor)
