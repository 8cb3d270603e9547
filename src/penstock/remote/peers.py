# SPDX-License-Identifier: Apache-2.0
"""Connections of the remote service in an event loop: the way in of a manager or worker, and the way to one.

An application proves the secret that is derived from its user's key (`connection.principals`), and its connection is
answered for that application and for no other. Workers prove the secret that they share with their manager. Off
loopback all of it is TLS 1.3.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from penstock.connection.budgets import UserBudgets
from penstock.connection.certificate import Certificate
from penstock.connection.descriptors import own_descriptors
from penstock.connection.door import Door
from penstock.connection.frame_connection import FrameConnection
from penstock.connection.handshake import MIN_SECRET, Credentials, Secrets, Service
from penstock.connection.opening import Opener, OpeningSettings
from penstock.connection.principals import KeyFile, Principal
from penstock.connection.protection import Protection
from penstock.connection.transport import Endpoint, Listener, is_loopback, join_host
from penstock.connection.turns import Turns
from penstock.errors import AuthenticationError, EnvironmentLostError, ProtocolError, QuotaError, SettingError
from penstock.remote.wire import Guest, PeerLogic
from penstock.shuffle.requests import Request

WORKER = "worker:"
_CONNECT_SECONDS = 5.0
_PAUSES = (0.02, 0.05, 0.1)
_GUESTS = 48 << 20
"""Bytes for connections, questions and answers of one user, beside those of rows."""
_HALF_SECONDS = 30.0
_PURPOSE = b"penstock remote worker"


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """The secret of a manager or worker, the file of users' keys, and how connections are protected."""

    secret: bytes
    keys: Path
    protection: Protection

    @classmethod
    def of(cls, secret: str, keys: Path, protection: Protection) -> ServiceAccess:
        """SettingError where the secret can be guessed."""
        if len(secret.encode()) < MIN_SECRET:
            raise SettingError(f"the secret of manager and workers must have at least {MIN_SECRET} bytes")
        return cls(hmac.digest(secret.encode(), _PURPOSE, "sha256"), keys, protection)

    def grant(self, application: str, owner: str, dataset: str) -> bytes:
        """The manager's word to a worker: an application's user may read a dataset of the application `owner`."""
        user = application.partition("/")[0]
        words = f"penstock grant\0{user}\0{owner}\0{dataset}"
        return hmac.digest(self.secret, words.encode(), "sha256")

    def worker(self, name: str) -> Credentials:
        """The credentials of a worker."""
        return Credentials(WORKER + name, self.secret)


class ServiceSecrets:
    """The secrets of all who may come in (`Secrets`)."""

    def __init__(self, access: ServiceAccess) -> None:
        self.identity = "remote"
        self._access = access
        self._applications = KeyFile(self.identity, access.keys)

    def secret_of(self, peer: str) -> bytes | None:
        """The secret of all workers, or of an application."""
        return self._access.secret if peer.startswith(WORKER) else self._applications.secret_of(peer)


def application_of(identity: str) -> str:
    """User and application of a proved identity, as `user/application`; AuthenticationError where it has none."""
    principal = Principal.of(identity)
    return f"{principal.user}/{principal.application}"


def worker_of(identity: str) -> str:
    """The worker of a proved identity; empty for an application's."""
    return identity.removeprefix(WORKER) if identity.startswith(WORKER) else ""


def user_of(application: str) -> str:
    """The user of such an application."""
    return application.partition("/")[0]


def application_credentials(user: str, application: str, process: str, secret: bytes) -> Credentials:
    """A process of an application; SettingError where it has no user's key."""
    if not user:
        raise SettingError(
            "the remote shuffle service knows applications by their users' keys: set spark.penstock.access.keyFile to"
            " a file with yours (penstock key USER makes one, which the operator adds to the service's)"
        )
    try:
        return Credentials(Principal(user, application, process).identity, secret)
    except ValueError as error:
        raise AuthenticationError(f"the remote shuffle service can't know this application: {error}") from error


def address_of(text: str) -> str:
    """`host:port` as an address: encrypted but on loopback. One with `tcp://` or `tls://` is taken as it is."""
    scheme, _, rest = text.rpartition("://")
    host, _, port = rest.rpartition(":")
    if not host or not port.isdigit() or scheme not in ("", "tcp", "tls"):
        raise SettingError(f"{text!r} is no address of a remote shuffle service: it must look like host:port")
    return join_host(host, int(port), scheme or ("tcp" if is_loopback(host) else "tls"))


