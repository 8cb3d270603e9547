# SPDX-License-Identifier: Apache-2.0
"""Environments at addresses and ports that were asked for: they listen there, and others read from them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from local_harness import LocalHarness
from penstock.environment.peers.addresses import PORTS
from penstock.errors import EnvironmentLostError
from penstock.shuffle import PartitionKind
from penstock.testing.conformance_exchange import ConformanceExchange, WantedPartition, numbers


def free_ports() -> int:
    """The first of some ports at which nobody listens now."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        return min(int(server.getsockname()[1]), (1 << 16) - PORTS)


@pytest.fixture
def harnesses() -> Iterator[list[LocalHarness]]:
    """A list whose harnesses are closed after the test."""
    made: list[LocalHarness] = []
    yield made
    for each in made:
        each.close()


def test_fixed_ports_of_an_ipv6_interface(harnesses: list[LocalHarness]) -> None:
    """Two environments of one host get two of the ports, and one reads from the other by its advertised name."""
    first = free_ports()
    environment = "spark.penstock.environment"
    conf = {f"{environment}.bindAddress": "::1/128", f"{environment}.port": str(first)}
    harness = LocalHarness("addresses", {**conf, f"{environment}.advertisedHost": "::1"})
    harnesses.append(harness)
    ports = [int(harness.commander(name).address.rpartition(":")[2]) for name in ("a", "b")]
    assert all(harness.commander(name).address.startswith("tcp://[::1]:") for name in ("a", "b"))
    assert len(set(ports)) == 2
    assert set(ports) <= set(range(first, first + PORTS))
    exchange = ConformanceExchange(harness, asyncio.run)
    producer = exchange.produce(WantedPartition(PartitionKind.PIPELINED_BOUNDED, host="a"))
    producer.writer.write(numbers(1, 2, 3), 0)
    producer.writer.finish()
    assert exchange.consume([(producer.descriptor, 0)], host="b").values() == [1, 2, 3]
    exchange.close()


def test_an_address_of_another_host_is_said(harnesses: list[LocalHarness]) -> None:
    """The environment does not start, and the task's error names the settings."""
    harness = LocalHarness("addresses", {"spark.penstock.environment.bindAddress": "192.0.2.1"})
    harnesses.append(harness)
    with pytest.raises(EnvironmentLostError, match=r"192\.0\.2\.1:0.*environment\.bindAddress"):
        harness.commander("a")
