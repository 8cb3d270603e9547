# SPDX-License-Identifier: Apache-2.0
"""Those who connect to a service and may not: with words of another protocol, with none, with a wrong secret."""

from __future__ import annotations

import contextlib
import os
import socket

from penstock.connection.handshake import Credentials, Handshake, Role, Service
from penstock.testing import DEADLINE

_WORDS = (b"GET / HTTP/1.1\r\n\r\n", b"PSTK" + bytes(300), b"", os.urandom(2000))


def bad_connections(port: int, number: int, service: Service, identity: str = "nobody") -> None:
    """Connect so often to a port of loopback, each time badly, and hear nothing. Each fifth has a wrong secret."""
    for turn in range(number):
        with contextlib.closing(socket.create_connection(("127.0.0.1", port), DEADLINE)) as stranger:
            kind = turn % (len(_WORDS) + 1)
            if kind < len(_WORDS):
                stranger.sendall(_WORDS[kind])
            else:
                _prove_badly(stranger, service, identity)


def _prove_badly(stranger: socket.socket, service: Service, identity: str) -> None:
    """Take the handshake to its end with a secret that nobody else has: the other side says no word of its own."""
    hands = Handshake(Role.CLIENT, service, Credentials(identity, os.urandom(32)), "a service")
    stranger.sendall(hands.outgoing())
    data = b""
    while len(data) < hands.needed and (piece := stranger.recv(hands.needed - len(data))):
        data += piece
    hands.receive(data)
    stranger.sendall(hands.outgoing())
    with contextlib.suppress(ConnectionResetError):
        assert stranger.recv(1) == b"", "a stranger was answered"
