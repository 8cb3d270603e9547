# SPDX-License-Identifier: Apache-2.0
"""The example of a plug-in as the conformance suite wants it: no environment process, hosts are folders."""

from __future__ import annotations

import asyncio
import shutil
import sys

import pytest

from memory_harness import Job
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
from source import ROOT

sys.path.insert(0, str(ROOT / "examples" / "plugin"))
from folder_shuffle import FolderEnvironment, FolderShuffleService, folder_of


class FolderHarness:
    """A started service; every attachment is a host of its own that can be told to stop."""

    def __init__(self, application: str) -> None:
        self.application = application
        self.service = FolderShuffleService()
        self.master = self.service.create_shuffle_master(
            ShuffleMasterContext(application, Settings(), lambda error: pytest.fail(str(error)))
        )
        asyncio.run(self.master.start())
        self.master.register_job(Job())
        self._hosts: dict[ShuffleEnvironment, MemoryHost] = {}

    def environment(self, name: str) -> FolderEnvironment:
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
        """An attempt beside a host."""
        return ProducerDescriptor(attempt, name, "")

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt: every task, since nobody here knows which one works on it."""
        for host in self._hosts.values():
            host.cancel(f"{attempt} was told to stop")

    def lose_environment(self, name: str) -> None:
        """Lose a host's folder."""
        shutil.rmtree(folder_of(self.application, name))

    def close(self) -> None:
        """End the job and the application."""
        self.master.unregister_job(JOB)
        asyncio.run(self.master.close())
