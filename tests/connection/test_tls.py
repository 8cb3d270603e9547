# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 between hosts: who gets in, who does not and hears what, and what a changed byte on the wire does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from network_parts import certificate, run, wait_until
from own_address import own_address
from penstock.connection.certificate import Certificate
from penstock.connection.certificates import fingerprint_of, new_certificate, server_context
from penstock.connection.dialing import dial
from penstock.connection.door import Door, DoorSettings
from penstock.connection.handshake import Credentials, Service
from penstock.connection.opening import Opener, OpeningSettings
from penstock.connection.protection import Protection, decided, protection_of, services_protection
from penstock.connection.sockets import TcpTransport
from penstock.connection.tls import AHEAD, RECORD, TlsEndpoint, TlsTransport
from penstock.connection.transport import Endpoint, Transport, binding_of, is_loopback, split_host
from penstock.errors import AuthenticationError, EnvironmentLostError, SettingError
from penstock.remote.peers import own_protection
from penstock.services.fetching.sealed import SealedSession
from penstock.settings import Settings, TlsSettings
from penstock.testing import DEADLINE

SECRET = b"a secret of the application....."
ONCE = OpeningSettings(pauses=())
SERVICE = Service.PARTITIONS
LIMITS = DoorSettings()


class Entrance:
    """A door over a transport, and who has come in."""

    def __init__(self, transport: Transport, settings: DoorSettings = LIMITS) -> None:
        self.inside: list[Endpoint] = []
        self.door = Door[Endpoint](SERVICE, Credentials("server", SECRET), self._enter, settings)
        self.transport = transport

    def _enter(self, endpoint: Endpoint, _: str) -> None:
        self.inside.append(endpoint)

    async def open_at(self, address: str) -> str:
        """Listen."""
        self.listener = await self.transport.listen(address, self.door.come)
        return self.listener.address

    def close(self) -> None:
        """End all of it."""
        self.listener.close()
        self.door.close()
        for endpoint in self.inside:
            endpoint.close()


@contextlib.asynccontextmanager
async def entrance(protection: Protection, settings: DoorSettings = LIMITS) -> AsyncIterator[tuple[Entrance, str]]:
    """A door on loopback, and its address."""
    transport = protection.transport()
    here = Entrance(transport, settings)
    address = await here.open_at(f"{transport.scheme}://127.0.0.1:0")
    try:
        yield here, address
    finally:
        here.close()


async def opened(protection: Protection, address: str, secret: bytes = SECRET) -> Endpoint:
    """One try to come in."""
    return await Opener(protection.towards(address), SERVICE, Credentials("client", secret), ONCE).open(address)


def test_both_ends_prove_the_secret_for_the_certificate_that_they_see() -> None:
    """Over TLS the handshake of ours goes through, and both ends know the stream by the same fingerprint."""

    async def main() -> None:
        async with entrance(Protection(certificate())) as (here, address):
            near = await opened(Protection(certificate()), address)
            await wait_until(lambda: bool(here.inside))
            assert binding_of(near) == binding_of(here.inside[0]) != b""
            near.close()

    run(main, "asyncio")


def test_who_has_the_secret_and_another_certificate_is_not_trusted() -> None:
    """A server whose certificate is not the application's is refused by its client before anything is said."""

    async def main() -> None:
        async with entrance(Protection(new_certificate("somebody else"))) as (here, address):
            with pytest.raises(AuthenticationError, match=r"127\.0\.0\.1.*not trusted here.*tls\.authorities"):
                await opened(Protection(certificate()), address)
            await wait_until(lambda: here.door.refused == 1)
            assert not here.inside

    run(main, "asyncio")


