# SPDX-License-Identifier: Apache-2.0
"""The transport seam: the same promises over TCP and memory."""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from memory_transport import MemoryTransport, memory_pair
from network_parts import certificate, random_bytes, run, wait_until
from penstock.connection.listeners import nobody_listens
from penstock.connection.protection import Protection
from penstock.connection.sockets import TcpTransport
from penstock.connection.tls import TlsEndpoint
from penstock.connection.transport import Endpoint, Listener, Transport, join_host, split_host
from penstock.connection.transports import load_transport
from penstock.errors import SettingError
from penstock.testing import DEADLINE
from zlib_example import ZlibTransport

KINDS = [("tcp", "asyncio"), ("tcp", "uvloop"), ("memory", "asyncio"), ("zlib", "asyncio"), ("zlib", "uvloop")]
KINDS += [("tls", "asyncio"), ("tls", "uvloop")]


def open_transport(kind: str, folder: Path) -> tuple[Transport, str]:
    """The transport of a kind, and where to listen."""
    if kind == "tcp":
        return TcpTransport(), "tcp://127.0.0.1:0"
    if kind == "tls":
        return Protection(certificate()).transport(), "tls://127.0.0.1:0"
    if kind == "zlib":
        return ZlibTransport(), "zlib://127.0.0.1:0"
    return MemoryTransport(capacity=5000), "memory://here"


async def connected(transport: Transport, address: str) -> tuple[Endpoint, Endpoint, Listener]:
    """Two ends and their listener."""
    accepted: list[Endpoint] = []
    listener = await transport.listen(address, accepted.append)
    near = await transport.connect(listener.address, 5)
    await wait_until(lambda: bool(accepted))
    if isinstance(near, TlsEndpoint):
        await meet(near, accepted[0])
    return near, accepted[0], listener


async def meet(near: Endpoint, far: Endpoint) -> None:
    """Two ends of TLS finish their handshake, which takes both: one byte gets through."""
    target = memoryview(bytearray(1))
    await wait_until(lambda: far.receive_nowait(target) is None and near.send_nowait([b"!"]) == 1)
    await wait_until(lambda: far.receive_nowait(target) == 1)


def with_pair(
    kind: tuple[str, str], folder: Path, body: Callable[[Endpoint, Endpoint, Listener], Awaitable[None]]
) -> None:
    """Run a test on two connected ends."""

    async def main() -> None:
        near, far, listener = await connected(*open_transport(kind[0], folder))
        try:
            await body(near, far, listener)
        finally:
            near.close()
            far.close()
            listener.close()
            listener.close()

    run(main, kind[1])


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_megabytes_arrive_whole_through_callbacks(kind: tuple[str, str], tmp_path: Path) -> None:
    """A gather write resumed at every would-block and reads of odd sizes carry the same bytes, then the end."""
    data = random_bytes(24 << 20)

    async def body(near: Endpoint, far: Endpoint, _listener: Listener) -> None:
        rest = [memoryview(data)[at : at + 70_001] for at in range(0, len(data), 70_001)]
        got = bytearray()
        is_ended = False
        blocked = 0

        def write() -> None:
            nonlocal blocked
            while rest:
                sent = near.send_nowait(rest)
                if sent == 0:
                    blocked += 1
                    return
                while sent:
                    piece = rest.pop(0)
                    if sent < len(piece):
                        rest.insert(0, piece[sent:])
                    sent -= min(sent, len(piece))
            near.close()

        def read() -> None:
            nonlocal is_ended
            target = bytearray(99_973)
            count = far.receive_nowait(memoryview(target))
            if count == 0:
                is_ended = True
                far.set_readable(None)
            elif count is not None:
                got.extend(target[:count])

        near.set_writable(write)
        far.set_readable(read)
        await wait_until(lambda: is_ended)
        assert got == data
        assert blocked > 0

    with_pair(kind, tmp_path, body)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_would_block_end_and_broken_are_told_apart(kind: tuple[str, str], tmp_path: Path) -> None:
    """None while there is nothing, 0 after the peer closed, an OSError for sending to a peer that is gone."""

    async def body(near: Endpoint, far: Endpoint, listener: Listener) -> None:
        target = memoryview(bytearray(10))
        assert far.receive_nowait(target) is None
        assert near.send_nowait([b"ab", memoryview(b"cd")]) == 4
        readable = asyncio.Event()
        far.set_readable(readable.set)
        await asyncio.wait_for(readable.wait(), DEADLINE)
        far.set_readable(None)
        assert far.receive_nowait(target) == 4
        assert bytes(target[:4]) == b"abcd"
        near.close()
        near.close()
        readable.clear()
        far.set_readable(readable.set)
        await asyncio.wait_for(readable.wait(), DEADLINE)
        far.set_readable(None)
        assert far.receive_nowait(target) == 0

        def send_until_broken() -> None:
            for _ in range(100):
                far.send_nowait([bytes(1000)])

        with pytest.raises(OSError, match=r"."):
            send_until_broken()
        assert listener.address.split("://")[1] in near.peer

    with_pair(kind, tmp_path, body)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_nobody_listening_is_an_error(kind: tuple[str, str], tmp_path: Path) -> None:
    """Connecting to an address that was closed raises OSError at once, and leaks nothing."""

    async def main() -> None:
        transport, address = open_transport(kind[0], tmp_path)
        listener = await transport.listen(address, lambda endpoint: endpoint.close())
        listener.close()
        with pytest.raises(OSError, match=r"."):
            await transport.connect(listener.address, 5)

    run(main, kind[1])


