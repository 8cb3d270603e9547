# SPDX-License-Identifier: Apache-2.0
"""The handshake that opens every connection: both ends prove that they know the application's secret.

    client -> server   HELLO      magic, version, service, nonce
    server -> client   CHALLENGE  magic, version, service, nonce
    client -> server   PROOF      identity, HMAC-SHA256(secret, "client", service, nonces, identity, stream)
    server -> client   PROOF      identity, HMAC-SHA256(secret, "server", service, nonces, both identities, stream)

Rules. Fixed sizes; the shell reads at most `missing` bytes, so nothing of what follows is swallowed. The side that is
connected to proves last: who does not know the secret is told nothing but a nonce, and is closed without a word. One
that speaks another version is told ours, so that it can say so. Nonces are fresh for each connection, and roles and
the service are part of the proof, so neither replay nor reflection helps, nor what was said at another door.
Comparison takes constant time. Nothing is parsed before the lengths fit. The version is that of all that follows.
`stream` is what `bind` was given: over TLS the fingerprint of the server's certificate, so a proof that is
relayed between two streams is worth nothing. A server of several applications finds the secret by the client's
identity.

Limits: identities of at most 255 bytes. Non-goals: encryption (`tls`), and protection of plain text that is relayed.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from penstock.errors import AuthenticationError, EnvironmentLostError, PenstockError, ProtocolError, VersionError

MAGIC: Final = b"PSTK"
VERSION: Final = 10
"""Of all protocols over connections that begin so, and of the host service's socket: they are changed together."""
NONCE: Final = 32
MAX_IDENTITY: Final = 255
MIN_SECRET: Final = 16
"""Bytes; less could be guessed from a recorded proof."""

_HELLO: Final = struct.Struct(f"<4sBB2s{NONCE}s")
_RESERVED: Final = bytes(2)
_PROOF: Final = struct.Struct(f"<B{MAX_IDENTITY}s32s")


class Role(Enum):
    """Which end this is."""

    CLIENT = b"client"
    SERVER = b"server"


class Service(Enum):
    """The service of the side that is connected to."""

    TASKS = 1
    """An environment, its host's tasks."""
    PARTITIONS = 2
    """An environment, its partitions to others."""
    MASTER = 3
    """The JobMaster, environments."""
    EXTERNAL = 4
    """The host service `external`, the applications of a host and their readers."""
    REMOTE = 5
    """A manager or worker of the remote shuffle service, its clients."""


class _Step(Enum):
    HELLO = 0
    PROOF = 1
    DONE = 2
    FAILED = 3


class BrokenHandshakeError(AuthenticationError):
    """The peer closed in the middle: it has another secret, or has just ended, or the connection broke."""


class Secrets(Protocol):
    """The name by which an end makes itself known, and the secrets by which it knows others."""

    @property
    def identity(self) -> str:
        """This end's name."""

    def secret_of(self, peer: str) -> bytes | None:
        """The secret that a peer of this identity has to prove; None for one that is not known.

        An end that connects asks for the secret of "", before it knows who is there.
        """


@dataclass(frozen=True, slots=True)
class Credentials:
    """One end's name, and the application's secret."""

    identity: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < MIN_SECRET:
            raise ValueError(f"a secret of {len(self.secret)} bytes: at least {MIN_SECRET} are needed")
        if len(self.identity.encode()) > MAX_IDENTITY:
            raise ValueError(f"identity {self.identity!r} is longer than {MAX_IDENTITY} bytes")

    def secret_of(self, peer: str) -> bytes:
        """The one secret, for every peer."""
        return self.secret


