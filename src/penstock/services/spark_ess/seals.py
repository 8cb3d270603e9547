# SPDX-License-Identifier: Apache-2.0
"""The ciphers of Spark's encrypted transport, after the engine's login: bytes to bytes. Pure.

| cipher | on the wire | an attacker who can change packets |
|---|---|---|
| `AES/CTR/NoPadding` | one key stream for each direction, from the first byte on | changes bits unseen by it |
| `AES/GCM/NoPadding` | messages: length i64 (counted too), header, segments with a tag each | ends the connection |

A message of GCM has a key of its own, from the session's key, a salt in its header, and its length. The number of a
segment, and its being the last one, are in its nonce: none can be left out, moved, or put into another message.

Rule: nothing of a segment is given before its tag was checked. Memory: a chunk of what has come, and a segment.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_CHUNK: Final = 128 << 10
"""Encrypted bytes taken in at once."""
_BLOCK: Final = 16
_LENGTH = struct.Struct(">q")
_NONCE = struct.Struct(">7sIb")
_SEGMENT: Final = 32 << 10
"""The bytes of an encrypted segment; the last one of a message may have fewer."""
_TAG: Final = 16
_NONCE_PREFIX: Final = 7


class WireSeal(Protocol):
    """The encryption of one connection, both ways."""

    def sealed(self, data: bytes) -> bytes:
        """The next bytes to be sent, encrypted."""

    def room(self) -> memoryview:
        """The memory that the next encrypted bytes go to; never empty."""

    def opened(self, count: int) -> Iterator[memoryview]:
        """The plain bytes of so many that have come to `room()`: each good until the next. ConnectionResetError."""


class CounterSeal:
    """AES in counter mode, with an initial counter for what goes and one for what comes."""

    def __init__(self, key: bytes, goes: bytes, comes: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(goes)).encryptor()
        self._decryptor = Cipher(algorithms.AES(key), modes.CTR(comes)).decryptor()
        self._chunk = memoryview(bytearray(_CHUNK))
        self._plain = memoryview(bytearray(_CHUNK + _BLOCK))

    def sealed(self, data: bytes) -> bytes:
        """The next bytes to be sent, encrypted."""
        return self._encryptor.update(data)

    def room(self) -> memoryview:
        """The memory that the next encrypted bytes go to."""
        return self._chunk

    def opened(self, count: int) -> Iterator[memoryview]:
        """The plain bytes of those that have come."""
        size = self._decryptor.update_into(self._chunk[:count], self._plain)
        yield self._plain[:size]


class SegmentSeal:
    """AES-GCM in messages of segments, as Tink's `AesGcmHkdfStreaming` makes them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._header = 1 + len(key) + _NONCE_PREFIX
        self._chunk = memoryview(bytearray(_CHUNK))
        self._come = bytearray()
        """The bytes that no whole segment was made of yet."""
        self._opener: AESGCM | None = None
        self._prefix = b""
        self._segment = 0
        self._left = 0
        """The bytes of the message that comes now whose segments have not been opened."""

    def sealed(self, data: bytes) -> bytes:
        """A message of these bytes."""
        size = _SEGMENT - _TAG
        pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
        length = _LENGTH.pack(_LENGTH.size + self._header + len(data) + _TAG * len(pieces))
        salt, prefix = secrets.token_bytes(len(self._key)), secrets.token_bytes(_NONCE_PREFIX)
        cipher = self._cipher(salt, length)
        last = len(pieces) - 1
        segments = [
            cipher.encrypt(_NONCE.pack(prefix, number, number == last), piece, None)
            for number, piece in enumerate(pieces)
        ]
        return b"".join([length, bytes([self._header]), salt, prefix, *segments])

    def room(self) -> memoryview:
        """The memory that the next encrypted bytes go to."""
        return self._chunk

    def opened(self, count: int) -> Iterator[memoryview]:
        """The plain bytes of the segments that are whole now; ConnectionResetError for one that was changed."""
        self._come += self._chunk[:count]
        while self._opener is not None or self._begin():
            size = min(self._left, _SEGMENT)
            if len(self._come) < size:
                return
            yield memoryview(self._next(size))

    def _begin(self) -> bool:
        """Read the length and the header of a message; False while they are not whole."""
        head = _LENGTH.size + self._header
        if len(self._come) < head:
            return False
        length = bytes(self._come[: _LENGTH.size])
        header = bytes(self._come[_LENGTH.size : head])
        self._left = _LENGTH.unpack(length)[0] - head
        if self._left <= _TAG or header[0] != self._header:
            raise _changed("the head of a message")
        del self._come[:head]
        self._opener = self._cipher(header[1:-_NONCE_PREFIX], length)
        self._prefix, self._segment = header[-_NONCE_PREFIX:], 0
        return True

    def _next(self, size: int) -> bytes:
        assert self._opener is not None  # noqa: S101 - a message was begun
        is_last = size == self._left
        nonce = _NONCE.pack(self._prefix, self._segment, is_last)
        try:
            plain = self._opener.decrypt(nonce, bytes(self._come[:size]), None)
        except InvalidTag:
            raise _changed(f"segment {self._segment}") from None
        del self._come[:size]
        self._segment += 1
        self._left -= size
        if is_last:
            self._opener = None
        return plain

    def _cipher(self, salt: bytes, length: bytes) -> AESGCM:
        return AESGCM(derived(self._key, salt, length, len(self._key)))


def derived(key: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """A key of so many bytes, by HKDF over SHA-256."""
    return HKDF(SHA256(), size, salt, info).derive(key)


def _changed(what: str) -> ConnectionResetError:
    return ConnectionResetError(
        f"{what} is not as the shuffle service encrypted it: it was changed on its way, or"
        " spark.network.crypto.cipher or .authEngineVersion are not the service's own"
    )
