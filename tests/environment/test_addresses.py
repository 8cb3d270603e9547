# SPDX-License-Identifier: Apache-2.0
"""The address at which an environment listens: by its way to the driver, or by the settings."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from penstock.environment.peers.addresses import PORTS, data_addresses
from penstock.errors import SettingError
from penstock.settings import EnvironmentSettings


def only(family: int, address: str) -> Any:
    """A resolver to which every name has this address and no other."""

    def resolve(_: str, port: int, **__: object) -> list[tuple[Any, ...]]:
        where = (address, port, 0, 0) if family == socket.AF_INET6 else (address, port)
        return [(family, socket.SOCK_DGRAM, 0, "", where)]

    return resolve


def test_the_way_to_a_driver_with_an_ipv6_address_only() -> None:
    """A name without any IPv4 address: this host's own IPv6 address on its way there, in brackets."""
    found = data_addresses("driver.example:7077", EnvironmentSettings(), only(socket.AF_INET6, "::1"))
    assert found.choices("tcp") == ["tcp://[::1]:0"]
    found = data_addresses("[::1]:7077", EnvironmentSettings())
    assert found.choices("tcp") == ["tcp://[::1]:0"]


def test_an_address_without_a_way_is_passed_over() -> None:
    """A name whose first address can't be reached from here has another one."""
    unreachable = only(socket.AF_INET, "255.255.255.255")
    reachable = only(socket.AF_INET, "127.0.0.1")

    def both(name: str, port: int, **named: object) -> list[tuple[Any, ...]]:
        return [*unreachable(name, port, **named), *reachable(name, port, **named)]

    assert data_addresses("driver:7077", EnvironmentSettings(), both).choices("tcp") == ["tcp://127.0.0.1:0"]


def test_what_the_settings_say() -> None:
    """An address, a network that the host is in, fixed ports, and a name for others."""
    chosen = EnvironmentSettings(bind_address="127.0.0.0/8", port=7100, advertised_host="gateway.example")
    found = data_addresses("driver:7077", chosen)
    assert found.choices("tcp") == [f"tcp://127.0.0.1:{port}" for port in range(7100, 7100 + PORTS)]
    assert found.seen_from_outside("tcp://127.0.0.1:7103", "tcp") == "tcp://gateway.example:7103"
    assert data_addresses("", EnvironmentSettings(bind_address="::1")).choices("tcp") == ["tcp://[::1]:0"]
    named = data_addresses("", EnvironmentSettings(advertised_host="hostname"))
    assert named.seen_from_outside("rdma://127.0.0.1:7103", "rdma") == f"rdma://{os.uname().nodename}:7103"


@pytest.mark.parametrize("network", ["203.0.113.0/24", "2001:db8::/64", "10.0.0/4/2"])
def test_a_network_that_the_host_is_not_in(network: str) -> None:
    """It is refused with the setting's name, as is what is no network."""
    with pytest.raises(SettingError, match="bindAddress"):
        data_addresses("", EnvironmentSettings(bind_address=network))
