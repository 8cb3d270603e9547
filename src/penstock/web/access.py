# SPDX-License-Identifier: Apache-2.0
"""The rule of who may read the page: those who know its token, under a name that the page has.

The token comes in the address once (`?token=`); the answer is a cookie and the same address without it, so it stays
in no history. Programs send it as `Authorization: Bearer`. It is compared in constant time. The cookie is made of the
token and is not the token: a browser gives it to all ports of this machine, and those learn no token from it. A
request under a name that is none of ours is refused first: a page of another site can give its own name our address,
and would then read for its user. Addresses as numbers are no names. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection
from enum import Enum
from http.cookies import CookieError, SimpleCookie

from penstock.observe.http_server import HttpRequest

TOKEN_BYTES = 24
LEAST_TOKEN = 16
"""Characters of a token that a setting gives."""


class Verdict(Enum):
    """The answers to whether a request may read."""

    READ = "read"
    ENTER = "enter"
    """It has the token in its address: give it the cookie."""
    UNKNOWN = "unknown"
    """It has no token, or a wrong one."""
    MISDIRECTED = "misdirected"
    """It came under a name that is not ours."""


class PageAccess:
    """The rule of one page; `names` are those that it has beside `localhost`."""

    def __init__(self, token: str = "", names: Collection[str] = ()) -> None:
        self.token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self._pass = hmac.new(self.token.encode(), b"penstock page", hashlib.sha256).hexdigest()
        self._names = {"localhost", *(name.lower() for name in names)}

    def judge(self, request: HttpRequest) -> Verdict:
        """Say what a request may do."""
        if not self._is_ours(request.headers.get("host", "")):
            return Verdict.MISDIRECTED
        given = request.query.get("token")
        if given is not None:
            return Verdict.ENTER if _equal(given, self.token) else Verdict.UNKNOWN
        scheme, _, told = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(told.strip(), self.token):
            return Verdict.READ
        passes = _cookies(request.headers.get("cookie", "")).get(self.cookie_name)
        return Verdict.READ if passes is not None and _equal(passes, self._pass) else Verdict.UNKNOWN

    @property
    def cookie_name(self) -> str:
        """The name of the cookie: another one for each token, as a machine's pages share their cookies."""
        return f"penstock_{self._pass[:8]}"

    @property
    def cookie(self) -> str:
        """The cookie for browsers with the token: scripts don't see it, and other sites' requests come without it."""
        return f"{self.cookie_name}={self._pass}; Path=/; HttpOnly; SameSite=Lax"

    def _is_ours(self, host: str) -> bool:
        name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())


def _cookies(header: str) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(header).items()}
    except CookieError:
        return {}
