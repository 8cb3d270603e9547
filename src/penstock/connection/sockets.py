# SPDX-License-Identifier: Apache-2.0
"""The transport over sockets: TCP, and the Unix sockets by which a host's tasks reach their environment.

Raw non-blocking sockets with the loop's readers and writers, not asyncio streams: a payload is received straight into
its segment and sent straight out of one, and nothing is buffered in between that credit does not know of. Works with
asyncio's and uvloop's event loops. A child that forks closes its copies at once: what user code starts keeps no
connection open, and no port taken, when this process has ended.

Limits: ACCEPTS connections taken in one turn; GATHER parts in one write.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import struct
import termios
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.connection.transport import Endpoint, Listener, is_loopback, join_host, split_host
from penstock.errors import SettingError

log = logging.getLogger("penstock.connection")

BACKLOG: Final = 1024
"""Connections that wait to be accepted; the system may allow fewer."""

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
        _open.add(connected)

    @property
    def peer(self) -> str:
        """The other end's address."""
        return self._peer

    @property
    def connected(self) -> socket.socket:
        """The socket, to be looked at."""
        return self._socket

    def send_nowait(self, parts: Sequence[bytes | memoryview]) -> int:
        """One gather write."""
        try:
            return self._socket.sendmsg(parts[:GATHER])
        except (BlockingIOError, InterruptedError):
            return 0

    def send_descriptor(self, data: bytes, *descriptors: int) -> None:
        """Send this whole, with copies of descriptors: over a Unix socket on which nothing waits."""
        packed = struct.pack(f"{len(descriptors)}i", *descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)]
        if self._socket.sendmsg([data], rights) != len(data):
            raise BrokenPipeError("it takes nothing")

    @property
    def unread(self) -> int:
        """The bytes that the system holds for the other end, which has not read them."""
        held = array.array("i", [0])
        fcntl.ioctl(self._socket, termios.TIOCOUTQ, held)
        return held[0]

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

    def wait_for_window(self) -> None:
        """A peer whose window is closed has not failed: the system's own limits say when one is gone."""
        if self._socket.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
            with contextlib.suppress(OSError):  # gone already: the next read or write says so
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)

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
        _open.add(listening)
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
    """TCP with NODELAY and keep-alive probes. `tcp://host:port`; port 0 takes a free one.

    With `socket_buffer` each socket sends and receives within a buffer of so many bytes, as the system counts them,
    instead of one that the system lets grow. One that `stays_on_loopback` listens and connects nowhere else.
    """

    scheme = "tcp"

    def __init__(self, socket_buffer: int = 0, *, stays_on_loopback: bool = False) -> None:
        self._socket_buffer = socket_buffer
        self._stays_on_loopback = stays_on_loopback

    async def listen(self, address: str, on_connection: Callable[[Endpoint], None]) -> Listener:
        """Bind to exactly this host's address, never to all unless that was asked for: then IPv4's and IPv6's."""
        host, port = split_host(address)
        listening = _listening(*(await _resolve(host, port))[0])
        self._check(listening, listening.getsockname(), address)
        _pin(listening, self._socket_buffer)  # those that it accepts have its sizes

        def accepted(connected: socket.socket, peer: object) -> None:
            _tune(connected)
            name = join_host(*peer[:2]) if isinstance(peer, tuple) else str(peer)
            on_connection(SocketEndpoint(connected, name))

        return SocketListener(listening, join_host(host, listening.getsockname()[1]), accepted)

    async def connect(self, address: str, timeout: float) -> Endpoint:  # noqa: ASYNC109 - the seam's signature
        """Connect within `timeout` seconds, to the first address of the host that answers."""
        async with asyncio.timeout(timeout):
            connected = await _connect(await _resolve(*split_host(address)), self._socket_buffer)
        _tune(connected)
        try:
            where = connected.getpeername()
        except OSError:  # the peer is gone already, which the first read says
            where = connected.getsockname()
        self._check(connected, where, address)
        return SocketEndpoint(connected, address)

    def _check(self, opened: socket.socket, where: tuple[str, int], address: str) -> None:
        """Close a socket that leaves loopback where none may, and raise SettingError."""
        if self._stays_on_loopback and not is_loopback(where[0]):
            opened.close()
            raise SettingError(
                f"plain text at {address} is refused, for others than this machine reach it: set"
                " spark.penstock.tls.mode=always, or, on a network that you trust, =never"
            )


def unix_listening(path: Path) -> socket.socket:
    """A socket that listens at this path, of this user alone; `SocketListener` accepts at it.

    One that an earlier process has left is replaced; anything else there, or another user's, is a SettingError.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            what = f"a socket of user {found.st_uid}" if stat.S_ISSOCK(found.st_mode) else "no socket"
            raise SettingError(
                f"{path} is there, and is {what}: nothing was removed. Name another path for the socket"
            )
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


_Where = tuple[socket.AddressFamily, tuple[str, int]]


def _listening(family: socket.AddressFamily, where: tuple[str, int]) -> socket.socket:
    if where[0] in ("0.0.0.0", "::") and socket.has_dualstack_ipv6():  # noqa: S104 - it was asked for
        try:
            return socket.create_server(
                ("::", where[1]), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        except OSError as error:
            log.info("not bound to IPv6 as well: %s", error)
    return socket.create_server(where, family=family, backlog=BACKLOG)


def _pin(unconnected: socket.socket, size: int) -> None:
    if size:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            unconnected.setsockopt(socket.SOL_SOCKET, option, size)


async def _connect(choices: list[_Where], socket_buffer: int) -> socket.socket:
    failure: OSError | None = None
    for family, where in choices:
        connected = socket.socket(family, socket.SOCK_STREAM)
        connected.setblocking(False)
        _pin(connected, socket_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(connected, where)
            return connected
        except OSError as error:
            connected.close()
            failure = error
        except BaseException:
            connected.close()
            raise
    raise failure or OSError("the host has no address")


async def _resolve(host: str, port: int) -> list[_Where]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, (str(where[0]), int(where[1]))) for family, _, _, _, where in found]


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


_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    for known in list(_open):
        if known.fileno() >= 0:
            os.close(known.detach())
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)
