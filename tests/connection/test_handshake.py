# SPDX-License-Identifier: Apache-2.0
"""The handshake: who knows the secret gets in on both sides, anybody else learns nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.connection.handshake import MAX_IDENTITY, VERSION, Credentials, Handshake, Role, Service
from penstock.errors import AuthenticationError

SECRET = b"0123456789abcdef"


def pair(client_secret: bytes = SECRET, server_secret: bytes = SECRET) -> tuple[Handshake, Handshake]:
    """Both ends of a handshake."""
    return end(Role.CLIENT, client_secret, "environment-ä", "tcp://server:1"), end(
        Role.SERVER, server_secret, "environment-b", "tcp://client:2"
    )


def end(role: Role, secret: bytes, identity: str, peer: str, service: Service = Service.PARTITIONS) -> Handshake:
    """One end."""
    return Handshake(role, service, Credentials(identity, secret), peer)


def finish(client: Handshake, server: Handshake) -> list[bytes]:
    """Carry messages to and fro until nothing is left; what was said, in order."""
    said = []
    for _ in range(3):
        for speaker, listener in ((client, server), (server, client)):
            message = speaker.outgoing()
            if message:
                said.append(message)
                listener.receive(message)
    return said


def test_both_sides_learn_who_the_other_is() -> None:
    """After four messages both are done and know each other's identity."""
    client, server = pair()
    said = finish(client, server)
    assert [len(message) for message in said] == [40, 40, 288, 288]
    assert client.is_done
    assert server.is_done
    assert (client.peer_identity, server.peer_identity) == ("environment-b", "environment-ä")
    assert client.needed == server.needed == 0


def test_a_client_with_another_secret_gets_no_proof_from_the_server() -> None:
    """The server refuses, names the peer, and has nothing more to say."""
    client, server = pair(client_secret=b"another secret ....")
    server.receive(client.outgoing())
    client.receive(server.outgoing())
    with pytest.raises(AuthenticationError, match="tcp://client:2 could not prove"):
        server.receive(client.outgoing())
    assert server.outgoing() == b""
    assert not server.is_done
    assert server.peer_identity == ""


def test_a_server_with_another_secret_is_refused_by_the_client() -> None:
    """A false server that lets everybody in fails at the client."""
    client, _ = pair()
    honest_but_wrong = end(Role.SERVER, b"another secret ....", "x", "p")
    honest_but_wrong.receive(client.outgoing())
    client.receive(honest_but_wrong.outgoing())
    client.outgoing()
    with pytest.raises(AuthenticationError, match="tcp://server:1 could not prove"):
        client.receive(honest_but_wrong._proof(Role.SERVER, b"environment-"))
    assert not client.is_done


def test_replaying_a_recorded_client_fails() -> None:
    """The same bytes that opened one connection do not open another."""
    client, server = pair()
    said = finish(client, server)
    _, fresh = pair()
    fresh.receive(said[0])
    fresh.outgoing()
    with pytest.raises(AuthenticationError):
        fresh.receive(said[2])


def test_replaying_a_recorded_server_fails() -> None:
    """A client does not accept the proof of an earlier connection."""
    client, server = pair()
    said = finish(client, server)
    fresh, _ = pair()
    fresh.receive(said[1])
    with pytest.raises(AuthenticationError):
        fresh.receive(said[3])


def test_reflection_fails() -> None:
    """Neither our own nonce nor our own proof, sent back to us, is accepted."""
    client, _ = pair()
    with pytest.raises(AuthenticationError, match="our own nonce"):
        client.receive(client.outgoing())
    client, server = pair()
    server.receive(client.outgoing())
    client.receive(server.outgoing())
    with pytest.raises(AuthenticationError):
        client.receive(client.outgoing())


def test_truncated_and_overlong_messages_are_refused() -> None:
    """Only exactly `needed` bytes are a message, and after a refusal nothing is."""
    for change in (-1, 1):
        client, server = pair()
        hello = client.outgoing()
        with pytest.raises(AuthenticationError, match="were expected"):
            server.receive((hello + b"x")[: len(hello) + change])
        with pytest.raises(AuthenticationError):
            server.receive(hello)


def test_another_version_or_protocol_is_named() -> None:
    """The error says that it is the version, or that it is not our protocol at all."""
    client, server = pair()
    hello = bytearray(client.outgoing())
    hello[4] = VERSION + 1
    with pytest.raises(AuthenticationError, match=f"version {VERSION + 1}"):
        server.receive(bytes(hello))
    hello[4] = VERSION
    told = bytearray(server.outgoing())
    assert told[:5] == hello[:5], "whoever has another version is told ours"
    assert server.outgoing() == b""
    told[4] = VERSION + 1
    words = f"speaks version {VERSION + 1} .* speaks {VERSION}: install the same"
    with pytest.raises(AuthenticationError, match=words):
        client.receive(bytes(told))
    _, server = pair()
    with pytest.raises(AuthenticationError, match="does not speak this protocol"):
        server.receive(b"GET / HTTP/1.1\r\nHost: example.org:1234\r\n\r\n"[:40])


@settings(max_examples=examples(200), deadline=None)
@given(step=st.integers(0, 3), position=st.integers(0, 159), bit=st.integers(0, 7))
def test_any_flipped_bit_of_any_message_is_noticed(step: int, position: int, bit: int) -> None:
    """Whichever bit is flipped on the way, one of the ends refuses."""
    client, server = pair()
    ends = [client, server]
    for number in range(4):
        message = bytearray(ends[number % 2].outgoing())
        if number == step:
            at = position % len(message)
            message[at] ^= 1 << bit
        try:
            ends[(number + 1) % 2].receive(bytes(message))
        except AuthenticationError:
            return
    pytest.fail("the change went unnoticed")


@settings(max_examples=examples(200), deadline=None)
@given(noise=st.binary(min_size=40, max_size=40), proof=st.binary(min_size=160, max_size=160))
def test_garbage_is_refused(noise: bytes, proof: bytes) -> None:
    """Random bytes in place of any message end in AuthenticationError and nothing else."""
    _, server = pair()
    with pytest.raises(AuthenticationError):
        server.receive(noise)
    client, server = pair()
    server.receive(client.outgoing())
    with pytest.raises(AuthenticationError):
        server.receive(proof)


def test_another_service_is_refused() -> None:
    """A door lets in who means it, and a proof for one door is none for another."""
    client, server = pair()[0], end(Role.SERVER, SECRET, "b", "p", Service.MASTER)
    hello = bytearray(client.outgoing())
    with pytest.raises(AuthenticationError, match="means service 2, and this is service 3"):
        server.receive(bytes(hello))
    server = end(Role.SERVER, SECRET, "b", "p", Service.MASTER)
    hello[5] = Service.MASTER.value
    server.receive(bytes(hello))
    challenge = bytearray(server.outgoing())
    challenge[5] = Service.PARTITIONS.value
    client.receive(bytes(challenge))
    with pytest.raises(AuthenticationError, match="could not prove"):
        server.receive(client.outgoing())


def test_weak_secrets_and_long_identities_are_refused_locally() -> None:
    """A short secret or an identity that does not fit is our own mistake."""
    with pytest.raises(ValueError, match="at least 16"):
        Credentials("me", b"")
    with pytest.raises(ValueError, match="longer than"):
        Credentials("x" * (MAX_IDENTITY + 1), SECRET)
    longest = end(Role.CLIENT, SECRET, "x" * MAX_IDENTITY, "peer")
    server = end(Role.SERVER, SECRET, "s", "peer")
    finish(longest, server)
    assert server.peer_identity == "x" * MAX_IDENTITY
