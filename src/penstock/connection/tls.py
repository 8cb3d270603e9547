# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 as a transport around a transport: handshake and frames stay above it, unchanged.

The engine of `ssl` works in memory, and the endpoint below moves what it makes: so bytes that were taken are taken,
as the seam demands, which a socket of `ssl` cannot say of a record that the system has not taken. Its handshake runs
in the turns of the first caller to send or receive, within that caller's deadlines.

Rules. A gather write becomes records of up to 16 KiB, small parts together in one. Up to AHEAD bytes wait encrypted
that the inner endpoint has not taken; until they are gone nothing more is taken. Of a peer that has not finished the
handshake, or is asked for little, FIRST bytes are read at a time. The end of a stream needs no word of TLS: what
follows (`frames`) knows by itself where a stream may end.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.connection.certificate import Certificate
from penstock.connection.certificates import client_context, fingerprint, fingerprint_of, server_context
from penstock.connection.transport import (
    Endpoint,
    Listener,
    PatientEndpoint,
    Transport,
    is_loopback,
    split_address,
    split_host,
)
from penstock.errors import AuthenticationError

SCHEME: Final = "tls"
RECORD: Final = 16 << 10
"""The most that a record of TLS holds."""
SMALL: Final = 2 << 10
"""A part below this shares its record with its neighbours: a copy costs less than a record."""
AHEAD: Final = 256 << 10
"""Encrypted bytes made for one write: enough for a system call to be worth it."""
CHUNK: Final = 128 << 10
"""Encrypted bytes received at once."""
FIRST: Final = 4 << 10
_HANDSHAKE: Final = 0x16
"""The first byte of every stream of TLS."""
LINGER: Final = 2.0
"""Seconds in which a closed end sends on what was taken: as the system does for a socket that is closed."""
_STRANGE: Final = re.compile("VERSION|HTTP|UNKNOWN_PROTOCOL|UNSUPPORTED_PROTOCOL")
"""The reasons of OpenSSL where a peer speaks something else."""


class TlsTransport:
    """Another transport's streams, encrypted. Its addresses are those of the other one, with a scheme of its own.

    One that `spares_loopback` takes a peer on loopback in plain text too, if that begins so.
    """

    def __init__(self, inner: Transport, certificate: Certificate, *, spares_loopback: bool = False) -> None:
        self._inner = inner
        self._spares_loopback = spares_loopback
        self.scheme = SCHEME if inner.scheme == "tcp" else f"{SCHEME}+{inner.scheme}"
        self._client = client_context(certificate)
        self._server = server_context(certificate) if certificate.chain else None
        self._fingerprint = fingerprint_of(certificate) if certificate.chain else b""

    async def listen(self, address: str, on_connection: Callable[[Endpoint], None]) -> Listener:
        """Accept at this address; who comes is handed on before the handshake of TLS, within the door's limits."""
        if self._server is None:
            raise OSError("nobody is let in over TLS without a certificate: see spark.penstock.tls.certificate")
        server = self._server

        def accepted(endpoint: Endpoint) -> None:
            spared = self._spares_loopback and is_loopback(split_host(endpoint.peer, self._inner.scheme)[0])
            on_connection(TlsEndpoint(endpoint, server, self._fingerprint, may_be_plain=spared))

        listener = await self._inner.listen(self._translated(address), accepted)
        return _TlsListener(listener, f"{self.scheme}://{split_address(listener.address, self._inner.scheme)}")

    async def connect(self, address: str, timeout: float) -> Endpoint:  # noqa: ASYNC109 - the seam's signature
        """Connect; the handshake of TLS follows with the first bytes."""
        return TlsEndpoint(await self._inner.connect(self._translated(address), timeout), self._client)

    def _translated(self, address: str) -> str:
        return f"{self._inner.scheme}://{split_address(address, self.scheme)}"


class _TlsListener:
    """A listener under its own address."""

    def __init__(self, inner: Listener, address: str) -> None:
        self._inner = inner
        self.address = address

    def close(self) -> None:
        """Stop accepting."""
        self._inner.close()


