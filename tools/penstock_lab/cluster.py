# SPDX-License-Identifier: Apache-2.0
"""A cluster of two environment processes and a JobMaster, without Spark: as little as a pipeline over TCP needs."""

from __future__ import annotations

import os
import secrets
import time
from types import TracebackType

from penstock.attachment.attachment import Attachment, attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.job.launcher import LaunchRequest
from penstock.job.shell.master import JobMaster, MasterIdentity
from penstock.link.calls import GetStatistics
from penstock.link.rendezvous import sweep
from penstock.settings import Settings
from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor

JOB = "lab"
SERVICE = "local"
SOURCES, SINKS = "sources", "sinks"
"""The two environments."""
END_SECONDS = 10.0
"""So long an environment may take to end."""
_LOOK_SECONDS = 0.02


class NoSpark:
    """A launcher for a JobMaster that gets no jobs."""

    def launch(self, request: LaunchRequest) -> None:
        """Nothing is ever launched."""

    def cancel(self, job: str, spark_job: object = None) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""


class LabCluster:
    """One application: made for one run, and gone with all its processes, sockets and files after it."""

    def __init__(self, conf: dict[str, str]) -> None:
        self.settings = Settings.from_conf(conf)
        self._conf = conf
        self._application = f"lab-{os.getpid()}-{secrets.token_hex(4)}"
        self._secret = secrets.token_bytes(32)
        self._master = JobMaster(MasterIdentity(self._application, self._secret), NoSpark(), self.settings)
        self._address = ""
        self._watching: dict[str, Attachment] = {}

    def __enter__(self) -> LabCluster:
        """Start the JobMaster and both environments."""
        self._address = self._master.start()
        try:
            for name in (SOURCES, SINKS):
                self._watching[name] = self.attach(name)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all of it."""
        self._close()

    def attach(self, name: str) -> Attachment:
        """A new task beside an environment."""
        return attach(self._launch(name))

    def descriptor(self, index: int) -> ShuffleDescriptor:
        """The partition with this number, which lies at the sources."""
        at = self._watching[SOURCES]
        partition = PartitionId(DatasetId(JOB, 0), index, 1)
        return ShuffleDescriptor(partition, SERVICE, PartitionKind.PIPELINED_BOUNDED, at.environment, at.address)

    def statistics(self, name: str) -> dict[str, float]:
        """The figures of an environment now."""
        return dict(self._watching[name].ask(GetStatistics(), 10).figures)

    def _close(self) -> None:
        for attachment in self._watching.values():
            attachment.close()
        self._watching.clear()
        self._master.close()
        folders = [self._launch(name).place().folder for name in (SOURCES, SINKS)]
        ends = time.monotonic() + END_SECONDS
        sweep()
        while any(folder.exists() for folder in folders) and time.monotonic() < ends:
            time.sleep(_LOOK_SECONDS)  # an environment that was interrupted at its start is still ending
            sweep()

    def _launch(self, name: str) -> EnvironmentLaunch:
        certificate = self._master.certificate
        return EnvironmentLaunch(
            self._application, self._secret, self._address, self._conf, name, certificate=certificate
        )
