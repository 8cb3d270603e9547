# SPDX-License-Identifier: Apache-2.0
"""The sessions of callers of the JobMaster: the handshake that proves the application's secret gives one.

Limit: of more sessions than `_SESSIONS` those go that were not used for longest. An environment uses its own twice a
second.

`Challenge {}` -> `{nonce}`, then `Authenticate {nonce, client_nonce, role, identity, proof}` -> `{session, proof}`.
The caller proves itself first, with `proof(secret, role, nonce, client_nonce, identity)`; the server answers with
`proof(secret, "master", client_nonce, nonce, identity)`, which the caller checks before it trusts the session. Every
other call carries the session in its metadata. A challenge is good for one attempt and a few seconds, and few are
open at a time.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from penstock.link import control
from penstock.link import master as ask
from penstock.shuffle.errors import AuthenticationError, ProtocolError

ALLOWED = {
    ask.ENVIRONMENT: frozenset(
        {
            ask.AttachEnvironment.METHOD,
            ask.Listen.METHOD,
            ask.Heartbeat.METHOD,
            ask.PartitionConsumable.METHOD,
            ask.TaskLost.METHOD,
            *ask.RELAYED,
        }
    ),
    ask.PLANNER: frozenset({ask.OpenResult.METHOD}),
}
"""The calls that each role may make."""

_CHALLENGES = 4096
_CHALLENGE_SECONDS = 120.0
"""Longer than a driver may pause between the two steps."""
_SESSIONS = 65_536


@dataclass(frozen=True, slots=True)
class Session:
    """A caller that has proved itself."""

    role: str
    identity: str


class Sessions:
    """Open challenges and sessions of one JobMaster. One thread."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._challenges: OrderedDict[bytes, float] = OrderedDict()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def challenge(self, _: ask.Challenge, __: str) -> ask.Challenged:
        """The first step: our nonce."""
        while len(self._challenges) >= _CHALLENGES:
            self._challenges.popitem(last=False)
        nonce = control.nonce()
        self._challenges[nonce] = time.monotonic() + _CHALLENGE_SECONDS
        return ask.Challenged(nonce)

    def authenticate(self, request: ask.Authenticate, peer: str) -> ask.Authenticated:
        """The second step: the caller's proof against ours."""
        role, identity, own, other = request.role, request.identity, request.nonce, request.client_nonce
        if role not in ALLOWED:
            raise ProtocolError(f"{peer}: there is no role {role!r}")
        if len(other) != control.NONCE_BYTES:
            raise ProtocolError(f"{peer}: the handshake needs two nonces of {control.NONCE_BYTES} bytes")
        if self._challenges.pop(own, 0.0) < time.monotonic():
            raise AuthenticationError(f"{peer}: no such challenge, or it took too long")
        if not control.proof_matches(control.proof(self._secret, role, own, other, identity), request.proof):
            raise AuthenticationError(f"{peer} could not prove the application's secret")
        while len(self._sessions) >= _SESSIONS:
            self._sessions.popitem(last=False)
        name = secrets.token_hex(32)
        self._sessions[name] = Session(role, identity)
        return ask.Authenticated(name, control.proof(self._secret, ask.MASTER, other, own, identity))

    def check(self, token: str, method: str, peer: str) -> Session:
        """The session of a call; raises AuthenticationError."""
        session = self._sessions.get(token)
        if session is None:
            raise AuthenticationError(f"{peer} called {method} without a session: the handshake comes first")
        if method not in ALLOWED[session.role]:
            raise AuthenticationError(f"{peer} may not call {method} as {session.role} {session.identity}")
        self._sessions.move_to_end(token)
        return session
