# SPDX-License-Identifier: Apache-2.0
"""Strangers by the hundred at the door of a service of several applications: no answer, no memory, no harm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from effort import THOROUGH
from network_parts import certificate, run, wait_until
from penstock.connection.certificate import Certificate
from penstock.connection.certificates import client_context
from penstock.connection.dialing import dial
from penstock.connection.door import Door
from penstock.connection.handshake import Credentials, Service
from penstock.connection.principals import KeyFile, Principal, application_secret, key_line, user_key
from penstock.connection.protection import Protection
from penstock.connection.transport import Endpoint, split_host
from penstock.errors import AuthenticationError, EnvironmentLostError
from penstock.testing import DEADLINE

STRANGERS = 10_000 if THOROUGH else 120
AT_ONCE = 20
GROWTH = 6 << 20
"""Bytes that the allocator may keep besides; ten thousand strangers at a kilobyte each would be more."""
SEALED = Protection(Certificate())
PAGE = os.sysconf("SC_PAGE_SIZE")


def memory() -> int:
    """The resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Strangers:
    """All kinds of them, at one address; each says how many bytes it has heard beyond a nonce."""

    def __init__(self, address: str, foreign: bytes) -> None:
        self._where = split_host(address, "tls")
        self._address = address
        self._foreign = foreign
        self._context = client_context(Certificate())
        self.kinds: list[Callable[[], int]] = [self.mute, self.plain, self.junk, self.unknown, self.wrong, self.other]

    def mute(self) -> int:
        """Hang up without a word."""
        socket.create_connection(self._where, DEADLINE).close()
        return 0

    def plain(self) -> int:
        """Speak another protocol in plain text; an alert of TLS is all that there may be."""
        with socket.create_connection(self._where, DEADLINE) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return max(0, len(heard(stranger)) - 7)

    def junk(self) -> int:
        """Speak junk over TLS."""
        with self._context.wrap_socket(socket.create_connection(self._where, DEADLINE)) as stranger:
            stranger.sendall(bytes(300))
            return len(heard(stranger))

    def unknown(self) -> int:
        """Be a user whom nobody knows."""
        return self._shaken(Credentials("mallory/app-1/x", b"x" * 32))

    def wrong(self) -> int:
        """Claim to be a known application, with another secret."""
        return self._shaken(Credentials("alice/app-1/x", b"x" * 32))

    def other(self) -> int:
        """Claim to be another application of the same user."""
        return self._shaken(Credentials("alice/app-2/x", self._foreign))

    def _shaken(self, shown: Credentials) -> int:
        try:
            dial(self._address, Service.EXTERNAL, shown, SEALED).close()
        except (AuthenticationError, EnvironmentLostError):
            return 0
        return 1


def heard(stranger: socket.socket) -> bytes:
    """All that the other side says until it hangs up."""
    data = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := stranger.recv(4096):
            data += piece
    return data


def test_strangers_get_nothing_and_cost_nothing(tmp_path: Path) -> None:
    """Unauthenticated, wrongly authenticated and foreign clients are all refused; who is known comes in meanwhile."""
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(key_line("alice"))
    user, key = user_key(str(keys))
    own = Principal(user, "app-1", "task")
    secret = application_secret(key, user, own.application)

    async def main() -> None:
        inside: list[Endpoint] = []
        door = Door[Endpoint](Service.EXTERNAL, KeyFile("service", keys), lambda endpoint, _: inside.append(endpoint))
        listener = await Protection(certificate()).transport().listen("tls://127.0.0.1:0", door.come)
        strangers = Strangers(listener.address, secret)
        half = 0
        for number in range(0, STRANGERS, AT_ONCE):
            kinds = [strangers.kinds[(number + each) % len(strangers.kinds)] for each in range(AT_ONCE)]
            assert not any(await asyncio.gather(*(asyncio.to_thread(kind) for kind in kinds)))
            if number == STRANGERS // 2:
                half = memory()
        await wait_until(lambda: door.refused == STRANGERS)
        assert memory() - half < GROWTH
        assert door.waiting == len(inside) == 0
        known = await asyncio.to_thread(
            dial, listener.address, Service.EXTERNAL, Credentials(own.identity, secret), SEALED
        )
        await wait_until(lambda: len(inside) == 1)
        known.close()
        inside[0].close()
        listener.close()
        door.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main, "asyncio")
