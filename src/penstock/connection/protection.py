# SPDX-License-Identifier: Apache-2.0
"""The protection of what is sent between hosts, decided in one place: TLS 1.3 off loopback, plain text on it.

    decided               the driver, once for its application: `auto` becomes `always` where anything leaves loopback
    protection_of         each process, by what the driver has decided
    services_protection   one that connects to a service of several applications, which has a certificate of its own
    serving_protection    such a service itself

Without a certificate it is plain text, which refuses to leave loopback unless the user accepts that (`never`). So
no peer that answers in plain text, and no address that says so, makes a process send rows that others can read.

A service uses it so. It listens with `protection.transport().listen(address, door.come)`, and its `Door(service,
secrets, enter)` gets the peer's proven identity. The side that connects has an `Opener(protection.towards(address),
service, secrets)`, or without an event loop `dial` (`dialing`). The secrets are `Credentials` of one application, or
at the door of a service that knows several a `KeyFile` (`principals`); the identity there is that of a `Principal`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.connection.certificate import Certificate
from penstock.connection.handshake import Credentials
from penstock.connection.sockets import TcpTransport
from penstock.connection.transport import Transport, is_loopback
from penstock.connection.transports import load_transport
from penstock.errors import SettingError
from penstock.settings import TlsSettings


@dataclass(frozen=True, slots=True)
class Protection:
    """By a certificate, or in plain text, which stays on loopback unless that is accepted.

    One with a certificate that `spares_loopback` lets peers on loopback come in plain text, and goes there so itself.
    """

    certificate: Certificate | None = None
    accepts_plain_text: bool = False
    spares_loopback: bool = False

    def transport(self, name: str = TcpTransport.scheme, socket_buffer: int = 0) -> Transport:
        """The transport of this name, encrypted where there is a certificate; raises SettingError."""
        if self.certificate is not None:
            from penstock.connection.tls import TlsTransport

            inner = load_transport(name, socket_buffer)
            return TlsTransport(inner, self.certificate, spares_loopback=self.spares_loopback)
        if name == TcpTransport.scheme:
            return TcpTransport(socket_buffer, stays_on_loopback=not self.accepts_plain_text)
        return load_transport(name)

    def towards(self, address: str) -> Transport:
        """The transport that this address is of: `tls://` always encrypts, with whatever certificate is there."""
        if address.startswith("tls://"):
            return replace(self, certificate=self.certificate or Certificate()).transport()
        return replace(self, certificate=None).transport()

    def certificate_for(self, host: str) -> Certificate | None:
        """The certificate, or its authorities, where a connection to this address is encrypted. SettingError."""
        if self.certificate is not None:
            return None if self.spares_loopback and is_loopback(host) else self.certificate
        if self.accepts_plain_text or is_loopback(host):
            return None
        raise SettingError(f"plain text to {host} is refused: see spark.penstock.tls.mode")


@dataclass(frozen=True, slots=True)
class HostAccess:
    """The facts by which a process takes part in connections: its name and secret, and its protection."""

    credentials: Credentials
    protection: Protection


def decided(tls: TlsSettings, hosts: Iterable[str]) -> tuple[TlsSettings, Certificate | None]:
    """The settings for all processes of an application that uses these hosts, and a certificate where one is made.

    Raises SettingError for files that are no certificate, and where none can be made.
    """
    if tls.mode == "auto" and all(is_loopback(host) for host in hosts):
        return tls, None
    if tls.mode == "never":
        return tls, None
    wished = replace(tls, mode="always")
    if tls.certificate:
        protection_of(wished, None)  # the driver says it when they are wrong, ahead of all hosts
        return wished, None
    from penstock.connection.certificates import new_certificate

    return wished, new_certificate("penstock")


def protection_of(tls: TlsSettings, made: Certificate | None) -> Protection:
    """The protection of a process; `made` is the certificate that came with the secret. Raises SettingError."""
    if tls.mode != "always":
        return Protection(accepts_plain_text=tls.mode == "never")
    if tls.certificate:
        from penstock.connection.certificates import read_certificate

        return Protection(read_certificate(tls.certificate, tls.key, tls.authorities))
    if made is None:
        raise SettingError(
            "spark.penstock.tls.mode=always, and no certificate has come with the application's secret"
        )
    return Protection(made)


def services_protection(tls: TlsSettings) -> Protection:
    """The protection towards services of several applications: the operator's authorities, where there are any."""
    if tls.mode == "never":
        return Protection(accepts_plain_text=True)
    authorities = Certificate()
    if tls.authorities:
        from penstock.connection.certificates import read_certificate

        authorities = read_certificate("", "", tls.authorities)
    return Protection(authorities, spares_loopback=tls.mode == "auto")


def serving_protection(mode: str, certificate: str, key: str) -> Protection:
    """The protection of a service of several applications: with the operator's files, or a new certificate.

    On loopback it takes plain text, too. Raises SettingError.
    """
    if mode == "never":
        return Protection(accepts_plain_text=True)
    from penstock.connection.certificates import new_certificate, read_certificate

    own = read_certificate(certificate, key, "") if certificate else new_certificate("penstock service")
    return Protection(own, spares_loopback=mode == "auto")