def own_protection(host: str, certificate: Certificate | None) -> Protection:
    """The protection of a service at this address: its certificate, or one that is made, but on loopback none.

    One that is made names no authority: each service makes its own, and they know each other by their secret alone,
    which is proved for exactly the certificate that was shown.
    """
    if certificate is None and not is_loopback(host):
        from penstock.connection.certificates import new_certificate

        certificate = replace(new_certificate("penstock"), authorities=b"")
    return Protection(certificate)


class PeerEnds(Protocol):
    """The side that is connected to: makes the core of each connection."""

    def entered(self, identity: str, guest: Guest | None) -> PeerLogic:
        """A peer has proved to be this, no guest if it is a worker; PenstockError for one that is not let in."""


class Entrance:
    """A listening address and those who came in: of each user so many, and none that stops in a question."""

    def __init__(self, access: ServiceAccess, ends: PeerEnds) -> None:
        secrets: Secrets = ServiceSecrets(access)
        self._ends = ends
        self._protection = access.protection
        self._door: Door[Endpoint] = Door(Service.REMOTE, secrets, self._enter)
        self._listener: Listener | None = None
        self._connections: dict[FrameConnection[Any], PeerLogic] = {}
        self._budgets = UserBudgets(_GUESTS, own_descriptors())
        self._turns = Turns()

    async def open(self, address: str) -> str:
        """Listen; the address with its port."""
        _, _, place = address.partition("://")
        transport = self._protection.transport()
        self._listener = await transport.listen(f"{transport.scheme}://{place}", self._door.come)
        return self._listener.address

    def close(self) -> None:
        """Let no more peers in, and close all connections; idempotent."""
        if self._listener is not None:
            self._listener.close()
        self._door.close()
        for connection in list(self._connections):
            connection.close()

    def look(self, now: float) -> None:
        """Close connections whose question has come in part, and does not go on; to be called from time to time."""
        for connection, logic in list(self._connections.items()):
            if logic.guest is not None and 0 < logic.decoder.since < now - _HALF_SECONDS and connection.is_reading:
                connection.close(ProtocolError(f"a question has not come whole within {_HALF_SECONDS:.0f} s"))

    def _enter(self, endpoint: Endpoint, identity: str) -> None:
        guest = None if worker_of(identity) else self._guest(user_of(application_of(identity)))
        try:
            logic = self._ends.entered(identity, guest)
        except BaseException:
            self._leave(guest)
            raise
        connection = FrameConnection(endpoint, logic, self._closed)
        logic.connection = connection
        self._connections[connection] = logic

    def _guest(self, user: str) -> Guest:
        share = self._budgets.enter(user)
        if share is None:
            raise QuotaError(
                f"user {user} has as many connections as one may have here, {self._budgets.of_one} where nobody else"
                " has any. Run fewer tasks at a time, or have the operator set a larger LimitNOFILE"
            )
        return Guest(share, self._turns)

    def _leave(self, guest: Guest | None) -> None:
        if guest is not None:
            self._budgets.leave(guest.share.user)

    def _closed(self, connection: FrameConnection[Any], error: BaseException | None) -> None:
        logic = self._connections.pop(connection, None)
        if logic is not None:
            self._leave(logic.guest)


class Way:
    """The way to one manager or worker."""

    def __init__(self, address: str, own: Credentials, protection: Protection) -> None:
        settings = OpeningSettings(connect_timeout=_CONNECT_SECONDS, pauses=_PAUSES)
        self.address = address
        self._opener = Opener(protection.towards(address), Service.REMOTE, own, settings)

    async def connect(self, logic: PeerLogic) -> FrameConnection[Any]:
        """Connect; raises EnvironmentLostError where the peer is not there, AuthenticationError."""
        endpoint = await self._opener.open(self.address)
        return FrameConnection(endpoint, logic, lambda _, __: None)


async def answered(logic: PeerLogic, request: Request[Any], seconds: float) -> Any:
    """The answer; EnvironmentLostError where none comes for so long."""
    try:
        async with asyncio.timeout(seconds):
            return await asked(logic, request)
    except TimeoutError:
        raise EnvironmentLostError(f"it gave no answer for {seconds:g} s") from None


def asked(logic: PeerLogic, request: Request[Any]) -> asyncio.Future[Any]:
    """Send a request; the future of its answer."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answered(answer: Any) -> None:
        if future.done():
            return
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    logic.ask(request, answered)
    return future