@pytest.mark.parametrize("kind", ["tcp", "memory", "zlib"])
def test_addresses_of_another_kind_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    """The error shows the address and what it should look like."""

    async def main() -> None:
        transport, _ = open_transport(kind, tmp_path)
        for address in ("", "host:80", "http://host", f"{kind}://"):
            with pytest.raises(SettingError, match=kind):
                await transport.listen(address, lambda endpoint: endpoint.close())
            with pytest.raises(SettingError, match=kind):
                await transport.connect(address, 1)

    run(main)


@pytest.mark.parametrize("address", ["tcp://host", "tcp://:1", "tcp://host:x", "tcp://host:70000"])
def test_tcp_addresses_need_host_and_port(address: str) -> None:
    """Each part is checked."""
    with pytest.raises(SettingError, match="tcp://host:port"):
        split_host(address)


def test_ipv6_addresses_are_bracketed() -> None:
    """Both ways."""
    assert split_host("tcp://[::1]:80") == ("::1", 80)
    assert join_host("::1", 80) == "tcp://[::1]:80"
    assert join_host("host", 80) == "tcp://host:80"


def test_tcp_sockets_are_tuned() -> None:
    """Both ends have no delay and keep-alive, and the server listens on the address it was given only."""

    async def main() -> None:
        near, far, listener = await connected(TcpTransport(), "tcp://127.0.0.1:0")
        for endpoint in (near, far):
            tuned: socket.socket = endpoint._socket  # type: ignore[attr-defined]
            assert tuned.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert tuned.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert tuned.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert listener._socket.getsockname()[0] == "127.0.0.1"  # type: ignore[attr-defined]
        for end in (near, far, listener):
            end.close()

    run(main)


def test_running_out_of_descriptors_pauses_accepting(monkeypatch: pytest.MonkeyPatch) -> None:
    """EMFILE does not spin or kill the listener: it accepts again after a pause."""

    async def main() -> None:
        accepted: list[Endpoint] = []
        listener = await TcpTransport().listen("tcp://127.0.0.1:0", accepted.append)
        monkeypatch.setattr("penstock.connection.sockets.ACCEPT_PAUSE", 0.01)

        class Exhausted:
            """The listening socket, out of descriptors for once."""

            def __init__(self, real: socket.socket) -> None:
                self.real = real

            def fileno(self) -> int:
                return self.real.fileno()

            def accept(self) -> None:
                listener._socket = self.real  # type: ignore[attr-defined]
                raise OSError(24, "Too many open files")

        listener._socket = Exhausted(listener._socket)  # type: ignore[attr-defined]
        near = await TcpTransport().connect(listener.address, 5)
        await wait_until(lambda: bool(accepted))
        for end in (near, accepted[0], listener):
            end.close()

    run(main)


