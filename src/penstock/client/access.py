# SPDX-License-Identifier: Apache-2.0
"""The way of a client to a service: which one, in whose name, and by which settings. Picklable, with a secret in it.

Other processes take part in the same application with it (`join`), as Spark's tasks do in that of their driver.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.connection.principals import Principal, application_secret, key_of, user_key
from penstock.errors import SettingError
from penstock.remote.peers import address_of
from penstock.settings import PREFIX, Settings

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """The service, the application and its secret, the settings, and the name of this host to readers.

    `lasts`: the application is shared by name, so its parts stay when a client leaves.
    """

    service: str
    application: str
    secret: bytes = field(repr=False)
    conf: tuple[tuple[str, str], ...] = ()
    host: str = ""
    lasts: bool = False

    @property
    def settings(self) -> Settings:
        """The settings, of the same keys as a Spark session's."""
        return Settings.from_conf(dict(self.conf))

    @property
    def environment(self) -> str:
        """The name of this process where an environment process has one."""
        return f"{self.host or socket.gethostname()}-{os.getpid()}-client"


def access_to(
    address: str | Path, user: str, key: str | Path, application: str, conf: Mapping[str, str] | None
) -> ClientAccess:
    """The access of a new client; raises SettingError for what is no address, no key or no name."""
    wished = dict(conf or {})
    if odd := [name for name in wished if not name.startswith(PREFIX)]:
        raise SettingError(f"settings of a client begin with {PREFIX}: {', '.join(odd)} does not")
    name = application or f"client-{secrets.token_hex(8)}"
    if isinstance(address, Path) or str(address).startswith(("/", ".")):
        return _external(Path(address), user or key, name, wished)
    return _remote(str(address), (user, key), name, wished, lasts=bool(application))


def _external(path: Path, identity: object, application: str, conf: dict[str, str]) -> ClientAccess:
    if identity:
        raise SettingError(
            "the host service knows its users from the kernel: give neither user nor key with the path of a socket"
        )
    conf["spark.penstock.external.socket"] = str(path.absolute())
    return ClientAccess("external", application, secrets.token_bytes(_SECRET_BYTES), tuple(conf.items()))


def _remote(
    address: str, identity: tuple[str, str | Path], application: str, conf: dict[str, str], *, lasts: bool
) -> ClientAccess:
    address_of(address)
    wished, key = identity
    if not key:
        raise SettingError(
            "a remote service knows users by their keys: give key=, the line that `penstock key USER` printed, or the"
            " path of a file with it"
        )
    user, secret = user_key(str(key), wished) if isinstance(key, Path) else key_of(key, wished)
    try:
        Principal(user, application, "client")
    except ValueError as error:
        raise SettingError(f"the application can't be known: {error}") from None
    conf["spark.penstock.remote.manager"] = address
    conf["spark.penstock.access.user"] = user
    return ClientAccess(
        "remote", application, application_secret(secret, user, application), tuple(conf.items()), "", lasts
    )
