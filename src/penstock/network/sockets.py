# SPDX-License-Identifier: Apache-2.0
"""The transport over sockets: TCP.

Raw non-blocking sockets with the loop's readers and writers, not asyncio streams: a payload is received straight into
its segment and sent straight out of one, and nothing is buffered in between that credit does not know of. Works with
asyncio's and uvloop's event loops.

Limits: ACCEPTS connections taken in one turn; GATHER parts in one write.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from penstock.network.transport import Endpoint, Listener, join_host, split_host

log = logging.getLogger("penstock.network")

GATHER: Final = 64
"""Parts of one gather write: far below every system's IOV_MAX, and enough for megabytes of buffers."""
ACCEPTS: Final = 16
"""Connections accepted in one turn of the loop, so that a burst does not starve those at work."""
ACCEPT_PAUSE: Final = 0.5
"""Seconds without accepting when the process is out of file descriptors; the queue of the kernel waits meanwhile."""
ACCEPT_LOG: Final = 60.0
"""Seconds between two lines in the log about that."""
KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
"""A silent peer is probed after 30 s and given up after a minute, sent bytes or not; the default is hours."""
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class SocketEndpoint:
    """An endpoint on a connected stream socket, which it owns."""

    __slots__ = ("_loop", "_peer", "_readable", "_socket", "_writable")

    def __init__(self, connected: socket.socket, peer: str) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._readable = self._writable = False

    @property
    def peer(self) -> str:
        """The other end's address."""
        return self._peer

    def send_nowait(self, parts: Sequence[bytes | memoryview]) -> int:
        """One gather write."""
        try:
            return self._socket.sendmsg(parts[:GATHER])
        except (BlockingIOError, InterruptedError):
            return 0

    def receive_nowait(self, target: memoryview) -> int | None:
        """One read into `target`."""
        try:
            return self._socket.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return None

    def set_readable(self, callback: Callable[[], None] | None) -> None:
        """Register with the loop; a descriptor number, so that the loop keeps no hold on the socket."""
        if callback is not None:
            self._loop.add_reader(self._socket.fileno(), callback)
        elif self._readable:
            self._loop.remove_reader(self._socket.fileno())
        self._readable = callback is not None

    def set_writable(self, callback: Callable[[], None] | None) -> None:
        """Register with the loop."""
        if callback is not None:
            self._loop.add_writer(self._socket.fileno(), callback)
        elif self._writable:
            self._loop.remove_writer(self._socket.fileno())
        self._writable = callback is not None

    def close(self) -> None:
        """Leave the loop, then close."""
        if self._socket.fileno() >= 0:
            self.set_readable(None)
            self.set_writable(None)
            self._socket.close()


class SocketListener:
    """Accepts on a listening socket, which it owns."""

    def __init__(
        self, listening: socket.socket, address: str, on_accepted: Callable[[socket.socket, object], None]
    ) -> None:
        listening.setblocking(False)
        self._socket = listening
        self._address = address
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0
        self._start()

    @property
    def address(self) -> str:
        """The address to connect to."""
        return self._address

    def close(self) -> None:
        """Stop accepting."""
        if self._socket.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        else:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _start(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                accepted, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                self._wait(error)
                return
            self._on_accepted(accepted, peer)
            if self._socket.fileno() < 0:
                return

    def _wait(self, error: OSError) -> None:
        """Those who come now wait in the system's queue."""
        self._loop.remove_reader(self._socket.fileno())
        self._pause = self._loop.call_later(ACCEPT_PAUSE, self._start)
        if self._loop.time() >= self._quiet_until:
            self._quiet_until = self._loop.time() + ACCEPT_LOG
            log.warning("nobody is accepted at %s until something comes free: %s", self._address, error)


class TcpTransport:
    """TCP with NODELAY and keep-alive probes. `tcp://host:port`; port 0 takes a free one."""

    async def listen(self, address: str, on_connection: Callable[[Endpoint], None]) -> Listener:
        """Bind to exactly this host's address, never to all unless that was asked for."""
        host, port = split_host(address)
        family, where = await _resolve(host, port)
        listening = socket.create_server(where, family=family, backlog=256)

        def accepted(connected: socket.socket, peer: object) -> None:
            _tune(connected)
            name = join_host(*peer[:2]) if isinstance(peer, tuple) else str(peer)
            on_connection(SocketEndpoint(connected, name))

        return SocketListener(listening, join_host(host, listening.getsockname()[1]), accepted)

    async def connect(self, address: str, timeout: float) -> Endpoint:  # noqa: ASYNC109 - the seam's signature
        """Connect within `timeout` seconds."""
        async with asyncio.timeout(timeout):
            family, where = await _resolve(*split_host(address))
            connected = await _connect(socket.socket(family, socket.SOCK_STREAM), where)
        _tune(connected)
        return SocketEndpoint(connected, address)


async def _connect(connected: socket.socket, where: tuple[str, int]) -> socket.socket:
    connected.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connected, where)
    except BaseException:
        connected.close()
        raise
    return connected


async def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, where = found[0]
    return family, (str(where[0]), int(where[1]))


def _tune(connected: socket.socket) -> None:
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except OSError:
        # The peer may be gone already; the first read or write says so, in one place.
        return
