# SPDX-License-Identifier: Apache-2.0
"""Calls of a shuffle service, each on a connection of its own, with a deadline: for writers and for the driver.

A service that is being restarted is waited for as long as the settings say. Its refusal is an error at once.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.errors import PenstockError, ProtocolError, SettingError
from penstock.services.fetching.wire import Address, Wire
from penstock.services.spark_ess.engine import Encryption, EngineLogin
from penstock.services.spark_ess.frames import Answer, Failure
from penstock.services.spark_ess.messages import ask_folders, read_folders, register_executor
from penstock.services.spark_ess.sasl import SaslLogin
from penstock.services.spark_ess.session import Login, Session
from penstock.settings import EssSettings

PORT = 7337
"""Spark's own."""
_PAUSE_SECONDS = 0.1
_LOOK_SECONDS = 0.05
_CHUNK_BYTES = 1 << 31


class ServiceRefusedError(PenstockError):
    """The service has answered a request with an error."""


@dataclass(frozen=True, slots=True)
class Access:
    """The words by which an application is let in, and its patience in seconds."""

    application: str
    secret: str = field(repr=False)
    port: int
    patience: float
    encryption: Encryption | None

    @classmethod
    def of(cls, settings: EssSettings, application: str) -> Access:
        """As the settings say; `application` is its name where they say none. SettingError for an unknown cipher."""
        encryption = Encryption.of(settings.cipher, settings.engine_version or 1)
        if encryption is not None and not settings.secret:
            raise SettingError(
                f"{encryption.cipher} needs a secret that both sides know: set spark.authenticate and"
                " spark.authenticate.secret, or spark.penstock.ess.secret"
            )
        name, port = settings.application or application, settings.port or PORT
        return cls(name, settings.secret, port, settings.retry_timeout, encryption)

    def login(self) -> Login | None:
        """The login of a new connection."""
        if not self.secret:
            return None
        if self.encryption is None:
            return SaslLogin(self.application, self.secret)
        return EngineLogin(self.application, self.secret, self.encryption)

    def session(self) -> Session:
        """The protocol of a new connection."""
        return Session(self.login(), _CHUNK_BYTES)


def call(access: Access, address: Address, bodies: Sequence[bytes], check: Callable[[], object]) -> list[bytes]:
    """The answers to these requests. ServiceRefusedError, AuthenticationError, or TimeoutError with its cause."""
    deadline = time.monotonic() + access.patience
    while True:
        try:
            session = access.session()
            wire = Wire(address, session)
            try:
                return _ask(wire, session, list(bodies), max(0.0, deadline - time.monotonic()), check)
            finally:
                wire.close()
        except ConnectionError as error:
            if time.monotonic() + _PAUSE_SECONDS >= deadline:
                host, port = address
                raise TimeoutError(
                    f"no shuffle service of Spark answers at {host}:{port} within {access.patience:.0f} s"
                    f" (spark.penstock.ess.retryTimeout): {error}"
                ) from error
        check()
        time.sleep(_PAUSE_SECONDS)


def _ask(
    wire: Wire, session: Session, bodies: list[bytes], seconds: float, check: Callable[[], object]
) -> list[bytes]:
    """The answers to requests, on a wire that has no other requests.

    `check` is called while this waits, and may raise. ServiceRefusedError where one is answered with an error,
    TimeoutError and ConnectionError where there is no answer.
    """
    numbers = [session.ask(body) for body in bodies]
    answers: dict[int, bytes] = {}
    deadline = time.monotonic() + seconds
    while len(answers) < len(numbers):
        check()
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the shuffle service did not answer within {seconds:.0f} s")
        wire.wait(min(left, _LOOK_SECONDS))
        for message in wire.move():
            match message:
                case Answer(request, body):
                    answers[request] = body
                case Failure(_, text):
                    raise ServiceRefusedError(text)
                case _:
                    pass
    return [answers[number] for number in numbers]


def registered(
    access: Access, address: Address, executor: str, folders: Sequence[str], check: Callable[[], object]
) -> tuple[str, ...]:
    """The folders that the service knows for an executor: these, if it knew none.

    It knows one list for each executor. So a later writer takes over the list of the first one. Of two at the same
    time one list remains; a writer asks for it again after its own.
    """
    try:
        found = _folders(call(access, address, [ask_folders(access.application, executor)], check), executor)
    except ServiceRefusedError:
        found = ()
    if found:
        return found
    bodies = [register_executor(access.application, executor, folders), ask_folders(access.application, executor)]
    return _folders(call(access, address, bodies, check)[1:], executor)


def _folders(answers: Sequence[bytes], executor: str) -> tuple[str, ...]:
    return read_folders(answers[0]).get(executor, ())


def address_of(text: str) -> Address:
    """Host and port of `tcp://host:port`; ProtocolError for another text."""
    host, separator, port = text.removeprefix("tcp://").rpartition(":")
    if not separator or not port.isdecimal():
        raise ProtocolError(f"{text!r:.200} is no address of a shuffle service")
    return host.strip("[]"), int(port)


def refuse_unauthenticated(access: Access, address: Address, *, is_accepted: bool) -> None:
    """SettingError for a service that other hosts reach without a login, unless that is accepted knowingly."""
    host, port = address
    if access.secret or is_accepted or _is_loopback(host):
        return
    raise SettingError(
        f"the shuffle service at {host}:{port} asks nobody who he is, so whoever reaches that port reads and deletes"
        " the rows of this application: set spark.authenticate and spark.authenticate.secret for the cluster, or, if"
        " the network is safe without, spark.penstock.ess.acceptUnauthenticated=true"
    )


def _is_loopback(host: str) -> bool:
    try:
        found = {each[4][0] for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)
