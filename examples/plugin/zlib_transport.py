# SPDX-License-Identifier: Apache-2.0
"""A transport as a plug-in: TCP whose bytes are compressed, for environments at sites that a thin wire joins.

    spark.penstock.network.transport   zlib_transport:ZlibTransport      (the module is on every worker's path)

Addresses are `zlib://host:port`. Each endpoint wraps one of TCP. An encryption would look the same, with the same two
traps: bytes count as sent when the system has taken all that they became, and bytes that have been received and not
been asked for must call back, though the socket has no more.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

from penstock.connection.sockets import TcpTransport
from penstock.connection.transport import Endpoint, Listener, join_host, split_host

BLOCK = 64 << 10
"""Bytes that are compressed at a time."""
LEVEL = 1


class ZlibEndpoint:
    """One end of a compressed stream."""

    def __init__(self, inner: Endpoint) -> None:
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._deflate = zlib.compressobj(LEVEL)
        self._inflate = zlib.decompressobj()
        self._unsent = b""
        self._block = 0
        """Bytes of the caller's that `_unsent` is the rest of."""
        self._came = bytearray(BLOCK)
        self._has_more = False
        self._readable: Callable[[], None] | None = None
        self._again: asyncio.Handle | None = None

    @property
    def peer(self) -> str:
        """The other end."""
        return self._inner.peer.replace("tcp://", "zlib://")

    def send_nowait(self, parts: Sequence[bytes | memoryview]) -> int:
        """Compress a block and send it; it counts when all of it has gone, and is offered again until then."""
        if not self._block:
            block = b"".join(bytes(part[:BLOCK]) for part in parts[:16])[:BLOCK]
            self._unsent = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
            self._block = len(block)
        while self._unsent:
            sent = self._inner.send_nowait([self._unsent])
            if not sent:
                return 0
            self._unsent = self._unsent[sent:]
        count, self._block = self._block, 0
        return count

    def receive_nowait(self, target: memoryview) -> int | None:
        """Decompress as much as fits, first of what has come before."""
        came = b""
        while True:
            if not (self._has_more or self._inflate.unconsumed_tail):
                count = self._inner.receive_nowait(memoryview(self._came))
                if not count:
                    return count
                came = bytes(self._came[:count])
            try:
                plain = self._inflate.decompress(self._inflate.unconsumed_tail + came, len(target))
            except zlib.error as error:
                raise OSError(f"{self.peer} sends what is not compressed: {error}") from error
            came, self._has_more = b"", len(plain) == len(target)
            if plain:
                target[: len(plain)] = plain
                self._call_again()
                return len(plain)

    def set_readable(self, callback: Callable[[], None] | None) -> None:
        """Call back while there is something in the socket, or here."""
        self._readable = callback
        self._inner.set_readable(callback)
        self._call_again()

    def set_writable(self, callback: Callable[[], None] | None) -> None:
        """Call back while the socket takes something."""
        self._inner.set_writable(callback)

    def close(self) -> None:
        """End both directions."""
        self._readable = None
        if self._again is not None:
            self._again.cancel()
        self._inner.close()

    def _call_again(self) -> None:
        if self._again is None and self._readable and (self._has_more or self._inflate.unconsumed_tail):
            self._again = self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._again = None
        if self._readable is not None:
            self._readable()
            self._call_again()


class ZlibListener:
    """A listener whose endpoints are compressed."""

    def __init__(self, inner: Listener) -> None:
        self._inner = inner
        self.address = join_host(*split_host(inner.address), "zlib")

    def close(self) -> None:
        """Stop accepting."""
        self._inner.close()


class ZlibTransport:
    """Opens compressed streams over TCP."""

    scheme = "zlib"

    def __init__(self) -> None:
        self._tcp = TcpTransport()

    async def listen(self, address: str, on_connection: Callable[[Endpoint], None]) -> Listener:
        """Accept at the TCP address of the same host and port."""
        inner = join_host(*split_host(address, self.scheme))
        return ZlibListener(await self._tcp.listen(inner, lambda end: on_connection(ZlibEndpoint(end))))

    async def connect(self, address: str, timeout: float) -> Endpoint:  # noqa: ASYNC109 - the seam's signature
        """Connect to it."""
        return ZlibEndpoint(await self._tcp.connect(join_host(*split_host(address, self.scheme)), timeout))
