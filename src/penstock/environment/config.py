# SPDX-License-Identifier: Apache-2.0
"""The words to an environment process at its start, and what it proves itself by."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field

from penstock.connection.certificate import Certificate
from penstock.connection.handshake import Credentials
from penstock.connection.protection import HostAccess, protection_of
from penstock.link.rendezvous import Rendezvous
from penstock.settings import Settings
from penstock.shuffle.ids import environment_name


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The configuration that the starting task passes on standard input. `master` is `host:port`, empty for none.

    One that does not serve others from its start on opens its data port for the first task that needs it.
    """

    application: str
    secret: bytes = field(repr=False)
    master: str
    settings: Settings
    place: Rendezvous
    serves: bool = True
    certificate: Certificate | None = None
    """The application's own, where the driver has made one."""


def fresh_access(config: HostConfig) -> HostAccess:
    """That of a new environment of this process: a name that no other has. Raises SettingError."""
    name = environment_name(os.uname().nodename, os.getpid(), secrets.token_hex(3))
    return HostAccess(Credentials(name, config.secret), protection_of(config.settings.tls, config.certificate))
