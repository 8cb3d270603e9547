# SPDX-License-Identifier: Apache-2.0
"""The transport seam: byte streams between processes, and nothing more.

A transport opens endpoints. An endpoint is non-blocking: it gathers a write, receives into given memory, and calls
back on the event loop when it becomes readable or writable (level-triggered: again, as long as it is). Another
transport (RDMA, a relay) implements these protocols and touches neither writers nor readers of partitions. It is
found by its name (`transports`): `spark.penstock.network.transport` says which one connects environments.

Addresses are text: `scheme://host:port`, `scheme://[v6]:port`; the scheme is the transport's own.

Non-goals: framing, authentication, water marks, retries: the layers above have them, once for all transports.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from penstock.errors import SettingError


class Endpoint(Protocol):
    """One end of one byte stream."""

    @property
    def peer(self) -> str:
        """The other end, for messages to people."""

    def send_nowait(self, parts: Sequence[bytes | memoryview]) -> int:
        """Send from the front of `parts`; the number of bytes taken, 0 where it would block. Raises OSError."""

    def receive_nowait(self, target: memoryview) -> int | None:
        """Receive into `target`: the number of bytes, 0 at the end of the stream, None where it would block.

        Raises OSError.
        """

    def set_readable(self, callback: Callable[[], None] | None) -> None:
        """Call this while there is something to receive (the end of the stream included); None stops it."""

    def set_writable(self, callback: Callable[[], None] | None) -> None:
        """Call this while something can be sent; None stops it."""

    def close(self) -> None:
        """End both directions and all callbacks. Idempotent."""


@runtime_checkable
class PatientEndpoint(Protocol):
    """An endpoint whose system gives a peer up that takes nothing for long, unless it is told not to."""

    def wait_for_window(self) -> None:
        """From now on a peer that takes nothing, and answers, is waited for without end."""


@runtime_checkable
class BoundEndpoint(Protocol):
    """An endpoint of a stream that no relay can have both ends of: what is proved for it holds for no other."""

    @property
    def binding(self) -> bytes:
        """The bytes by which both ends know the stream; empty before it is open."""


class Listener(Protocol):
    """Something that accepts."""

    @property
    def address(self) -> str:
        """The address to connect to: the real port where 0 was asked for."""

    def close(self) -> None:
        """Stop accepting. Idempotent; endpoints that were accepted stay."""


class Transport(Protocol):
    """A way to open byte streams. All calls from one event loop."""

    @property
    def scheme(self) -> str:
        """The word before `://` in its addresses."""

    async def listen(self, address: str, on_connection: Callable[[Endpoint], None]) -> Listener:
        """Accept connections at this address; raises OSError, or SettingError for an address it cannot read."""

    async def connect(self, address: str, timeout: float) -> Endpoint:  # noqa: ASYNC109 - the transport knows how to give up
        """Open a stream; raises OSError (TimeoutError included) or SettingError."""


def binding_of(endpoint: Endpoint) -> bytes:
    """The bytes by which both ends know this stream; none for plain text."""
    return endpoint.binding if isinstance(endpoint, BoundEndpoint) else b""


def split_address(address: str, scheme: str) -> str:
    """The text after `scheme://`; raises SettingError for another scheme."""
    head, separator, rest = address.partition("://")
    if not separator or head != scheme or not rest:
        raise SettingError(f"address {address!r} is not understood: it must look like {scheme}://...")
    return rest


def split_host(address: str, scheme: str = "tcp") -> tuple[str, int]:
    """Host and port of an address with a host."""
    rest = split_address(address, scheme)
    host, separator, port = rest.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"address {address!r} is not understood: it must look like {scheme}://host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def host_in(address: str) -> str:
    """The host of an address of any scheme that has hosts."""
    return split_host(address, address.partition("://")[0])[0]


def join_host(host: str, port: int, scheme: str = "tcp") -> str:
    """The address of a host and port; the host may be in brackets already."""
    return f"{scheme}://[{host}]:{port}" if ":" in host and host[0] != "[" else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Tell whether only this machine is reached under this name or address; no name is looked up."""
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
