# SPDX-License-Identifier: Apache-2.0
"""The identity of an application at the host service: a key made from its secret, and a name made from the key.

Rules: the service gets the key, over a Unix socket of its host, and never the application's secret, so it can't speak
as the application elsewhere. The name is a digest of the key: no other application can be known by it, so none can be
kept out by one that takes its name first. Over the network neither travels but as a proof.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

_PURPOSE = b"penstock host service 1"
_NAME_DIGITS = 32
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class ApplicationKey:
    """The application as a host service knows it; `title` is for people."""

    title: str
    key: bytes = field(repr=False)
    name: str = field(init=False, repr=False, compare=False)
    """Its name at the service, where each FETCH is looked up by it."""

    def __post_init__(self) -> None:
        """Make the name, once."""
        object.__setattr__(self, "name", name_of_key(self.key))

    @classmethod
    def of(cls, title: str, secret: bytes) -> ApplicationKey:
        """The key of an application with this secret."""
        return cls(title, hmac.digest(secret, _PURPOSE, "sha256"))


def name_of_key(key: bytes) -> str:
    """The name that goes with a key."""
    return hashlib.sha256(key).hexdigest()[:_NAME_DIGITS]
