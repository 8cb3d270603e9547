# SPDX-License-Identifier: Apache-2.0
"""A downgrade off loopback is refused at both ends: nobody sends a word in plain text, and nobody answers one.

The listener is at an address of this machine that is not loopback's. It answers as our services do, in plain text.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from external_process import ExternalProcess
from own_address import own_address
from penstock import client
from penstock.connection.dialing import dial
from penstock.connection.handshake import MAGIC, Credentials, Handshake, Role, Service
from penstock.connection.principals import Principal, application_secret, key_line, key_of
from penstock.connection.protection import Protection, protection_of, services_protection
from penstock.errors import AuthenticationError, EnvironmentLostError, PenstockError, SettingError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import RenewLease
from penstock.services.external.client import call
from penstock.settings import TlsSettings
from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until
from remote_cluster import USER, RemoteCluster

pytestmark = pytest.mark.processes

KEY = key_line(USER)
SECRET = b"the secret of an application"
QUICK = {"spark.penstock.remote.retryTimeout": "1s", "spark.penstock.external.retryTimeout": "1s"}
EVERYWHERE = ("--host", "0.0.0.0")  # noqa: S104 - the test is about that
SCHEMA = pa.schema([("id", pa.int64())])


class PlainListener:
    """Takes every connection, says the first word of a server of ours in plain text, and keeps what it hears."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0))
        self.place = f"{host}:{self._listener.getsockname()[1]}"
        self.port = int(self._listener.getsockname()[1])
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with near, contextlib.suppress(OSError):
                near.settimeout(DEADLINE)
                self.heard.append(near.recv(4096))
                hello = Handshake(Role.CLIENT, Service.REMOTE, Credentials("false", SECRET), "a client").outgoing()
                near.sendall(hello)
                self.heard.append(near.recv(4096))

    def close(self) -> None:
        """End it."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(scope="module")
def own() -> str:
    """An address of this machine by which others reach it."""
    found = own_address()
    if not found:
        pytest.skip("this machine has loopback alone")
    return found


@pytest.fixture
def listener(own: str) -> Iterator[PlainListener]:
    """A service that would have plain text."""
    found = PlainListener(own)
    yield found
    found.close()


def _client_of_remote(scheme: str) -> Callable[[PlainListener, Path], object]:
    return lambda listener, _: client.connect(scheme + listener.place, key=KEY, conf=QUICK).close()


def _client_of_external(listener: PlainListener, folder: Path) -> None:
    """Its host's socket is the real one; the port by which readers come is not."""
    service = ExternalProcess(folder / "external", "--reserve", "1m")
    host = listener.place.partition(":")[0]
    conf = {"spark.penstock.external.port": str(listener.port), "spark.penstock.environment.advertisedHost": host}
    try:
        client.connect(service.socket, conf={**QUICK, **conf}).close()
    finally:
        service.close()


def _reader_of_external(listener: PlainListener, _: Path) -> None:
    key = ApplicationKey.of("app", SECRET)
    call(key, f"tcp://{listener.place}", [RenewLease()], 2.0, services_protection(TlsSettings()))


def _task_of_local(listener: PlainListener, _: Path) -> None:
    own = Credentials("task", SECRET)
    dial(f"tcp://{listener.place}", Service.PARTITIONS, own, protection_of(TlsSettings(), None), 2.0)


WAYS = {
    "client, remote": _client_of_remote(""),
    "client, remote, told tcp": _client_of_remote("tcp://"),
    "client, external": _client_of_external,
    "reader, external": _reader_of_external,
    "environment, local": _task_of_local,
}


@pytest.mark.parametrize("way", WAYS)
def test_nobody_says_a_word_in_plain_text(listener: PlainListener, way: str, tmp_path: Path) -> None:
    """For any address and any answer there is an error, and the listener has heard TLS or nothing."""
    with pytest.raises((PenstockError, OSError)):
        WAYS[way](listener, tmp_path)
    assert not [words for words in listener.heard if MAGIC in words or words[:1] not in (b"", b"\x16", b"\x15")]


def test_rows_are_not_pushed_to_a_worker_that_names_a_plain_address(own: str, tmp_path: Path) -> None:
    """The manager and the client are on loopback; the worker has others come to it in plain text."""
    cluster = RemoteCluster(tmp_path / "remote", 0)
    listener = PlainListener(own)
    try:
        cluster.add_worker(options=["--advertise", f"tcp://{listener.place}"])
        with client.connect(cluster.manager.address, key=cluster.keys.read_text().strip(), conf=QUICK) as service:
            writer = service.write_part(SCHEMA)
            writer.write(pa.record_batch([pa.array(range(1 << 16), pa.int64())], schema=SCHEMA))
            with pytest.raises(SettingError, match=r"plain text .*is refused.*tls\.mode"):
                writer.finish()
        assert not b"".join(listener.heard)
    finally:
        listener.close()
        cluster.close()


def test_no_service_answers_plain_text(own: str, tmp_path: Path) -> None:
    """One that knows the right secret is not let in, where it comes by an address that others have, too."""
    service = ExternalProcess(tmp_path / "external", *EVERYWHERE, "--reserve", "1m")
    cluster = RemoteCluster(tmp_path / "remote", 0, manager_options=list(EVERYWHERE))
    user, key = key_of(cluster.keys.read_text().strip(), "")
    remote = Credentials(Principal(user, "app", "client").identity, application_secret(key, user, "app"))
    plain = Protection(accepts_plain_text=True)
    try:
        with pytest.raises((AuthenticationError, EnvironmentLostError)):
            dial(f"tcp://{own}:{cluster.manager.port}", Service.REMOTE, remote, plain, 5.0)
        dial(f"tls://{own}:{cluster.manager.port}", Service.REMOTE, remote, Protection(), 5.0).close()
        external = Credentials("app", SECRET)
        with pytest.raises((AuthenticationError, EnvironmentLostError)):
            dial(f"tcp://{own}:{service.port}", Service.EXTERNAL, external, plain, 5.0)
        for log in (service.log, cluster.manager.log):
            wait_until(
                lambda log=log: "plain text, or an older TLS, is refused" in log.read_text(), f"{log} to say it"
            )
    finally:
        cluster.close()
        service.close()
