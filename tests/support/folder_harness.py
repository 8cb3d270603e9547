# SPDX-License-Identifier: Apache-2.0
"""The examples of plug-ins as the conformance suite wants them: no environment process, hosts are files."""

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
from folder_shuffle import FolderShuffleService, folder_of
from sqlite_shuffle import SqliteShuffleService
from sqlite_shuffle import folder_of as bases_of


class FolderHarness:
    """A started service; every attachment is a host of its own that can be told to stop."""

    def __init__(
        self, application: str, kind: type[FolderShuffleService | SqliteShuffleService] = FolderShuffleService
    ) -> None:
        self.application = application
        self.service = kind()
        self.master = self.service.create_shuffle_master(
            ShuffleMasterContext(application, Settings(), lambda error: pytest.fail(str(error)))
        )
        asyncio.run(self.master.start())
        self.master.register_job(Job())
        self._hosts: dict[ShuffleEnvironment, MemoryHost] = {}

    def environment(self, name: str) -> ShuffleEnvironment:
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
        """Lose a host's folder, or database."""
        if isinstance(self.service, FolderShuffleService):
            shutil.rmtree(folder_of(self.application, name))
        else:
            (bases_of(self.application) / f"{name}.sqlite").unlink()

    def close(self) -> None:
        """End the job and the application."""
        self.master.unregister_job(JOB)
        asyncio.run(self.master.close())
