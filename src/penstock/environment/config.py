# SPDX-License-Identifier: Apache-2.0
"""The words to an environment process at its start, and its identity."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field

from penstock.link.rendezvous import Rendezvous
from penstock.shuffle import Settings
from penstock.shuffle.ids import environment_name


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The configuration that the starting task passes on standard input. `master` is `host:port`, empty for none."""

    application: str
    secret: bytes = field(repr=False)
    master: str
    settings: Settings
    place: Rendezvous


@dataclass(frozen=True, slots=True)
class Identity:
    """The name of one environment, which no other has, and the secret that proves it."""

    environment: str
    secret: bytes = field(repr=False)

    @classmethod
    def fresh(cls, secret: bytes) -> Identity:
        """A new one of this process."""
        return cls(environment_name(os.uname().nodename, os.getpid(), secrets.token_hex(3)), secret)
