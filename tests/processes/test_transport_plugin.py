# SPDX-License-Identifier: Apache-2.0
"""Other transports under the whole engine: rows of two executors meet over a compressed connection, and over TLS."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from effort import with_all
from penstock.connection.sockets import TcpTransport
from penstock.testing import DEADLINE, wait_until
from penstock_torture import gates as gated
from penstock_torture.gates import Gates
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, ProcessCluster
from zlib_example import NAME

pytestmark = pytest.mark.processes


CONF = {"zlib": {"spark.penstock.network.transport": NAME}, "tls": {"spark.penstock.tls.mode": "always"}}


@pytest.fixture(params=CONF)
def scheme(request: pytest.FixtureRequest) -> str:
    """The scheme of the environments' addresses."""
    return str(request.param)


@pytest.fixture
def cluster(scheme: str) -> Iterator[ProcessCluster]:
    """Two executors whose environments have this transport."""
    with Nursery(list(PRELOADED)) as nursery:
        cluster = ProcessCluster(nursery, conf=CONF[scheme])
        yield cluster
        cluster.close()


@pytest.mark.parametrize("mode", ["pipelined", with_all("blocking")])
def test_a_job_runs_over_another_transport(cluster: ProcessCluster, scheme: str, tmp_path: Path, mode: str) -> None:
    """All rows are there; nothing but the setting says so."""
    gates = Gates(str(tmp_path))
    gates.open_all()
    finished = cluster.submit(gated.stream(gates, mode)).wait(DEADLINE)
    assert (
        cluster.read(finished, gated.rows().schema).sort_by("id").equals(gated.rows().sort_by("id").combine_chunks())
    )
    attached = cluster.master._driver.environments._attached
    assert {environment.address.partition("://")[0] for environment in attached.values()} == {scheme}
    assert not isinstance(cluster.master._driver._transport, TcpTransport)


def test_an_environment_that_is_killed_is_missed_at_once(cluster: ProcessCluster, tmp_path: Path) -> None:
    """Long before its lease is over: the driver asks by this transport if somebody listens."""
    gates = Gates(str(tmp_path))
    handle = cluster.submit(gated.stream(gates, "blocking"))
    gates.reach("writing", "blocking", lambda _: False)
    wait_until(lambda: len(cluster.attached()) == 2, "both are there")
    gone = max(cluster.attached())
    os.kill(gone, signal.SIGKILL)
    wait_until(lambda: gone not in cluster.attached(), "it is lost")
    gates.open_all()
    finished = handle.wait(DEADLINE)
    assert cluster.read(finished, gated.rows().schema).num_rows == gated.rows().num_rows