def test_memory_pairs_are_bounded_and_deterministic() -> None:
    """Without any event loop: capacity is exact, callbacks run in the order they became due."""
    due: list[Callable[[], None]] = []
    near, far = memory_pair(due.append, capacity=10)
    log: list[str] = []
    assert near.send_nowait([b"12345678", b"90ab"]) == 10
    assert near.send_nowait([b"x"]) == 0
    near.set_writable(lambda: log.append("writable"))
    assert due == []

    def read() -> None:
        target = bytearray(4)
        log.append(f"read {far.receive_nowait(memoryview(target))}")

    far.set_readable(read)
    for _ in range(4):
        due.pop(0)()
    assert log == ["read 4", "writable", "read 4", "writable"]
    near.set_writable(None)
    near.close()
    while due:
        due.pop(0)()
        if log[-1] == "read 0":
            far.set_readable(None)
    assert log[-2:] == ["read 2", "read 0"]
    with pytest.raises(OSError, match="closed"):
        far.send_nowait([b"x"])
    with pytest.raises(OSError, match="closed"):
        near.receive_nowait(memoryview(bytearray(1)))


def test_memory_names_are_unique() -> None:
    """A name in use cannot be listened on again."""

    async def main() -> None:
        transport = MemoryTransport()
        listener = await transport.listen("memory://a", lambda endpoint: endpoint.close())
        with pytest.raises(FileExistsError):
            await transport.listen("memory://a", lambda endpoint: endpoint.close())
        listener.close()

    run(main)


def test_a_forked_child_keeps_no_connection_and_no_port() -> None:
    """It lives on, and yet the other end sees the end, and nobody listens any more."""

    async def main() -> None:
        near, far, listener = await connected(TcpTransport(), "tcp://127.0.0.1:0")
        wait, go = os.pipe()
        with warnings.catch_warnings(action="ignore"):  # of threads, which the child does not use
            child = os.fork()
        if not child:
            os.close(go)
            os.read(wait, 1)
            os._exit(0)
        try:
            for end in (near, listener):
                end.close()
            ended = asyncio.Event()
            far.set_readable(ended.set)
            await asyncio.wait_for(ended.wait(), DEADLINE)
            far.set_readable(None)
            assert far.receive_nowait(memoryview(bytearray(1))) == 0
            async with asyncio.timeout(DEADLINE):  # the child closes one copy after the other
                while not await nobody_listens(TcpTransport(), listener.address):
                    pass
        finally:
            for descriptor in (go, wait):
                os.close(descriptor)
            os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
            far.close()

    run(main)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104
def test_where_all_addresses_are_asked_for_both_families_come(host: str) -> None:
    """A driver that is bound to all addresses is reached by IPv4 and by IPv6, as Spark's own ports are."""

    async def main() -> None:
        transport = TcpTransport()
        came: list[Endpoint] = []
        listener = await transport.listen(join_host(host, 0), came.append)
        port = split_host(listener.address)[1]
        near = [
            await transport.connect(join_host(name, port), DEADLINE) for name in ("127.0.0.1", "::1", "localhost")
        ]
        await wait_until(lambda: len(came) == 3)
        for end in (*near, *came, listener):
            end.close()

    run(main)


def test_a_transport_is_found_by_its_name() -> None:
    """By an entry point's or by `module:attribute`; one that is not there is named, with those that are."""
    assert isinstance(load_transport("tcp"), TcpTransport)
    assert isinstance(load_transport("memory_transport:MemoryTransport"), MemoryTransport)
    with pytest.raises(SettingError, match=r"unknown transport 'rdma': installed are tcp; another one is named"):
        load_transport("rdma")
