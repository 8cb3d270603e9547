# SPDX-License-Identifier: Apache-2.0
"""A stranger to the application's secret gets nothing from an environment process, and harms nobody in it.

Both doors are tried, the Unix socket and the TCP data port, while an exchange of another host is under way.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_harness import LocalHarness
from penstock.attachment.attachment import attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.connection.handshake import MAGIC, VERSION, Credentials, Handshake, Role, Service
from penstock.errors import AuthenticationError, EnvironmentLostError
from penstock.link.calls import GetStatistics
from penstock.testing import DEADLINE

pytestmark = pytest.mark.processes

HOST = "one"


@pytest.fixture(scope="module")
def harness() -> Iterator[LocalHarness]:
    """One environment process for all: each test shows that it still works at its end."""
    harness = LocalHarness("authentication")
    harness.commander(HOST)
    yield harness
    harness.close()


@pytest.fixture(params=["unix", "tcp"])
def door(request: pytest.FixtureRequest, harness: LocalHarness) -> Callable[[], socket.socket]:
    """Opens a connection to the environment."""
    commander = harness.commander(HOST)

    def unix() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(DEADLINE)
        connection.connect(str(harness.launch(HOST).place().socket))
        return connection

    def tcp() -> socket.socket:
        host, _, port = commander.address.removeprefix("tcp://").rpartition(":")
        return socket.create_connection((host, int(port)), DEADLINE)

    return unix if request.param == "unix" else tcp


def heard(connection: socket.socket) -> bytes:
    """All that the other side says until it closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            data += piece
    return data


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer where the other side closed."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while len(data) < count and (piece := connection.recv(count - len(data))):
            data += piece
    return data


def client(connection: socket.socket, secret: bytes, identity: str) -> Handshake:
    """A handshake for whichever door this connection has come to."""
    service = Service.TASKS if connection.family == socket.AF_UNIX else Service.PARTITIONS
    return Handshake(Role.CLIENT, service, Credentials(identity, secret), "test")


def shake(connection: socket.socket, secret: bytes) -> bool:
    """Tell whether a handshake with this secret goes through."""
    hands = client(connection, secret, "intruder")
    while not hands.is_done:
        connection.sendall(hands.outgoing())
        needed = hands.needed
        data = receive_exactly(connection, needed)
        if len(data) < needed:
            return False
        hands.receive(data)
    return True


def still_works(harness: LocalHarness) -> None:
    """The environment answers, holds no stranger's session, and its process is the same."""
    figures = harness.commander(HOST).ask(GetStatistics(), DEADLINE).figures
    assert figures["segments_in_use"] == 0
    attach(EnvironmentLaunch(harness.application, harness.secret, "", harness.conf, HOST)).close()
    assert Path(f"/proc/{harness.pid(HOST)}").exists()


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 8,
        bytes(300),
        b"\xff" * 300,
        MAGIC + bytes([VERSION]) + b"\xff" * 300,
        os.urandom(5000),
    ],
    ids=["http", "zeros", "ones", "magic", "noise"],
)
def test_unauthenticated_words(door: Callable[[], socket.socket], harness: LocalHarness, words: bytes) -> None:
    """A connection whose words are no handshake is closed without a word."""
    with door() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(words)
        assert heard(connection) == b""
    still_works(harness)


def test_wrong_secret(door: Callable[[], socket.socket], harness: LocalHarness) -> None:
    """A handshake with another secret is closed before anything of ours is proved; the right one goes through."""
    for secret in (bytes(32), secrets.token_bytes(32), harness.secret[:-1] + bytes([harness.secret[-1] ^ 1])):
        with door() as connection:
            assert not shake(connection, secret)
            assert heard(connection) == b""
    with door() as connection:
        assert shake(connection, harness.secret)
    still_works(harness)


def test_silence_and_half_a_handshake(door: Callable[[], socket.socket], harness: LocalHarness) -> None:
    """Connections that say nothing, or stop in the middle, keep nobody else out."""
    silent = [door() for _ in range(20)]
    half = [door() for _ in range(20)]
    for connection in half:
        connection.sendall(client(connection, harness.secret, "slow").outgoing()[:10])
    with door() as connection:
        assert shake(connection, harness.secret)
    still_works(harness)
    for connection in [*silent, *half]:
        connection.close()
    still_works(harness)


def test_replayed_proof(door: Callable[[], socket.socket], harness: LocalHarness) -> None:
    """A recorded handshake is worth nothing on a second connection."""
    with door() as connection:
        hands = client(connection, harness.secret, "honest")
        hello = hands.outgoing()
        connection.sendall(hello)
        hands.receive(receive_exactly(connection, hands.needed))
        proof = hands.outgoing()
        connection.sendall(proof)
        hands.receive(receive_exactly(connection, hands.needed))
        assert hands.is_done
    with door() as connection:
        connection.sendall(hello)
        assert receive_exactly(connection, len(hello))
        connection.sendall(proof)
        assert heard(connection) == b""
    still_works(harness)


def test_task_with_another_secret(harness: LocalHarness) -> None:
    """A task of another secret is told so; the environment is not started anew for it."""
    pid = harness.pid(HOST)
    launch = EnvironmentLaunch(harness.application, bytes(32), "", harness.conf, HOST)
    with pytest.raises((AuthenticationError, EnvironmentLostError), match=r"secret"):
        attach(launch)
    assert harness.pid(HOST) == pid
    still_works(harness)


def test_secret_is_not_shown(harness: LocalHarness) -> None:
    """Neither in the process's arguments nor in its environment block, nor in its log."""
    folder = Path(f"/proc/{harness.pid(HOST)}")
    for text in (folder / "cmdline", folder / "environ", harness.launch(HOST).place().log):
        data = text.read_bytes()
        assert harness.secret not in data
        assert harness.secret.hex().encode() not in data
    assert oct(harness.launch(HOST).place().folder.stat().st_mode)[-3:] == "700"
    assert oct(harness.launch(HOST).place().socket.stat().st_mode)[-3:] == "600"
