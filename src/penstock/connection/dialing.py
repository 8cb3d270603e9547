# SPDX-License-Identifier: Apache-2.0
"""Connects without an event loop, as tasks and clients do: a socket over which both ends have proved themselves.

The socket blocks, with the given time as its timeout. Over TLS it is one of `ssl`, which has no `sendmsg`. Limit: one
try; who wants to try again calls again.
"""

from __future__ import annotations

import socket

from penstock.connection.certificate import Certificate
from penstock.connection.handshake import Handshake, Role, Secrets, Service
from penstock.connection.protection import Protection
from penstock.connection.transport import is_loopback, split_host
from penstock.errors import AuthenticationError, EnvironmentLostError, SettingError


def dial(
    address: str, service: Service, credentials: Secrets, protection: Protection, timeout: float = 10.0
) -> socket.socket:
    """A socket to this address, `tcp://` or `tls://`, proved to and proved by.

    Raises EnvironmentLostError where nothing answers (its cause is an OSError), AuthenticationError or SettingError.
    """
    scheme = address.partition("://")[0]
    host, port = split_host(address, scheme)
    if scheme not in ("tcp", "tls"):
        raise SettingError(f"address {address!r} is not understood: it must look like tls://host:port")
    try:
        connected = socket.create_connection((host, port), timeout)
    except OSError as error:
        raise EnvironmentLostError(f"cannot connect to {address}: {error or 'no answer'}") from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = b""
        if scheme == "tls":
            connected, stream = _encrypted(connected, address, protection.certificate or Certificate())
        elif not protection.accepts_plain_text and not is_loopback(connected.getpeername()[0]):
            raise SettingError(f"plain text to {address} is refused: see spark.penstock.tls.mode")
        _shake(connected, stream, Handshake(Role.CLIENT, service, credentials, address))
    except OSError as error:
        connected.close()
        raise EnvironmentLostError(f"the connection to {address} broke at its start: {error}") from error
    except BaseException:
        connected.close()
        raise
    return connected


def _encrypted(connected: socket.socket, address: str, certificate: Certificate) -> tuple[socket.socket, bytes]:
    import ssl

    from penstock.connection.certificates import client_context, fingerprint

    try:
        encrypted = client_context(certificate).wrap_socket(connected)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            f"the peer at {address} has a certificate that is not trusted here: {error.verify_message}"
        ) from error
    return encrypted, fingerprint(encrypted.getpeercert(binary_form=True) or b"")


def _shake(connected: socket.socket, stream: bytes, handshake: Handshake) -> None:
    handshake.bind(stream)
    connected.sendall(handshake.outgoing())
    while not handshake.is_done:
        handshake.feed(connected.recv(handshake.missing))
        connected.sendall(handshake.outgoing())
