# SPDX-License-Identifier: Apache-2.0
"""A session within TLS 1.3: another session's bytes, encrypted. Pure, as that one.

The inner session's handshake is bound to the certificate that this end has seen, so its proof of the secret is worth
nothing to another server. Limit: a stream that ends without TLS's own word ends as any other; the inner session knows
where it may end.
"""

from __future__ import annotations

import ssl
from typing import Any, Final, Protocol

from penstock.connection.certificate import Certificate
from penstock.connection.certificates import client_context, fingerprint
from penstock.errors import AuthenticationError
from penstock.services.fetching.parts import WireSession

CHUNK: Final = 128 << 10
"""Encrypted bytes taken in at once."""


class BoundSession(WireSession, Protocol):
    """A session that begins with a handshake of ours."""

    def bind(self, stream: bytes) -> None:
        """Prove the secret for this stream alone."""


class SealedSession:
    """The outer session; `certificate` has the authorities that the service is checked by, if any."""

    def __init__(self, inner: BoundSession, certificate: Certificate) -> None:
        self._inner = inner
        self._come, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = client_context(certificate).wrap_bio(self._come, self._to_send)
        self._chunk = memoryview(bytearray(CHUNK))
        self._is_shaken = False

    def outgoing(self) -> bytes:
        """The bytes to be sent now; they are given once."""
        self._shake()
        if self._is_shaken and (plain := self._inner.outgoing()):
            self._tls.write(plain)
        return self._to_send.read()

    def closed(self) -> str:
        """The meaning of an end of the connection now, for people."""
        return self._inner.closed() if self._is_shaken else "it closed in the handshake of TLS"

    def room(self) -> memoryview:
        """The memory that the next encrypted bytes go to."""
        return self._chunk

    def received(self, count: int) -> list[Any]:
        """So many encrypted bytes have come; the messages. Raises AuthenticationError, ConnectionError."""
        self._come.write(self._chunk[:count])
        self._shake()
        found: list[Any] = []
        while self._is_shaken:
            room = self._inner.room()
            try:
                size: int = self._tls.read(len(room), room)  # type: ignore[assignment]
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                break
            except ssl.SSLError as error:
                raise ConnectionResetError(f"TLS: {error.reason}") from None
            found += self._inner.received(size)
        return found

    def _shake(self) -> None:
        if self._is_shaken:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(
                f"its certificate is not trusted here: {error.verify_message}. See spark.penstock.tls.authorities"
            ) from None
        except ssl.SSLError as error:
            raise ConnectionResetError(f"no TLS 1.3 is spoken there: {error.reason}") from None
        self._is_shaken = True
        self._inner.bind(fingerprint(self._tls.getpeercert(binary_form=True) or b""))