def test_services_of_certificates_that_they_make_know_each_other_by_their_secret() -> None:
    """A manager and a worker off loopback, without `--certificate`: each has made one of its own."""

    async def main() -> None:
        async with entrance(own_protection("10.1.0.5", None)) as (here, address):
            (await opened(own_protection("10.1.0.6", None), address)).close()
            with pytest.raises(AuthenticationError):
                await opened(own_protection("10.1.0.6", None), address, b"not the secret of manager and workers")
            assert len(here.inside) == here.door.refused == 1

    run(main, "asyncio")


def test_who_relays_a_proof_between_two_streams_gets_nothing() -> None:
    """Somebody in the middle with another certificate passes on every byte: the proof holds for no other stream.

    The client has no authorities, as one of a service has none: the secret alone tells.
    """

    async def main() -> None:
        trusting = Protection(Certificate())
        async with entrance(Protection(certificate())) as (here, address):
            middle = Protection(new_certificate("the middle")).transport()
            relays: list[asyncio.Task[None]] = []

            def caught(endpoint: Endpoint) -> None:
                relays.append(asyncio.ensure_future(relay(endpoint, trusting, address)))

            listener = await middle.listen("tls://127.0.0.1:0", caught)
            with pytest.raises(AuthenticationError):
                await opened(trusting, listener.address)
            await wait_until(lambda: here.door.refused > 0)
            assert not here.inside
            (await opened(trusting, address)).close()
            listener.close()
            for task in relays:
                task.cancel()
            await asyncio.gather(*relays, return_exceptions=True)

    run(main, "asyncio")


