# SPDX-License-Identifier: Apache-2.0
"""The login with `spark.network.crypto.enabled`: Spark's own engine, and the encryption that it ends in. Pure.

Each side sends a public key of X25519, of this connection alone, encrypted with a key from the secret and a salt:

    message = FB, application, salt, nonce and AES-GCM of the public key      texts with their i32 length in front
    key of it = HKDF(secret, salt, application + salt + what was said before)

Rules: the service's key is good only if it was encrypted for what this side has said, so only who knows the secret
can answer, and an old answer is worth nothing. The keys of the connection are made of both public keys and of all
that was said; who learns the secret later reads nothing of it. Cipher and version are not negotiated: each side has
them from its settings. Version 1 takes what X25519 gives as the key, as the service does; version 2 derives it.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import AuthenticationError, SettingError

if TYPE_CHECKING:
    from penstock.services.spark_ess.seals import WireSeal

COUNTER: Final = "AES/CTR/NoPadding"
SEGMENTS: Final = "AES/GCM/NoPadding"
NO_CIPHER: Final = "none"
_CIPHERS = {name.upper(): name for name in (COUNTER, SEGMENTS)}
_VERSIONS = (1, 2)
_TAG = 0xFB
_KEY: Final = 16
_NONCE: Final = 12
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Encryption:
    """The cipher of a connection, and the version of the engine that makes its keys."""

    cipher: str
    version: int

    @classmethod
    def of(cls, cipher: str, version: int) -> Encryption | None:
        """As settings say; None for none. SettingError for what is not spoken here."""
        if not cipher or cipher.lower() == NO_CIPHER:
            return None
        name = _CIPHERS.get(cipher.upper())
        if name is None:
            raise SettingError(
                f"Spark's shuffle service is to be encrypted by {cipher}, which spark_ess does not speak:"
                f" set spark.network.crypto.enabled=true, and spark.network.crypto.cipher to {COUNTER} or {SEGMENTS}"
            )
        if version not in _VERSIONS:
            raise SettingError(f"spark.network.crypto.authEngineVersion={version}: spark_ess speaks 1 and 2")
        return cls(name, version)


class EngineLogin:
    """One login. Life: `first`, then `answer`; then `seal` is there."""

    def __init__(self, application: str, secret: str, encryption: Encryption) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.name = f"the engine of spark.network.crypto.enabled, version {encryption.version}"
        self.seal: WireSeal | None = None
        self._application = application.encode()
        self._secret = secret.encode()
        self._encryption = encryption
        self._private = X25519PrivateKey.generate()
        self._said = b""

    def first(self) -> bytes:
        """The body of the request: this side's public key."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt, nonce = secrets.token_bytes(_KEY), secrets.token_bytes(_NONCE)
        state, key = self._state(salt, b"")
        public = self._private.public_key().public_bytes_raw()
        self._said = self._message(salt, nonce + AESGCM(key).encrypt(nonce, public, state))
        return self._said

    def answer(self, body: bytes) -> None:
        """Take the service's public key. AuthenticationError where it does not prove that it knows the secret."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            application, salt, sealed = _parts(body)
            if application != self._application:
                raise ValueError("another application")
            state, key = self._state(salt, self._said)
            public = AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], state)
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except (InvalidTag, ValueError, struct.error):
            raise AuthenticationError(
                "the shuffle service did not prove that it knows the application's secret"
            ) from None
        self.seal = self._made(shared, self._said + body)

    def _made(self, shared: bytes, said: bytes) -> WireSeal:
        from penstock.services.spark_ess.seals import CounterSeal, SegmentSeal, derived

        key = shared if self._encryption.version == 1 else derived(shared, said, b"derivedKey", _KEY)
        if self._encryption.cipher == SEGMENTS:
            return SegmentSeal(key)
        comes, goes = (derived(shared, said, name, _KEY) for name in (b"inputIv", b"outputIv"))
        return CounterSeal(key, goes, comes)

    def _state(self, salt: bytes, said: bytes) -> tuple[bytes, bytes]:
        """All that a message stands on, and the key that it is encrypted with."""
        from penstock.services.spark_ess.seals import derived

        state = self._application + salt + said
        return state, derived(self._secret, salt, state, _KEY)

    def _message(self, salt: bytes, sealed: bytes) -> bytes:
        parts = (self._application, salt, sealed)
        return bytes([_TAG]) + b"".join(_INT.pack(len(part)) + part for part in parts)


def _parts(body: bytes) -> tuple[bytes, bytes, bytes]:
    """Application, salt and sealed key; ValueError or struct.error for anything else."""
    if not body or body[0] != _TAG:
        raise ValueError("no message of the engine")
    parts, position = [], 1
    for _ in range(3):
        (size,) = _INT.unpack_from(body, position)
        begin = position + _INT.size
        position = begin + size
        if size < 0 or position > len(body):
            raise ValueError("cut")
        parts.append(body[begin:position])
    application, salt, sealed = parts
    return application, salt, sealed