class TlsEndpoint:
    """One end of an encrypted stream. The side that is connected to has a fingerprint: that of its certificate."""

    __slots__ = (
        "_failure",
        "_fingerprint",
        "_has_ended",
        "_hears",
        "_inner",
        "_is_open",
        "_is_plain",
        "_is_shaken",
        "_may_be_plain",
        "_minds",
        "_readable",
        "_received",
        "_repeat",
        "_tls",
        "_to_send",
        "_unsent",
        "_writable",
    )

    def __init__(
        self, inner: Endpoint, context: ssl.SSLContext, own: bytes = b"", *, may_be_plain: bool = False
    ) -> None:
        self._inner = inner
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=bool(own))
        self._fingerprint = own
        self._unsent = memoryview(b"")
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None
        self._repeat: asyncio.Handle | None = None
        self._failure: Exception | None = None
        self._has_ended = self._is_shaken = False
        self._hears = self._minds = False
        """True while it listens to the inner endpoint for bytes, and for room."""
        self._is_open = True
        self._may_be_plain, self._is_plain = may_be_plain, False

    @property
    def peer(self) -> str:
        """The other end."""
        return self._inner.peer

    @property
    def binding(self) -> bytes:
        """The fingerprint of the certificate that this stream was opened with; empty before the handshake."""
        if not self._fingerprint and self._is_shaken:
            self._fingerprint = fingerprint(self._tls.getpeercert(binary_form=True) or b"")
        return b"" if self._is_plain else self._fingerprint

    def send_nowait(self, parts: Sequence[bytes | memoryview]) -> int:
        """Encrypt from the front of `parts`, and send what the inner endpoint takes."""
        if self._is_plain:
            return self._inner.send_nowait(parts)
        if not (self._step() and self._flush()):
            self._arm()
            return 0
        taken = 0
        try:
            for piece in _pieces(parts):
                taken += self._tls.write(piece)
                if self._to_send.pending >= AHEAD:
                    break
        except ssl.SSLError as error:
            raise self._failed(error) from None
        self._flush()
        self._arm()
        return taken

    def receive_nowait(self, target: memoryview) -> int | None:
        """Decrypt into `target` until it is full, or no more is there."""
        if not self._step():
            self._arm()
            return 0 if self._has_ended else None
        if self._is_plain:
            return self._received_plain(target)
        filled, size = 0, len(target)
        while filled < size:
            try:
                count: int = self._tls.read(size - filled, target[filled:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                if self._refill(size):
                    continue
                break
            except ssl.SSLZeroReturnError:
                count = 0
            except ssl.SSLError as error:
                failure = self._failed(error)
                if filled:
                    break  # first what came before it
                raise failure from None
            if not count:
                self._has_ended = True
                break
            filled += count
        if filled == size or self._failure is not None or self._has_ended:
            self._call_again()  # the system does not say that something is here already
        if not filled and self._failure is not None:
            raise self._failure
        return filled or (0 if self._has_ended else None)

    def _received_plain(self, target: memoryview) -> int | None:
        if not self._received.pending:
            return self._inner.receive_nowait(target)
        first = self._received.read(len(target))
        target[: len(first)] = first
        self._call_again()
        return len(first)

    def set_readable(self, callback: Callable[[], None] | None) -> None:
        """As the seam says; what was received and not yet read counts."""
        self._readable = callback
        self._call_again()
        self._arm()

    def set_writable(self, callback: Callable[[], None] | None) -> None:
        """As the seam says; before the end of the handshake nothing can be sent."""
        self._writable = callback
        self._arm()

    def wait_for_window(self) -> None:
        """As the inner endpoint, where it can."""
        if isinstance(self._inner, PatientEndpoint):
            self._inner.wait_for_window()

    def close(self) -> None:
        """Close the inner endpoint, once it has taken what was taken here, or has not for LINGER seconds."""
        if not self._is_open:
            return
        self._is_open = False
        self._readable = self._writable = None
        if self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None
        self._inner.set_readable(None)
        if self._failure is None and len(self._unsent):
            self._repeat = asyncio.get_running_loop().call_later(LINGER, self._end)
            self._inner.set_writable(self._linger)
            self._linger()
        else:
            self._inner.close()

    def _linger(self) -> None:
        try:
            is_empty = self._flush()
        except OSError:
            is_empty = True  # the peer is gone and takes no more
        if is_empty:
            self._end()

    def _end(self) -> None:
        if self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None
        self._unsent = memoryview(b"")
        self._inner.close()

    def _step(self) -> bool:
        """Go on with the handshake; True once it is done. Raises what ended it."""
        if self._failure is not None:
            raise self._failure
        while not (self._is_shaken or self._is_plain):
            if self._may_be_plain:
                if not self._refill():
                    return False
                continue
            try:
                self._tls.do_handshake()
                self._is_shaken = True
                self._flush()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._refill():
                    return False
            except ssl.SSLError as error:
                failure = self._failed(error)
                self._flush()  # the alert says why to the other side
                raise failure from None
        return True

    def _refill(self, wanted: int = FIRST) -> bool:
        """Take in encrypted bytes; False where none are there, or none will come.

        Of a peer that is asked for little, as one that has proved nothing, little is taken.
        """
        scratch = _scratch.chunk[: max(FIRST, wanted)]
        try:
            count = self._inner.receive_nowait(scratch)
        except OSError as error:
            self._failure = error
            return False
        if count:
            self._received.write(scratch[:count])
            self._is_plain = self._may_be_plain and scratch[0] != _HANDSHAKE
            self._may_be_plain = False
            return True
        self._has_ended = count == 0
        return False

    def _flush(self) -> bool:
        """Give the inner endpoint what is encrypted; True where it has taken all."""
        if not len(self._unsent) and self._to_send.pending:
            self._unsent = memoryview(self._to_send.read())
        while len(self._unsent):
            sent = self._inner.send_nowait([self._unsent])
            if not sent:
                return False
            self._unsent = self._unsent[sent:]
            if not len(self._unsent) and self._to_send.pending:
                self._unsent = memoryview(self._to_send.read())
        return True

    def _arm(self) -> None:
        """Listen to the inner endpoint for what the layer above waits for, and for what waits here."""
        if not self._is_open:
            return
        shakes = not (self._is_shaken or self._is_plain) and self._failure is None
        hears = self._readable is not None or (self._writable is not None and shakes)
        minds = bool(len(self._unsent)) or (self._writable is not None and not shakes)
        if hears is not self._hears:
            self._hears = hears
            self._inner.set_readable(self._on_readable if hears else None)
        if minds is not self._minds:
            self._minds = minds
            self._inner.set_writable(self._on_writable if minds else None)

    def _on_readable(self) -> None:
        if self._readable is not None:
            self._readable()
        else:
            self._advance()

    def _on_writable(self) -> None:
        try:
            is_empty = self._flush()
        except OSError as error:
            self._failure, is_empty = error, True
        callback = self._writable or (self._readable if self._failure is not None else None)
        if is_empty and callback is not None:
            callback()
        self._arm()

    def _advance(self) -> None:
        """Go on with the handshake for a caller that waits to send: its next try raises the failure."""
        try:
            self._step()
        except (OSError, AuthenticationError) as error:
            self._failure = error
        if self._has_ended and not self._is_shaken:
            self._failure = ConnectionResetError("the peer closed during the handshake of TLS")
        self._arm()

    def _call_again(self) -> None:
        """Come back to who reads, while something is here that the system does not know of."""
        if self._readable is None or self._repeat is not None or not self._is_open:
            return
        if self._tls.pending() or self._received.pending or self._failure is not None or self._has_ended:
            self._repeat = asyncio.get_running_loop().call_soon(self._again)

    def _again(self) -> None:
        self._repeat = None
        if self._readable is not None:
            self._readable()

    def _failed(self, error: ssl.SSLError) -> Exception:
        """The failure of this stream, from now on: about who the peer is, or that the stream broke."""
        reason = error.reason or str(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            self._failure = AuthenticationError(
                f"the peer at {self.peer} has a certificate that is not trusted here: {error.verify_message}. See"
                " spark.penstock.tls.authorities"
            )
        elif "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason:
            self._failure = AuthenticationError(
                f"the peer at {self.peer} does not trust the certificate of this side: see"
                " spark.penstock.tls.authorities of that one"
            )
        elif not self._is_shaken and _STRANGE.search(reason):
            self._failure = AuthenticationError(
                f"the peer at {self.peer} does not speak TLS 1.3: plain text, or an older TLS, is refused"
            )
        else:
            self._failure = ConnectionResetError(f"TLS: {reason}")
        return self._failure


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[bytes | bytearray | memoryview]:
    """The parts in pieces of at most a record, small neighbours in one."""
    small = bytearray()
    for part in parts:
        view = memoryview(part)
        if len(view) < SMALL and len(small) + len(view) <= RECORD:
            small += view
            continue
        begin = 0
        if small:
            begin = RECORD - len(small)
            small += view[:begin]
            yield small
            small = bytearray()
        for start in range(begin, len(view), RECORD):
            yield view[start : start + RECORD]
    if small:
        yield small


class _Scratch(threading.local):
    """Memory to receive into, once for all streams of a thread: what comes is copied out at once."""

    def __init__(self) -> None:
        self.chunk = memoryview(bytearray(CHUNK))


_scratch = _Scratch()
