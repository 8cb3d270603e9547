# SPDX-License-Identifier: Apache-2.0
"""Clients that stand still, or whose disk is slow: they get all rows in the end, and hold up nobody else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import client_scripts
from effort import THOROUGH, with_all
from external_process import ExternalProcess
from penstock import client
from penstock.connection.sockets import KEEPALIVE
from penstock.testing import DEADLINE
from remote_cluster import RemoteCluster
from slow_disks import slow_disk

pytestmark = pytest.mark.processes

SCHEMA = pa.schema([("id", pa.int64())])
ROWS = 1 << 18
PAUSE = 20.0 if THOROUGH else 1.0
GIVEN_UP = dict(KEEPALIVE)["TCP_USER_TIMEOUT"] / 1000
"""Seconds after which the system closes a connection whose peer takes nothing."""


@dataclass
class Service:
    """A service: where it is, and what clients say to be let in."""

    address: str
    options: dict[str, Any] = field(default_factory=dict)

    def client(self, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """A client process that writes 64 batches and reads them, with a line for each."""
        words = json.dumps({"address": self.address, **self.options})
        command = [sys.executable, "-c", client_scripts.PACED, words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})

    def round_trip(self) -> None:
        """Another client writes and reads."""
        with client.connect(self.address, **self.options) as service:
            with service.write_part(SCHEMA) as writer:
                writer.write(pa.record_batch([pa.array(range(ROWS))], schema=SCHEMA))
            assert service.read_parts([writer.finish()]).read_all().num_rows == ROWS


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A host service."""
    process = ExternalProcess(tmp_path_factory.mktemp("external"), "--reserve", "1m")
    conf = {
        "spark.penstock.external.port": str(process.port),
        "spark.penstock.external.retryTimeout": f"{DEADLINE:g}s",
    }
    yield Service(str(process.socket), {"conf": conf})
    process.close()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A manager and a worker with so little memory that a client which stands still could take it all."""
    cluster = RemoteCluster(tmp_path_factory.mktemp("remote"), 1, ["--memory", "16m"])
    conf = {"spark.penstock.remote.retryTimeout": f"{DEADLINE:g}s"}
    yield Service(cluster.manager.address, {"key": cluster.keys.read_text().strip(), "conf": conf})
    cluster.close()


@pytest.fixture(params=["external", "remote"])
def service(request: pytest.FixtureRequest, external: Service, remote: Service) -> Service:
    """Each of them."""
    return external if request.param == "external" else remote


@pytest.mark.parametrize("phase", ["writing", with_all("reading")])
def test_a_client_that_stands_still_holds_up_nobody(service: Service, phase: str) -> None:
    """Others write and read meanwhile, and when it goes on it has all rows."""
    with service.client() as paced:
        try:
            assert paced.stdout is not None
            while paced.stdout.readline() != f"{phase}\n":
                assert paced.poll() is None
            paced.send_signal(signal.SIGSTOP)
            end = time.monotonic() + PAUSE
            service.round_trip()
            assert time.monotonic() < end + GIVEN_UP / 2, "others have waited until the system has given it up"
            while time.monotonic() < end:
                service.round_trip()
            paced.send_signal(signal.SIGCONT)
            paced.stdout.read()
            assert paced.wait(DEADLINE) == 0
        finally:
            paced.kill()


def test_a_client_with_a_slow_disk_gets_its_rows(external: Service, tmp_path: Path) -> None:
    """Each write into the files that the host service has lent it takes its time."""
    with external.client(slow_disk(tmp_path / "slow", 0.02)) as paced:
        try:
            assert paced.stdout is not None
            assert paced.stdout.read().count("writing") == 64
            assert paced.wait(DEADLINE) == 0
        finally:
            paced.kill()
