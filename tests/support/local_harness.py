# SPDX-License-Identifier: Apache-2.0
"""The local service as the conformance suite wants it: real environment processes, one per host name."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import signal
from collections.abc import Container, Iterable, Iterator

import pytest

from penstock.attachment.attachment import Attachment, attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.link.calls import GetStatistics
from penstock.link.commands import CancelTask, Shutdown
from penstock.link.rendezvous import sweep
from penstock.services.local.environment import LocalShuffleEnvironment
from penstock.services.local.service import LocalShuffleService
from penstock.settings import Settings
from penstock.shuffle import AttemptId, PartitionId, ProducerDescriptor, ShuffleEnvironment, ShuffleMasterContext
from penstock.testing import DEADLINE
from penstock.testing.conformance import JOB
from penstock.testing.waiting import wait_until

CONF = {
    "spark.penstock.environment.leaseTimeout": "20s",
    "spark.penstock.network.memory": "64m",
    "spark.penstock.blocking.hashMaxSubpartitions": "0",  # so that every sort-merge partition is one
}

HELD = ("segments_in_use", "segments_guaranteed", "partitions", "read_bytes_held", "hybrid_segments")
"""The figures of an environment that are zero when nobody uses it."""

SHARED = ("a", "b")
"""The hosts that tests share."""


class Job:
    """The job the suite runs under."""

    job = JOB

    def report_lost_partitions(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Nobody to tell."""


class AttachedEnvironment(LocalShuffleEnvironment):
    """The service's environment in a task of its own, which ends with it."""

    def __init__(self, attachment: Attachment, settings: Settings) -> None:
        super().__init__(attachment, settings)
        self.attachment = attachment

    def close(self) -> None:
        """Detach the task too."""
        super().close()
        self.attachment.close()


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

    def environment(self, name: str) -> AttachedEnvironment:
        """A new attachment to a host."""
        self.commander(name)
        return AttachedEnvironment(attach(self.launch(name)), self.settings)

    def waiting(self, environment: ShuffleEnvironment) -> Attachment:
        """The wait of a task with this attachment."""
        assert isinstance(environment, AttachedEnvironment)
        return environment.attachment

    def launch(self, name: str) -> EnvironmentLaunch:
        """The launch by which a host's environment is found or started."""
        return EnvironmentLaunch(self.application, self.secret, "", self.conf, name)

    def commander(self, name: str) -> Attachment:
        """The harness's own attachment to a host, which is started where there is none."""
        found = self._commanders.get(name)
        if found is None:
            found = self._commanders[name] = attach(self.launch(name))
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
            attachment = attach(self.launch(name))
            attachment.ask(CancelTask(attempt, "the suite cancels it"), DEADLINE)
            attachment.close()

    def lose_environment(self, name: str) -> None:
        """Kill a host's environment process."""
        ended = os.pidfd_open(self.pid(name))
        os.kill(self.pid(name), signal.SIGKILL)
        wait_for_end(ended)
        self._commanders.pop(name).close()
        sweep()  # what the next environment of this host would do

    def end_environments(self, kept: Container[str] = ()) -> None:
        """End the environments, less those of the hosts to keep, and wait for their processes."""
        ended = []
        for name in [name for name in self._commanders if name not in kept]:
            ended.append(os.pidfd_open(self.pid(name)))
            commander = self._commanders.pop(name)
            commander.ask(Shutdown(), DEADLINE)
            commander.close()
        for descriptor in ended:
            wait_for_end(descriptor)

    def wait_idle(self, name: str) -> None:
        """Wait until a host holds nothing, and has no task but the harness itself."""
        figures: dict[str, float] = {}

        def idle() -> bool:
            figures.update(self.commander(name).ask(GetStatistics(), DEADLINE).figures)
            return figures["tasks"] == 1 and not any(figures[held] for held in HELD)

        try:
            wait_until(idle, f"host {name} to hold nothing")
        except AssertionError as error:
            raise AssertionError(f"{error}: {figures}") from None

    def close(self) -> None:
        """End the environments and wait for their processes."""
        self.end_environments()
        asyncio.run(self.master.close())


def started(harness: LocalHarness) -> Iterator[LocalHarness]:
    """A harness with the environments of the shared hosts, which end after the tests."""
    for name in SHARED:
        harness.commander(name)
    yield harness
    harness.close()


def idle_behind(harness: LocalHarness) -> Iterator[LocalHarness]:
    """The harness for one test: then other hosts end, and the shared ones hold nothing."""
    yield harness
    harness.end_environments(kept=SHARED)
    for name in SHARED:
        harness.wait_idle(name)


def wait_for_end(descriptor: int) -> None:
    """Wait for a process by its pidfd; whether its parent, which is not us, has reaped it does not matter."""
    try:
        readable, _, _ = select.select([descriptor], [], [], DEADLINE)
        assert readable, "an environment process did not end"
    finally:
        os.close(descriptor)