async def relay(near: Endpoint, protection: Protection, address: str) -> None:
    """Pass bytes on both ways until either end has closed."""
    far = await protection.towards(address).connect(address, 5)
    ways = [(near, far), (far, near)]
    chunk = memoryview(bytearray(4096))
    try:
        while True:
            for source, sink in ways:
                count = source.receive_nowait(chunk)
                if count == 0:
                    return
                rest = chunk[: count or 0]
                while len(rest):
                    rest = rest[sink.send_nowait([rest]) :]
                    await asyncio.sleep(0)
            far.send_nowait([])
            await asyncio.sleep(0)
    finally:
        near.close()
        far.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_plain_text_and_an_older_tls_are_refused_with_the_reason(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    """At a port of TLS: a peer in plain text and one of TLS 1.2 do not come in, and the log says why."""
    caplog.set_level(logging.WARNING, "penstock.connection")

    async def main() -> None:
        async with entrance(Protection(certificate())) as (here, address):
            plain = address.replace("tls://", "tcp://")
            with pytest.raises((AuthenticationError, EnvironmentLostError)):
                await opened(Protection(), plain)
            await wait_until(lambda: here.door.refused == 1)
            assert "does not speak TLS 1.3" in caplog.text
            await asyncio.to_thread(speak_old_tls, *split_host(address, "tls"))
            await wait_until(lambda: here.door.refused == 2)
            assert not here.inside

    run(main, loop)


def speak_old_tls(host: str, port: int) -> None:
    """A client that knows TLS 1.2 at most."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((host, port), DEADLINE) as connected, pytest.raises(ssl.SSLError):
        context.wrap_socket(connected)


def test_a_client_that_wants_tls_says_nothing_to_a_server_in_plain_text() -> None:
    """A server that answers in plain text where the address says TLS is none: the client does not go on without."""

    async def main() -> None:
        async with entrance(Protection()) as (here, address):
            with pytest.raises((AuthenticationError, EnvironmentLostError)):
                await opened(Protection(certificate()), address.replace("tcp://", "tls://"))
            await wait_until(lambda: here.door.refused == 1)

    run(main, "asyncio")


def test_a_byte_that_is_changed_on_the_wire_ends_the_connection() -> None:
    """Every record is sealed: after one flipped bit the reader gets an error, never other bytes."""

    async def main() -> None:
        async with entrance(Protection(certificate())) as (here, address):
            flipped, handlers = asyncio.Event(), []
            host, port = split_host(address, "tls")

            async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                handlers.append(asyncio.current_task())
                near, far = await asyncio.open_connection(host, port)
                back = asyncio.ensure_future(pour(near, writer))
                while data := await reader.read(1 << 16):
                    if here.inside and len(data) > 1000:
                        data = data[:500] + bytes([data[500] ^ 1]) + data[501:]
                        flipped.set()
                    far.write(data)
                far.close()
                await back

            proxy = await asyncio.start_server(pass_on, "127.0.0.1", 0)
            through = f"tls://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            near = await opened(Protection(certificate()), through)
            await wait_until(lambda: bool(here.inside))
            assert near.send_nowait([bytes(5000)]) == 5000
            await asyncio.wait_for(flipped.wait(), DEADLINE)
            target = memoryview(bytearray(1 << 16))
            with pytest.raises(OSError, match="TLS: "):
                await wait_until(lambda: here.inside[0].receive_nowait(target) is not None)
            near.close()
            here.close()
            proxy.close()
            await proxy.wait_closed()
            await asyncio.gather(*handlers)

    run(main, "asyncio")


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction to its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


def test_bytes_that_were_taken_are_taken_though_the_peer_reads_later() -> None:
    """Small parts share records, little waits encrypted, and nothing is sent twice where the system takes no more."""

    async def main() -> None:
        async with entrance(Protection(certificate())) as (here, address):
            near = await opened(Protection(certificate()), address)
            await wait_until(lambda: bool(here.inside))
            far = here.inside[0]
            assert isinstance(near, TlsEndpoint)
            whole = bytes(range(256)) * (96 << 10)  # 24 MiB: more than both systems' buffers
            parts = [whole[:10], whole[10:30], whole[30 : RECORD + 7], whole[RECORD + 7 :]]
            sent, got = 0, bytearray()
            target = memoryview(bytearray(300_000))
            for _ in range(1000):
                rest = [memoryview(b"".join(parts))[sent:]] if sent >= 10 + 20 else [*parts]
                took = near.send_nowait(rest)
                sent += took
                assert len(near._unsent) + near._to_send.pending <= 2 * AHEAD
                if took == 0:
                    break
            assert 0 < sent < len(whole)
            near.set_writable(lambda: None)
            while len(got) < sent:
                count = far.receive_nowait(target)
                assert count != 0
                got += target[: count or 0]
                await asyncio.sleep(0)
            near.close()
            assert bytes(got) == whole[:sent]

    run(main, "asyncio")


def test_a_task_comes_in_without_an_event_loop() -> None:
    """`dial` proves itself over TLS and over plain text on loopback, and is refused with another secret."""

    async def main() -> None:
        for protection in (Protection(certificate()), Protection()):
            async with entrance(protection) as (here, address):
                secret = Credentials("task", SECRET)
                connected = await asyncio.to_thread(dial, address, SERVICE, secret, protection)
                await wait_until(lambda here=here: bool(here.inside))  # type: ignore[misc]
                connected.close()
                with pytest.raises(AuthenticationError, match="another secret"):
                    await asyncio.to_thread(dial, address, SERVICE, Credentials("task", b"x" * 32), protection)

    run(main, "asyncio")


def test_plain_text_does_not_leave_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protection without a certificate neither listens for others nor connects to them, unless that is accepted."""

    async def main() -> None:
        with pytest.raises(SettingError, match=r"plain text at tcp://0\.0\.0\.0:0 is refused.*tls\.mode"):
            await Protection().transport().listen("tcp://0.0.0.0:0", lambda _: None)
        accepting = Protection(accepts_plain_text=True).transport()
        everywhere = await accepting.listen("tcp://0.0.0.0:0", lambda endpoint: endpoint.close())
        port = split_host(everywhere.address)[1]
        own = own_address()
        if own:  # a machine with loopback alone can't show it
            with pytest.raises(SettingError, match="is refused"):
                await Protection().transport().connect(f"tcp://{own}:{port}", 5)
            with pytest.raises(SettingError, match="is refused"):
                dial(f"tcp://{own}:{port}", SERVICE, Credentials("task", SECRET), Protection())
            (await accepting.connect(f"tcp://{own}:{port}", 5)).close()
        everywhere.close()

    run(main, "asyncio")


def test_a_service_takes_plain_text_from_loopback_and_from_nowhere_else() -> None:
    """At one port: a peer of this machine as it likes, one by another address over TLS only."""

    async def main() -> None:
        transport = Protection(certificate(), spares_loopback=True).transport()
        here = Entrance(transport)
        port = split_host(await here.open_at("tls://0.0.0.0:0"), "tls")[1]
        plain, sealed = Protection(accepts_plain_text=True), Protection(Certificate())
        ways = [("tcp://127.0.0.1", plain), ("tls://127.0.0.1", sealed)]
        own = own_address()
        if own:
            ways.append((f"tls://{own}", sealed))
        for number, (host, protection) in enumerate(ways, 1):
            near = await opened(protection, f"{host}:{port}")
            await wait_until(lambda number=number: len(here.inside) == number)  # type: ignore[misc]
            far = here.inside[-1]
            assert (binding_of(far) != b"") is host.startswith("tls")
            assert await echo(near, far) == await echo(far, near) == b"to the other end"
            near.close()
        if own:
            with pytest.raises((AuthenticationError, EnvironmentLostError)):
                await opened(plain, f"tcp://{own}:{port}")
            await wait_until(lambda: here.door.refused == 1)
            assert len(here.inside) == 3
        here.close()

    run(main, "asyncio")


async def echo(near: Endpoint, far: Endpoint) -> bytes:
    """The bytes that get from one end to the other, which is told that they are there."""
    there, target = asyncio.Event(), memoryview(bytearray(100))
    assert near.send_nowait([b"to the ", b"other end"]) == 16
    far.set_readable(there.set)
    await asyncio.wait_for(there.wait(), DEADLINE)
    far.set_readable(None)
    count = far.receive_nowait(target)
    return bytes(target[:count])


def test_a_session_of_tasks_is_sealed_without_a_socket() -> None:
    """The inner session's bytes come through both ways, and it is bound to the certificate that was seen."""
    inner, server = Lines(), Server()
    session = SealedSession(inner, certificate())
    assert "handshake of TLS" in session.closed()
    assert server.takes(session.outgoing()) == b""
    assert server.gives(session) == []
    assert server.takes(session.outgoing()) == b"asks"
    assert inner.stream == fingerprint_of(certificate())
    server.tls.write(b"first" + b"other")
    assert server.gives(session) == ["first", "other"]
    assert session.closed() == "closed"
    server.tls.write(b"third")
    with pytest.raises(ConnectionResetError, match="TLS: "):
        server.gives(session, harm=1)


def test_a_task_does_not_trust_another_certificate() -> None:
    """The service's certificate is not of the operator's authorities: nothing is said to it."""
    inner, server = Lines(), Server()
    session = SealedSession(inner, new_certificate("another"))
    server.takes(session.outgoing())
    with pytest.raises(AuthenticationError, match="not trusted here"):
        server.gives(session)
    assert inner.asks


class Server:
    """The other side of a sealed session, in memory."""

    def __init__(self) -> None:
        self.come, self.gone = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = server_context(certificate()).wrap_bio(self.come, self.gone, server_side=True)

    def takes(self, data: bytes) -> bytes:
        """Decrypt what the client has sent."""
        self.come.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
            return self.tls.read(100)
        return b""

    def gives(self, session: SealedSession, harm: int = 0) -> list[str]:
        """Hand over what this side sends; the answers of the client. `harm` changes its last byte."""
        data = bytearray(self.gone.read())
        data[-1] ^= harm
        session.room()[: len(data)] = data
        return session.received(len(data))


class Lines:
    """A session that asks once, and has answers of five bytes."""

    def __init__(self) -> None:
        self.asks = b"asks"
        self.stream = b""
        self._room = memoryview(bytearray(5))

    def bind(self, stream: bytes) -> None:
        """Keep it."""
        self.stream = stream

    def outgoing(self) -> bytes:
        """The question, once."""
        asks, self.asks = self.asks, b""
        return asks

    def closed(self) -> str:
        """The end."""
        return "closed"

    def room(self) -> memoryview:
        """For one answer."""
        return self._room

    def received(self, count: int) -> list[str]:
        """One answer."""
        return [bytes(self._room[:count]).decode()]


def test_the_driver_decides_once_by_the_hosts_of_its_application() -> None:
    """On loopback plain text, elsewhere a certificate that all trust; `always` and `never` are obeyed."""
    auto = TlsSettings()
    assert decided(auto, ["127.0.0.1", "localhost", "::1"]) == (auto, None)
    off, made = decided(auto, ["127.0.0.1", "10.0.0.5"])
    assert off.mode == "always"
    assert made is not None
    assert made.authorities == made.chain
    assert protection_of(off, made) == Protection(made)
    assert decided(TlsSettings(mode="always"), [])[1] is not None
    never = TlsSettings(mode="never")
    assert decided(never, ["10.0.0.5"]) == (never, None)
    assert protection_of(never, None) == Protection(accepts_plain_text=True)
    assert protection_of(auto, None) == Protection()
    with pytest.raises(SettingError, match="no certificate has come"):
        protection_of(off, None)


def test_an_operators_files_are_read_on_each_host_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    """Certificate, key and authorities out of PEM files; what can't be used is refused by its path."""
    made = certificate()
    chain, key, broken = tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "b.pem"
    chain.write_bytes(made.chain)
    key.write_bytes(made.key)
    broken.write_bytes(b"none")
    tls = TlsSettings("always", str(chain), str(key), str(chain))
    assert decided(tls, ["10.0.0.5"]) == (tls, None)
    assert protection_of(tls, None).certificate == made
    assert services_protection(tls).certificate == Certificate(authorities=made.chain)
    for wrong in (
        replace(tls, certificate=str(broken)),
        replace(tls, key=str(broken)),
        replace(tls, authorities=str(broken)),
        replace(tls, key=str(tmp_path / "missing.pem")),
    ):
        with pytest.raises(SettingError, match=r"(b|missing)\.pem.*spark\.penstock\.tls"):
            decided(wrong, ["10.0.0.5"])
    with pytest.raises(SettingError, match=r"needs spark\.penstock\.tls\.certificate"):
        Settings.from_conf({"spark.penstock.tls.key": str(key)})


def test_one_without_a_certificate_lets_nobody_in_and_still_connects() -> None:
    """A client of services needs none; it can't listen."""

    async def main() -> None:
        alone = TlsTransport(TcpTransport(), Certificate())
        with pytest.raises(OSError, match="without a certificate"):
            await alone.listen("tls://127.0.0.1:0", lambda _: None)

    run(main, "asyncio")


def test_many_who_connect_and_say_nothing_do_not_keep_others_out() -> None:
    """The limits of the door hold for the handshake of TLS too: the first silent one goes for a new one."""

    async def main() -> None:
        async with entrance(Protection(certificate()), DoorSettings(most=4, most_of_one=4)) as (here, address):
            silent = [socket.create_connection(split_host(address, "tls"), DEADLINE) for _ in range(12)]
            await wait_until(lambda: here.door.refused >= 8)
            near = await opened(Protection(certificate()), address)
            await wait_until(lambda: len(here.inside) == 1)
            assert here.door.waiting <= 4
            near.close()
            for each in silent:
                each.close()

    run(main, "asyncio")


def test_names_of_loopback() -> None:
    """No name is looked up: a name that is not localhost may lead anywhere."""
    inside = ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "::ffff:127.0.0.1")
    assert all(is_loopback(host) for host in inside)
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.1.1.1", "example.org", ""))  # noqa: S104
