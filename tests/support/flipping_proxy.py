# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that flips one bit of what goes through it, once in each direction or always, after so many bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

_CHUNK = 1 << 16


class FlippingProxy:
    """Listens at `address`; `flip_at` are the bytes of one connection after which a bit flips: there, and back.

    `seen` are the bytes of all connections, there, and back, if it `keeps` them. With `always` it flips on each one.
    """

    def __init__(self, port: int = 0, *, keeps: bool = False, always: bool = False) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ("127.0.0.1", 0)
        self.flip_at: tuple[int, int] = (-1, -1)
        self.flipped = 0
        self.seen = (bytearray(), bytearray())
        self._keeps = keeps
        self._always = always
        self._lock = threading.Lock()
        self._start(self._accept)

    def close(self) -> None:
        """End it; connections end with their ends."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            self._start(self._pump, near, far, 0)
            self._start(self._pump, far, near, 1)

    def _pump(self, source: socket.socket, target: socket.socket, way: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                target.sendall(self._flipped(bytearray(data), passed, way))
                passed += len(data)
        for connection in (source, target):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if way == 1:
            source.close()
            target.close()

    def _flipped(self, data: bytearray, passed: int, way: int) -> bytearray:
        with self._lock:
            if self._keeps:
                self.seen[way].extend(data)
            at = self.flip_at[way] - passed
            if self.flip_at[way] >= 0 and 0 <= at < len(data):
                data[at] ^= 0x10
                if not self._always:
                    self.flip_at = (-1, self.flip_at[1]) if way == 0 else (self.flip_at[0], -1)
                self.flipped += 1
        return data

    @staticmethod
    def _start(work: Any, *args: object) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()
