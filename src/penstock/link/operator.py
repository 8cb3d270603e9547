# SPDX-License-Identifier: Apache-2.0
"""What an operator asks a running session of its streaming queries, and the key that an operator proves.

The key is made of the application's secret and opens nothing else: who has it can lead queries, and can neither be a
task or an environment nor seal a plan.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any

from penstock.connection.handshake import Credentials
from penstock.link.wire import Done
from penstock.shuffle.requests import Request

OPERATOR = "operator "
"""The begin of an operator's name; no environment's has a space."""
_PURPOSE = b"penstock operator"


@dataclass(frozen=True, slots=True)
class QueryNow:
    """A running query; `status` is a sentence, `tasks` are those of its stages, in order."""

    id: str
    name: str
    status: str
    slots: int
    rows_per_second: float
    checkpoint: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryList:
    """The queries of a session that run."""

    queries: tuple[QueryNow, ...]


@dataclass(frozen=True, slots=True)
class ListQueries(Request[QueryList]):
    """Which queries run."""


@dataclass(frozen=True, slots=True)
class QueryEnded:
    """The query has ended; `cause` is the error that it ended with, empty where it ended well."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class StopQuery(Request[QueryEnded]):
    """End a query well; with a `savepoint`, a folder, its last state is copied there."""

    query: str
    seconds: float
    savepoint: str = ""


@dataclass(frozen=True, slots=True)
class QuerySaved:
    """The number of the checkpoint that a savepoint is of."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class SaveQuery(Request[QuerySaved]):
    """Take a checkpoint now and copy it to a folder; the query goes on."""

    query: str
    seconds: float
    savepoint: str


@dataclass(frozen=True, slots=True)
class RescaleQuery(Request[Done]):
    """Go on with so many tasks for each stage that may have another number."""

    query: str
    seconds: float
    tasks: int


OPERATORS: dict[str, type[Request[Any]]] = {
    kind.METHOD: kind for kind in (ListQueries, StopQuery, SaveQuery, RescaleQuery)
}
"""Every call of an operator, by its name on the wire."""


def operator_key(secret: bytes) -> bytes:
    """The key of an application's operators."""
    return hmac.digest(secret, _PURPOSE, "sha256")


@dataclass(frozen=True, slots=True)
class MasterSecrets:
    """The secrets by which a JobMaster knows its environments, and operators (`connection.handshake.Secrets`)."""

    own: Credentials
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, own: Credentials) -> MasterSecrets:
        """Those of an application."""
        return cls(own, operator_key(own.secret))

    @property
    def identity(self) -> str:
        """This end's name."""
        return self.own.identity

    def secret_of(self, peer: str) -> bytes:
        """An operator's is the key, any other peer's the application's secret."""
        return self.key if peer.startswith(OPERATOR) else self.own.secret
