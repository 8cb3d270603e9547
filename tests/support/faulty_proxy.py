# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that a test tells to cut, to turn a bit, or to send a pushed block of the remote service twice or late.

Frames are looked at behind the handshake of a connection that is plain, and on the way there alone.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

from penstock.connection.frames import HEADER, read_beginning
from penstock.remote.wire import BulkFrame

_CHUNK = 1 << 16
_GREETINGS = (40, 288)
"""The bytes of a client's hello and proof."""
HANDSHAKE = sum(_GREETINGS)
"""The bytes before the first frame, either way."""
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class FaultyProxy:
    """Listens at `port`, and connects to `target` for everybody who comes."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.struck = 0
        """The faults that have been made."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._flip = (-1, 0, 0)
        self._push = ""
        self._start(self._accept)

    @property
    def address(self) -> str:
        """The address of the proxy."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset all connections, and those that come, until `heal`."""
        with self._lock:
            self._is_cut = True
            for connection in self._open:
                _reset(connection)
            self.struck += 1

    def flip(self, way: int, place: int, bit: int) -> None:
        """Turn this bit of the byte there, on the first connection on which so many go this way from now on."""
        self._flip = (place, way, bit)

    def disturb(self, push: str) -> None:
        """Have the next pushed block sent `twice`, or `late`: after the one that follows it."""
        self._push = push

    def heal(self) -> None:
        """Let everything through as it is."""
        with self._lock:
            self._is_cut = False
        self._flip, self._push = (-1, 0, 0), ""

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = None
            with contextlib.suppress(OSError):
                far = None if self._is_cut else socket.create_connection(("127.0.0.1", self.target))
            if far is None:
                _reset(near)
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            self._start(self._pump, near, far, 0)
            self._start(self._pump, far, near, 1)

    def _pump(self, source: socket.socket, target: socket.socket, way: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            for data in self._frames(source) if way == 0 else _chunks(source):
                target.sendall(self._flipped(data, passed, way))
                passed += len(data)
        for connection in (source, target):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if way == 1:
            with self._lock:
                self._open -= {source, target}
            source.close()
            target.close()

    def _frames(self, source: socket.socket) -> Iterator[bytes]:
        """The bytes of a client, in frames where a push is to be disturbed."""
        if not self._push:
            yield from _chunks(source)
            return
        for size in _GREETINGS:
            yield _exactly(source, size)
        late = b""
        while True:
            head = _exactly(source, HEADER.size)
            length, kind, _, _ = read_beginning(head)
            frame = head + _exactly(source, length - len(head))
            if kind == BulkFrame.PUSH and self._push:
                if self._push == "late" and not late:
                    late = frame
                    continue
                yield frame + (late or frame)
                late, self._push = b"", ""
                self.struck += 1
            else:
                yield frame

    def _flipped(self, data: bytes, passed: int, way: int) -> bytes:
        with self._lock:
            at = self._flip[0] - passed
            if self._flip[0] < 0 or way != self._flip[1] or not 0 <= at < len(data):
                return data
            bit, self._flip = self._flip[2], (-1, 0, 0)
            self.struck += 1
        turned = bytearray(data)
        turned[at] ^= bit
        return bytes(turned)

    @staticmethod
    def _start(work: Any, *args: object) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()


def _chunks(source: socket.socket) -> Iterator[bytes]:
    while data := source.recv(_CHUNK):
        yield data


def _exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = source.recv(min(_CHUNK, size - len(found)))
        if not data:
            raise ConnectionError("the client has gone")
        found += data
    return bytes(found)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        connection.shutdown(socket.SHUT_RDWR)
