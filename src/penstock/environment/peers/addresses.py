# SPDX-License-Identifier: Apache-2.0
"""The address at which an environment listens for other environments, and the name under which they reach it.

By default: the address that this host has on its way to the driver (loopback without a driver), any free port.
Settings say otherwise where a firewall lets through some ports only, or a host is in several networks.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.connection.transport import join_host, split_host
from penstock.errors import SettingError
from penstock.settings import EnvironmentSettings

PORTS = 16
"""As many ports are tried from a fixed one on: each environment of a host needs one."""
HOSTNAME = "hostname"
"""The advertised host that stands for each host's own name."""
_PROBE_PORT = 9
"""Nothing is sent to it: only the system's routes are asked for."""

Resolve = Callable[..., list[tuple[Any, ...]]]
"""As `socket.getaddrinfo`."""


@dataclass(frozen=True, slots=True)
class DataAddresses:
    """A host, and the ports to listen at, the first free one; `advertised` is its name to others, `host` if empty."""

    host: str
    ports: Sequence[int] = (0,)
    advertised: str = ""

    def choices(self, scheme: str) -> list[str]:
        """The addresses to listen at, of a transport."""
        return [join_host(self.host, port, scheme) for port in self.ports]

    def seen_from_outside(self, address: str, scheme: str) -> str:
        """The address that others connect to, if this one is listened at."""
        host, port = split_host(address, scheme)
        return join_host(self.advertised or host, port, scheme)


def data_addresses(
    master: str, settings: EnvironmentSettings, resolve: Resolve = socket.getaddrinfo
) -> DataAddresses:
    """The addresses by the settings; `master` is the driver's `host:port`. Raises SettingError, or OSError."""
    host = _own_host(master, settings.bind_address, resolve)
    ports = range(settings.port, min(settings.port + PORTS, 1 << 16)) if settings.port else (0,)
    advertised = os.uname().nodename if settings.advertised_host == HOSTNAME else settings.advertised_host
    return DataAddresses(host, ports, advertised)


def _own_host(master: str, bind_address: str, resolve: Resolve) -> str:
    if "/" in bind_address:
        return _own_in(bind_address)
    if bind_address:
        return bind_address.removeprefix("[").removesuffix("]")
    if not master:
        return "127.0.0.1"
    return _own_towards(*split_host(f"tcp://{master}"), resolve)


def _own_towards(host: str, port: int, resolve: Resolve) -> str:
    """This host's address on its way to another one, by whichever family of addresses there is a way."""
    failure: OSError | None = None
    for family, _, _, _, where in resolve(host, port, type=socket.SOCK_DGRAM):
        try:
            return _own_before(family, where)
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")


def _own_in(network: str) -> str:
    """This host's address in a network such as 10.1.0.0/16."""
    try:
        wanted = ipaddress.ip_network(network, strict=False)
    except ValueError as error:
        raise SettingError(
            f"spark.penstock.environment.bindAddress={network!r} is no address and no network: {error}"
        ) from error
    family = socket.AF_INET6 if wanted.version == 6 else socket.AF_INET
    try:
        own = _own_before(family, (str(wanted[1 if wanted.num_addresses > 1 else 0]), _PROBE_PORT))
    except OSError:
        own = ""
    if not own or ipaddress.ip_address(own.partition("%")[0]) not in wanted:
        raise SettingError(
            f"host {os.uname().nodename} has no address in the network {network}, which"
            " spark.penstock.environment.bindAddress says"
        )
    return own


def _own_before(family: int, where: tuple[Any, ...]) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])
