# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that a test cuts: what goes through it ends with a reset, and whoever connects is reset too."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from penstock.testing import DEADLINE

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_CHUNK = 1 << 16


class CuttableProxy:
    """Listens at `address`, and connects to a target for everybody who comes."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self._is_cut = False
        self._refused = 0
        self._start(self._accept)

    def cut(self) -> None:
        """Reset every connection, and those to come, until `mend`."""
        with self._changed:
            self._is_cut = True
            self._refused = 0
            for connection in list(self._open):
                _reset(connection)
            self._open.clear()

    def mend(self) -> None:
        """Let new connections through."""
        with self._changed:
            self._is_cut = False

    def silence(self) -> None:
        """Lose what goes through the connections there are, without a word to either side; new ones work."""
        with self._changed:
            self._silent |= self._open

    def wait_refused(self, count: int) -> None:
        """Wait until so many connections were reset since the cut."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._refused >= count, DEADLINE), self._refused

    def close(self) -> None:
        """End it."""
        self._listener.close()
        self.cut()
        for connection in self._silent:
            _reset(connection)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._is_cut:
                    _reset(near)
                    self._refused += 1
                    self._changed.notify_all()
                    continue
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    _reset(near)
                    continue
                self._open |= {near, far}
            self._start(self._pump, near, far)
            self._start(self._pump, far, near)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if source not in self._silent:
                    target.sendall(data)
        with self._changed:
            for connection in (source, target):
                if connection not in self._silent:
                    _end(connection)
                self._open.discard(connection)

    @staticmethod
    def _start(work: object, *args: object) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()  # type: ignore[arg-type]


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        connection.shutdown(socket.SHUT_RD)  # wakes the thread that reads it
    connection.close()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