class Handshake:
    """One end of one handshake, without its I/O.

    A shell repeats: send `outgoing()`, stop where it `is_done`, read at most `missing` bytes, `feed` them. When that
    raises, it sends what is `outgoing()` still, if the transport takes it at once, and closes.
    """

    def __init__(self, role: Role, service: Service, secrets_of_peers: Secrets, peer: str) -> None:
        self._role = role
        self._service = service
        self._secrets = secrets_of_peers
        self._secret = b""
        self._stream = b""
        self._identity = secrets_of_peers.identity.encode()
        self.peer = peer
        self._nonces = {role: secrets.token_bytes(NONCE)}
        self._step = _Step.HELLO
        self._partial = bytearray()
        self._out = self._hello() if role is Role.CLIENT else b""
        self.peer_identity = ""
        """The identity of the peer: proven, once `is_done`."""

    @property
    def is_done(self) -> bool:
        """True if the peer has proven itself. `outgoing()` may still have to be sent."""
        return self._step is _Step.DONE

    @property
    def needed(self) -> int:
        """Bytes of the next message of the peer; 0 when done."""
        return {_Step.HELLO: _HELLO.size, _Step.PROOF: _PROOF.size}.get(self._step, 0)

    @property
    def missing(self) -> int:
        """Bytes of the next message that have not come yet; 0 when done."""
        return self.needed - len(self._partial)

    def bind(self, stream: bytes) -> None:
        """Prove the secret for this stream alone: before the first `feed`, and at both ends by the same bytes."""
        self._stream = stream

    def outgoing(self) -> bytes:
        """Take what has to be sent now; may be empty."""
        out, self._out = self._out, b""
        return out

    def feed(self, data: bytes) -> None:
        """Handle what has come, at most `missing` bytes; none at all means that the peer has closed.

        Raises AuthenticationError, or EnvironmentLostError as `closed` gives it.
        """
        if not data:
            raise self.closed()
        self._partial += data
        if len(self._partial) >= self.needed:
            message, self._partial = bytes(self._partial), bytearray()
            self.receive(message)

    def receive(self, message: bytes) -> None:
        """Handle exactly `needed` bytes. Raises AuthenticationError."""
        if self._step in (_Step.DONE, _Step.FAILED) or len(message) != self.needed:
            raise self._refusal(f"sent {len(message)} bytes where {self.needed} were expected")
        if self._step is _Step.HELLO:
            self._on_hello(message)
        else:
            self._on_proof(message)

    def closed(self) -> PenstockError:
        """The error for a peer that closed before the handshake was done.

        A server that closes before it has said anything has not looked at a proof: that is no matter of secrets.
        """
        is_server_mute = self._role is Role.CLIENT and self._step is _Step.HELLO
        self._step = _Step.FAILED
        if is_server_mute:
            return EnvironmentLostError(
                f"the peer at {self.peer} closed the connection before it said anything: it has ended, or too"
                " many connect to it at once"
            )
        return BrokenHandshakeError(
            f"the peer at {self.peer} closed the connection during authentication: it has another secret, or is not"
            " ours"
        )

    def _on_hello(self, message: bytes) -> None:
        magic, version, service, reserved, nonce = _HELLO.unpack(message)
        if magic != MAGIC:
            raise self._refusal("does not speak this protocol")
        if version != VERSION:
            self._step = _Step.FAILED
            refusal = VersionError(f"the peer at {self.peer} {other_version(version)}")
            self._out = self._hello() if self._role is Role.SERVER else b""
            raise refusal
        if reserved != _RESERVED:
            raise self._refusal("sent a hello that is not ours")
        if service != self._service.value:
            raise self._refusal(f"means service {service}, and this is service {self._service.value}")
        if nonce == self._nonces[self._role]:
            raise self._refusal("returned our own nonce")
        self._nonces[_other(self._role)] = nonce
        if self._role is Role.CLIENT:
            self._secret = self._secrets.secret_of("") or secrets.token_bytes(MIN_SECRET)
        self._out = self._hello() if self._role is Role.SERVER else self._proof(Role.CLIENT, self._identity)
        self._step = _Step.PROOF

    def _on_proof(self, message: bytes) -> None:
        length, padded, mac = _PROOF.unpack(message)
        identity = padded[:length]
        try:
            name = identity.decode()
        except UnicodeDecodeError:
            raise self._refusal("has an identity that is not UTF-8") from None
        if self._role is Role.SERVER:  # for an unknown one the proof fails like any other
            self._secret = self._secrets.secret_of(name) or secrets.token_bytes(MIN_SECRET)
        expected = self._mac(_other(self._role), self._identity, identity)
        if not hmac.compare_digest(mac, expected) or any(padded[length:]):
            claimed = f" (it calls itself {name[:80]!a})" if name else ""
            raise self._refusal(f"could not prove that it knows the application's secret{claimed}")
        self.peer_identity = name
        if self._role is Role.SERVER:
            self._out = self._proof(Role.SERVER, identity)
        self._step = _Step.DONE

    def _hello(self) -> bytes:
        return _HELLO.pack(MAGIC, VERSION, self._service.value, _RESERVED, self._nonces[self._role])

    def _proof(self, role: Role, identity: bytes) -> bytes:
        mac = self._mac(role, identity, self._identity)
        return _PROOF.pack(len(self._identity), self._identity, mac)

    def _mac(self, role: Role, verifier: bytes, prover: bytes) -> bytes:
        """The proof of `role`; the client does not know the server's identity when it proves itself."""
        client, server = (prover, b"") if role is Role.CLIENT else (verifier, prover)
        service = bytes((self._service.value,))
        parts = (
            role.value,
            service,
            self._nonces[Role.CLIENT],
            self._nonces[Role.SERVER],
            client,
            server,
            self._stream,
        )
        return hmac.digest(self._secret, b"".join(struct.pack("<I", len(part)) + part for part in parts), "sha256")

    def _refusal(self, what: str) -> AuthenticationError:
        self._step = _Step.FAILED
        self._out = b""
        return AuthenticationError(f"the peer at {self.peer} {what}")


def greeting() -> bytes:
    """The first bytes of either end of a connection, in a form that no version changes: protocol and version."""
    return MAGIC + bytes((VERSION,))


def check_greeting(word: bytes, peer: str) -> None:
    """Raise VersionError for the greeting of another version, ProtocolError for what is none."""
    if word[:-1] != MAGIC:
        raise ProtocolError(f"{peer} does not say which version of the protocol it speaks, as this Penstock does")
    if word[-1] != VERSION:
        raise VersionError(f"{peer} {other_version(word[-1])}")


def other_version(theirs: int) -> str:
    """The words about a peer of this version, for people."""
    return (
        f"speaks version {theirs} of the protocol, this Penstock speaks {VERSION}: install the same Penstock on the"
        " driver, on all workers, and wherever a service or a client runs"
    )


def _other(role: Role) -> Role:
    return Role.SERVER if role is Role.CLIENT else Role.CLIENT
